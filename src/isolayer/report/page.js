// Draws the page: unpacks the columns, renders the charts, the table of contexts and the curve explorer. Fetches nothing.

const evidence = JSON.parse(document.getElementById("evidence").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS(/^(svg|line|circle|rect)$/.test(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const count = (value) => Math.round(value).toLocaleString("en");
const ratio = (value) => (Number.isFinite(value) ? value.toFixed(value >= 9.995 ? 1 : 2) : "–");
const percent = (value) => (!Number.isFinite(value) ? "–" : value === 0 ? "0%" : `${Number((100 * value).toPrecision(3))}%`);
const probability = (logit) => 1 / (1 + Math.exp(-logit));
const logitOf = (prob) => Math.log(prob / (1 - prob));

// ---- columns: base64 of gzip of typed arrays, in the order of the manifest

async function unpack() {
  const packed = Uint8Array.from(atob($("#columns").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const types = { Float32Array, Int32Array, Uint16Array, Uint8Array };
  const columns = {};
  let offset = 0;
  for (const { name, type, length } of evidence.manifest) {
    columns[name] = new types[type](buffer, offset, length);
    offset += columns[name].byteLength;
  }
  return columns;
}

const fromLog = (steps) => (place) => (place === 0 ? 0 : place === 65535 ? NaN : Math.exp((place - 32768) / steps));
const fromCoarseLog = (steps) => (place) => (place === 0 ? 0 : Math.exp((place - 98) / steps));

// ---- charts: light colours become CSS variables, so that light, dark and print need no redrawing

const variables = new Map(Object.entries(evidence.palette).map(([name, colour]) => [colour, `var(--${name})`]));
const saidByLog = (name, inner) => name === "params" || name === "values" || (name === "title" && typeof inner === "string"); // may look like a colour

function themed(part) {
  if (typeof part === "string") return variables.get(part) ?? part;
  if (Array.isArray(part)) return part.map(themed);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([name, inner]) => [name, saidByLog(name, inner) ? inner : themed(inner)]));
}

function draw(element, spec) {
  return vegaEmbed(element, themed(spec), { actions: false, renderer: "svg", mode: "vega-lite" });
}

// ---- the contexts of one table, as the columns say

function contextsOf(place, columns) {
  const { names, words, rows } = evidence.tables[place];
  const at = (name) => columns[`table${place}.${name}`];
  const log = fromLog(evidence.curves.logSteps);
  const values = (row) => names.map((_, key) => words[key][at(`key${key}`)[row]]);
  const part = (when, row) => ["ratio", "lower", "upper"].map((name) => log(at(`${when}.${name}`)[row]));
  return {
    place, names, rows, values, part,
    label: (row) => values(row).join(" · "),
    weight: (row) => at("weight")[row],
    rate: (row) => log(at("rate")[row]),
    curve: (row) => at("curve")[row],
    off: (row) => at("off")[row],
  };
}

// Every word must be part of the text of a context; name=value must match a value exactly.
function searcher(contexts) {
  const texts = Array.from({ length: contexts.rows }, (_, row) => contexts.label(row).toLowerCase());
  const exact = Array.from({ length: contexts.rows }, (_, row) =>
    contexts.names.map((name, key) => `${name}=${contexts.values(row)[key]}`.toLowerCase()));
  return (query, most = Infinity) => {
    const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (let row = 0; row < contexts.rows && found.length < most; row++) {
      if (wanted.every((word) => (word.includes("=") ? exact[row].includes(word) : texts[row].includes(word)))) found.push(row);
    }
    return found;
  };
}

// ---- table of contexts: only one page of rows is ever in the document

const PAGE = 25;
const SPARK = { low: Math.log(0.5), high: Math.log(2), width: 144, height: 18 };

function spark(before, after) {
  const { low, high, width, height } = SPARK;
  const x = (value) => ((Math.min(high, Math.max(low, Math.log(value || 1e-9))) - low) / (high - low)) * width;
  const y = height / 2;
  return make("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    make("line", { x1: x(1), x2: x(1), y1: 0, y2: height, style: "stroke: var(--rule)" }),
    make("line", { x1: x(before[0]), x2: x(after[0]), y1: y, y2: y, style: "stroke: var(--rule); stroke-dasharray: 2 2" }),
    make("line", { x1: x(after[1]), x2: x(after[2]), y1: y, y2: y, style: "stroke: var(--accent); stroke-width: 2" }),
    make("circle", { cx: x(before[0]), cy: y, r: 3.5, style: "fill: var(--raw)" }),
    make("circle", { cx: x(after[0]), cy: y, r: 4, style: "fill: var(--accent)" }));
}

function contextTable(columns, explore) {
  const root = $("#contexts");
  const all = evidence.tables.map((_, place) => contextsOf(place, columns));
  const searches = all.map(() => null); // made when first needed
  const state = { table: 0, query: "", sort: "off", descending: true, page: 0, matched: [] };
  const keys = {
    context: null,
    weight: (contexts, row) => contexts.weight(row),
    rate: (contexts, row) => contexts.rate(row),
    before: (contexts, row) => contexts.part("before", row)[0],
    after: (contexts, row) => contexts.part("after", row)[0],
  };

  function match() {
    const contexts = all[state.table];
    searches[state.table] ??= searcher(contexts);
    const found = searches[state.table](state.query); // rows come worst first
    if (state.sort === "context") {
      const labels = new Map(found.map((row) => [row, contexts.label(row)]));
      const collator = new Intl.Collator("en", { numeric: true });
      found.sort((one, two) => collator.compare(labels.get(one), labels.get(two)));
    } else if (state.sort !== "off") {
      const values = new Map(found.map((row) => [row, keys[state.sort](contexts, row)]));
      found.sort((one, two) => values.get(one) - values.get(two) || one - two);
    }
    const backwards = state.sort === "off" ? !state.descending : state.descending;
    state.matched = backwards ? found.reverse() : found;
    state.page = 0;
    render();
  }

  function line(contexts, row) {
    const before = contexts.part("before", row), after = contexts.part("after", row), off = contexts.off(row);
    const cells = [
      make("th", { scope: "row" }, contexts.label(row)),
      make("td", { class: "desk-only" }, count(contexts.weight(row))),
      make("td", { class: "desk-only" }, percent(contexts.rate(row))),
      make("td", {}, ratio(before[0])),
      make("td", {}, ratio(after[0]), " ", make("span", { class: "range" }, `${ratio(after[1])} – ${ratio(after[2])}`)),
      make("td", { class: off ? "off yes desk-only" : "off desk-only" }, off ? `${off > 0 ? "+" : "−"}${(100 * Math.abs(off)).toFixed(1)}%` : "no"),
      make("td", { class: "wide-only" }, spark(before, after)),
    ];
    const last = make("td");
    if (explore.has(contexts.curve(row))) {
      const button = make("button", { type: "button", "aria-label": `Show the curve of ${contexts.label(row)}` }, "curve");
      button.addEventListener("click", () => explore.show(contexts, row));
      last.append(button);
    }
    return make("tr", {}, ...cells, last);
  }

  function render() {
    const contexts = all[state.table], pages = Math.max(1, Math.ceil(state.matched.length / PAGE));
    const shown = state.matched.slice(state.page * PAGE, (state.page + 1) * PAGE);
    $("tbody", root).replaceChildren(...shown.map((row) => line(contexts, row)));
    $("thead [data-key=context]", root).textContent = contexts.names.join(" · ");
    for (const heading of root.querySelectorAll("thead th")) {
      const key = $("button", heading)?.dataset.key;
      if (!key) continue;
      heading.setAttribute("aria-sort", key !== state.sort ? "none" : state.descending ? "descending" : "ascending");
    }
    const first = state.matched.length ? state.page * PAGE + 1 : 0;
    const of = state.matched.length === contexts.rows ? count(contexts.rows) : `${count(state.matched.length)} that match, of ${count(contexts.rows)}`;
    const left = evidence.tables[state.table].total - contexts.rows;
    $(".status", root).textContent = `${count(first)} to ${count(first + shown.length - (shown.length ? 1 : 0))} of ${of}${left ? `; ${count(left)} contexts with a better O/E are not listed` : ""}`;
    $("[data-go='-1']", root).disabled = state.page === 0;
    $("[data-go='1']", root).disabled = state.page >= pages - 1;
    root.dataset.matched = state.matched.length;
  }

  $("#context-search", root).addEventListener("input", (event) => { state.query = event.target.value; match(); });
  $("#context-table", root)?.addEventListener("change", (event) => { state.table = Number(event.target.value); match(); });
  for (const button of root.querySelectorAll("thead button")) {
    button.addEventListener("click", () => {
      const key = button.dataset.key;
      state.descending = key === state.sort ? !state.descending : key !== "context";
      state.sort = key;
      match();
    });
  }
  for (const button of root.querySelectorAll("[data-go]")) {
    button.addEventListener("click", () => { state.page += Number(button.dataset.go); render(); });
  }
  match();
  return {
    state: () => ({ table: state.table, query: state.query, sort: state.sort, descending: state.descending, page: state.page }),
    restore(view) {
      if (all[view.table] === undefined || (view.sort !== "off" && !(view.sort in keys))) return;
      Object.assign(state, { table: view.table, query: String(view.query), sort: view.sort, descending: Boolean(view.descending) });
      $("#context-search", root).value = state.query;
      if ($("#context-table", root)) $("#context-table", root).value = String(state.table);
      match();
      state.page = Math.max(0, Math.min(Number(view.page) || 0, Math.ceil(state.matched.length / PAGE) - 1));
      render();
    },
  };
}

// ---- the view as a link: what is searched, sorted and drawn, in the part of the address that is never sent

function readView() {
  try { return JSON.parse(decodeURIComponent(location.hash.match(/^#view=(.*)$/)?.[1] ?? "null")); } catch { return null; }
}

function shareView(table, explore) {
  const button = $("#copy-link"), status = $(".share [role=status]");
  button.addEventListener("click", async () => {
    const view = { table: table?.state() ?? null, curves: explore.state() };
    history.replaceState(null, "", `#view=${encodeURIComponent(JSON.stringify(view))}`);
    try { await navigator.clipboard.writeText(location.href); status.textContent = "Copied"; }
    catch { status.textContent = "Copy the link from the address bar of the browser"; }
  });
}

// ---- curve explorer

function curveBook(columns) {
  const { lower, step, coarseSteps, valueSteps } = evidence.curves;
  const coarse = fromCoarseLog(coarseSteps);
  const size = columns["curves.size"];
  const place = new Map(), start = new Uint32Array(size.length + 1);
  columns["curves.row"].forEach((row, index) => {
    place.set(row, index);
    start[index + 1] = start[index] + size[index];
  });
  return {
    has: (row) => place.has(row),
    knots(row) {
      const index = place.get(row), found = [];
      let value = columns["curves.value"][index];
      for (let knot = 0; knot < size[index]; knot++) {
        const at = start[index] + knot;
        value += columns["curves.rise"][at];
        found.push({
          x: lower + (columns["curves.first"][index] + knot) * step,
          y: value / valueSteps,
          deviation: coarse(columns["curves.deviation"][at]),
          mass: coarse(columns["curves.mass"][at]),
        });
      }
      return found;
    },
  };
}

function at(knots, x) {
  if (x < knots[0].x || x > knots.at(-1).x) return null;
  const right = Math.max(1, knots.findIndex((knot) => knot.x >= x));
  const [one, two] = [knots[right - 1], knots[right]];
  const share = (x - one.x) / (two.x - one.x);
  return { y: one.y + share * (two.y - one.y), deviation: one.deviation + share * (two.deviation - one.deviation) };
}

function explorer(columns, views) {
  const root = $("#explorer"), book = curveBook(columns), series = evidence.series, log = fromLog(evidence.curves.logSteps);
  const contexts = evidence.tables.length ? contextsOf(0, columns) : null;
  const starts = [0];
  if (contexts) columns["dots.many"].forEach((many) => starts.push(starts.at(-1) + many));
  const chosen = []; // {id, name, curve, row}, row being the place in the first table or -1
  let added = 0; // ids keep two contexts apart that read the same
  const z = 1.959964;

  const dots = (entry) => entry.row < 0 ? [] : Array.from({ length: starts[entry.row + 1] - starts[entry.row] }, (_, place) => {
    const raw = log(columns["dots.prob"][starts[entry.row] + place]), observed = log(columns["dots.rate"][starts[entry.row] + place]);
    return { curve: entry.id, name: entry.name, colour: entry.colour, raw, observed, x: logitOf(raw), y: logitOf(Math.min(1 - 1e-9, Math.max(1e-9, observed))) };
  }).filter((dot) => Number.isFinite(dot.x) && dot.observed > 0);

  async function render() {
    const [main, density] = views, curve = [], points = [], mass = [];
    for (const entry of chosen) {
      const knots = book.knots(entry.curve), total = knots.reduce((sum, knot) => sum + knot.mass, 0);
      for (const { x, y, deviation, mass: rows } of knots) {
        const low = y - z * deviation, high = y + z * deviation;
        curve.push({ curve: entry.id, name: entry.name, colour: entry.colour, x, y, low, high, raw: probability(x), calibrated: probability(y), lower: probability(low), upper: probability(high), rows });
        if (total) mass.push({ curve: entry.id, colour: entry.colour, x, share: rows / total });
      }
      points.push(...dots(entry));
    }
    main.data("curve", curve).data("dots", points);
    density.data("mass", mass.length ? mass : [{ x: evidence.readout[0] ?? 0, share: 0, colour: "none", curve: 0 }]);
    root.dataset.curves = chosen.length;
    root.dataset.points = curve.length;
    readout();
    await Promise.all([main.runAsync(), density.runAsync()]);
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
  }

  function readout() {
    const rows = chosen.map((entry) => {
      const knots = book.knots(entry.curve);
      const cells = evidence.readout.map((x) => {
        const found = at(knots, x);
        if (!found) return make("td", {}, "–");
        const [y, low, high] = [0, -z, z].map((side) => percent(probability(found.y + side * found.deviation)));
        return make("td", {}, y, ...(found.deviation ? [" ", make("span", { class: "range" }, `${low} – ${high}`)] : []));
      });
      return make("tr", {}, make("th", { scope: "row" }, entry.name), ...cells);
    });
    $(".readout tbody", root).replaceChildren(...rows);
    $(".chips", root).replaceChildren(...chosen.map((entry) => {
      const swatch = make("i", { style: `background: ${entry.colour}` });
      const button = make("button", { type: "button", "aria-label": `Remove ${entry.name}` }, swatch, entry.name, make("span", { "aria-hidden": "true" }, "×"));
      button.addEventListener("click", () => { chosen.splice(chosen.indexOf(entry), 1); say(`Removed ${entry.name}`); render(); });
      return make("li", {}, button);
    }));
  }

  const say = (text) => { $("[role=status]", root).textContent = text; };

  function add(name, curve, row) {
    if (chosen.some((entry) => entry.curve === curve && entry.row === row)) return say(`${name} is already shown`);
    if (chosen.length === series.length) chosen.shift();
    const colour = series.map((each) => `var(--${each})`).find((each) => !chosen.some((entry) => entry.colour === each));
    chosen.push({ id: ++added, name, curve, row, colour });
    say(`Showing ${chosen.map((entry) => entry.name).join(", ")}`);
    return render();
  }

  if (contexts) combobox(root, contexts, (row) => add(contexts.label(row), contexts.curve(row), row), book);
  return {
    has: book.has,
    all: () => add("all rows", 0, -1),
    add,
    state: () => chosen.map(({ name, curve, row }) => ({ name, curve, row })),
    async restore(entries) {
      const known = entries.filter(({ curve, row }) => book.has(curve) && (row === -1 || (contexts && row >= 0 && row < contexts.rows)));
      if (known.length) chosen.splice(0);
      for (const { name, curve, row } of known) await add(row >= 0 ? contexts.label(row) : String(name), curve, row);
    },
    contexts,
    show(from, row) {
      const name = from.place === 0 ? from.label(row) : `${from.names[0]} ${from.label(row)}`;
      add(name, from.curve(row), from.place === 0 ? row : -1);
      root.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "start" });
    },
  };
}

function combobox(root, contexts, choose, book) {
  const input = $("#curve-search", root), list = $("#curve-options", root), most = 30;
  let search = null, options = [], active = -1;

  const close = () => { list.hidden = true; active = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const pick = (row) => { input.value = ""; close(); choose(row); };
  function open() {
    search ??= searcher(contexts);
    options = search(input.value, most).filter((row) => book.has(contexts.curve(row)));
    list.replaceChildren(...options.map((row, place) => {
      const item = make("li", { role: "option", id: `curve-option-${place}`, "aria-selected": "false" }, contexts.label(row), make("span", {}, `${count(contexts.weight(row))} rows`));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); pick(row); });
      return item;
    }));
    list.hidden = options.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    move(options.length ? 0 : -1);
  }
  function move(to) {
    active = to;
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `curve-option-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }
  input.addEventListener("input", open);
  input.addEventListener("blur", close);
  input.addEventListener("click", open);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; close(); }
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) return open();
      move((active + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length);
    } else if (event.key === "Enter" && active >= 0 && !list.hidden) { event.preventDefault(); pick(options[active]); }
  });
}

async function start() {
  const columns = await unpack();
  const drawn = Promise.all(evidence.charts.map(({ id, spec }) => draw(document.getElementById(id), spec)));
  const views = (await Promise.all(["explorer-curves", "explorer-mass"].map((id) => draw(document.getElementById(id), evidence.explorer[id])))).map(({ view }) => view);
  const explore = explorer(columns, views);
  const table = explore.contexts ? contextTable(columns, explore) : null;
  shareView(table, explore);
  await explore.all();
  if (explore.contexts && explore.has(explore.contexts.curve(0))) await explore.add(explore.contexts.label(0), explore.contexts.curve(0), 0);
  const view = readView();
  if (view?.table && table) table.restore(view.table);
  if (Array.isArray(view?.curves)) await explore.restore(view.curves);
  await drawn;
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  $("main").prepend(make("p", { class: "notice", role: "alert" }, `This page could not be drawn: ${error.message}. A browser from 2023 or later is needed.`));
  throw error;
});
