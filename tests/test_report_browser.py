"""The page in a real browser: it draws, sorts, searches and explores, by mouse and keyboard, and asks for nothing."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from test_report import dual_curves, fitted, simulated

from isolayer import Grid, report
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of

SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE_ROWS = 25

# What has the focus, in a word.
FOCUS = """() => {
  const element = document.activeElement;
  return element.id || element.dataset.key || element.textContent.trim();
}"""

# Controls, tables and pictures that a screen reader could not name.
NAMELESS = """() => {
  const name = (element) => element.getAttribute('aria-label') || element.labels?.[0]?.textContent
    || element.caption?.textContent || (element.tagName === 'BUTTON' && element.textContent) || '';
  return [...document.querySelectorAll('button, input, select, table, [role=region], [role=img]')]
    .filter((element) => !name(element).trim()).map((element) => element.outerHTML.slice(0, 80));
}"""

# Charts that reach beyond a phone's screen.
WIDE = """() => [...document.querySelectorAll('.chart svg')]
  .filter((svg) => svg.getBoundingClientRect().right > 391).length"""


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "no chromium on the PATH: apt-get install chromium, then this page is tested in a real browser"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=SWITCHES, headless=True)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "small.html"
    curves = fitted(simulated(20_000, seed=1))
    return report.write(path, simulated(20_000), curves, date="when", bias=dual_curves(), title="A feed")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A page of 10,000 contexts, each with its curve."""
    rng = np.random.default_rng(0)
    rows = 400_000
    advertiser, device = rng.integers(0, 2500, rows), rng.integers(0, 4, rows)
    score = rng.normal(-3, 1.6, rows)
    label = rng.random(rows) < prob_of(0.8 * score + rng.normal(0, 0.5, 2500)[advertiser])
    names = np.array([f"advertiser-{place}" for place in range(2500)])
    log = {"score": score, "label": label, "advertiser": names[advertiser]}
    log["device"] = np.array(["app", "desktop", "tv", "web"])[device]
    return report.write(
        tmp_path_factory.mktemp("report") / "large.html", log, fitted(log, ("advertiser", "device")), title="Many"
    )


class Opened:
    """A page that was opened and drawn, and what it complained of or asked for."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")

    def first_column(self):
        return self.page.locator("#contexts tbody th").all_inner_texts()

    def matched(self):
        return int(self.page.locator("#contexts").get_attribute("data-matched"))

    def numbers(self, column):
        cells = self.page.locator(f"#contexts tbody tr td:nth-child({column})").all_inner_texts()
        return [float(cell.split()[0].replace(",", "").rstrip("%")) for cell in cells]


@pytest.fixture
def opened(browser, small):
    opened = Opened(browser, small)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.requests == [small.as_uri()]


@pytest.fixture
def many(browser, large):
    opened = Opened(browser, large)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.requests == [large.as_uri()]


def test_every_chart_is_drawn(opened):
    charts = opened.page.locator(".chart")
    names = [charts.nth(place).get_attribute("id") for place in range(charts.count())]
    assert {"reliability", "density", "heat-0", "heat-1", "daily", "bias-0", "bias-1", "bias-relative"} < set(names)
    assert {"explorer-curves", "explorer-mass"} < set(names)
    for name in names:
        box = opened.page.locator(f"#{name} svg").bounding_box()
        assert box["width"] > 200, name
        assert box["height"] > 60, name
        marks = opened.page.locator(f"#{name} .role-mark path, #{name} .role-mark text")
        assert marks.count() > 0, name
        assert opened.page.locator(f"#{name}").get_attribute("aria-label"), name


def test_headline_figures_and_advice_are_there(opened):
    assert opened.page.locator(".card h3").all_inner_texts() == [
        "Log loss",
        "Normalised entropy",
        "ECE",
        "Observed / expected",
        "Worst group",
    ]
    advice = opened.page.locator(".advice li").all_inner_texts()
    assert "Calibration helps on this log" in advice[0]
    assert len(advice) >= 3


def test_columns_sort_both_ways_and_say_so(opened):
    for key, column in (("weight", 2), ("rate", 3), ("before", 4), ("after", 5)):
        button = opened.page.locator(f"#contexts [data-key={key}]")
        heading = opened.page.locator(f"#contexts thead th:has([data-key={key}])")
        button.click()
        down = opened.numbers(column)
        assert heading.get_attribute("aria-sort") == "descending"
        assert down == sorted(down, reverse=True)
        button.click()
        assert heading.get_attribute("aria-sort") == "ascending"
        assert opened.numbers(column) == sorted(down)
    opened.page.locator("#contexts [data-key=context]").click()
    assert opened.first_column()[:5] == ["app · 0", "app · 1", "app · 2", "app · 3", "tv · 0"]
    assert opened.page.locator("#contexts thead th[aria-sort=ascending]").count() == 1


def test_the_worst_come_first(opened):
    first = opened.page.locator("#contexts thead th[aria-sort=descending]")
    assert first.inner_text().startswith("Off beyond chance")
    off = opened.page.locator("#contexts tbody td.off").all_inner_texts()
    sizes = [0.0 if cell == "no" else abs(float(cell.replace("−", "-").rstrip("%"))) for cell in off]
    assert [size > 0 for size in sizes] == sorted((size > 0 for size in sizes), reverse=True)


def test_search_finds_words_and_exact_values(opened):
    box = opened.page.get_by_label("Find a context")
    box.fill("tv")
    assert opened.matched() == 4
    assert all(text.startswith("tv") for text in opened.first_column())
    box.fill("position=3 we")
    assert opened.first_column() == ["web · 3"]
    box.fill("nothing like it")
    assert opened.first_column() == []
    assert "0 that match, of 12" in opened.page.locator("#contexts .status").inner_text()
    box.fill("")
    assert opened.matched() == 12
    opened.page.get_by_label("By", exact=True).select_option(index=1)
    assert sorted(opened.first_column()) == ["app", "tv", "web"]


def test_the_explorer_draws_what_is_chosen(opened):
    explorer = opened.page.locator("#explorer")
    assert explorer.get_attribute("data-curves") == "2"
    drawing = opened.page.locator("#explorer-curves svg")
    before = drawing.inner_html()
    box = opened.page.get_by_label("Add a context")
    box.fill("web 2")
    opened.page.locator("#curve-options li").first.click()
    opened.page.wait_for_selector("#explorer[data-curves='3']")
    changed = "before => document.querySelector('#explorer-curves svg').innerHTML !== before"
    opened.page.wait_for_function(changed, arg=before)
    assert "web · 2" in opened.page.locator(".readout tbody th").all_inner_texts()
    lines = opened.page.locator("#explorer-curves .mark-line.role-mark path")
    assert lines.count() == 4  # three curves and the diagonal
    opened.page.get_by_role("button", name="Remove web · 2").click()
    opened.page.wait_for_selector("#explorer[data-curves='2']")


def test_a_row_of_the_table_leads_to_its_curve(opened):
    shown = opened.page.locator("#explorer .chips").inner_text()
    name = next(name for name in ("app · 1", "app · 2") if name not in shown)
    opened.page.get_by_role("button", name=f"Show the curve of {name}").click()
    opened.page.wait_for_selector("#explorer[data-curves='3']")
    assert name in opened.page.locator("#explorer [role=status]").inner_text()


def test_curves_on_the_page_are_the_curves(opened):
    curves = fitted(simulated(20_000, seed=1))
    shown = opened.page.locator(".readout tbody tr").first
    assert shown.locator("th").inner_text() == "all rows"
    raw = opened.page.locator(".readout thead th").all_inner_texts()[1:]
    cells = shown.locator("td").all_inner_texts()
    checked = 0
    for score, cell in zip(raw, cells, strict=True):
        if cell != "–":
            prob = float(score.rstrip("%")) / 100
            expected = curves.predict_proba([np.log(prob / (1 - prob))])[0]
            assert float(cell.split("%")[0]) / 100 == pytest.approx(expected, rel=0.01)
            checked += 1
    assert checked >= 2


def test_everything_can_be_reached_and_worked_by_keyboard(opened):
    page = opened.page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUS))
    assert reached[0] == "Skip to the figures"
    for name in ("context-search", "context-table", "weight", "curve", "curve-search"):
        assert name in reached, name
    page.locator("#contexts [data-key=weight]").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#contexts thead th[aria-sort=descending]").inner_text().startswith("Rows")
    page.locator("#curve-search").focus()
    page.keyboard.type("tv")
    page.keyboard.press("ArrowDown")
    assert page.locator("#curve-search").get_attribute("aria-activedescendant") == "curve-option-1"
    page.keyboard.press("Enter")
    page.wait_for_selector("#explorer[data-curves='3']")
    assert page.locator("#curve-search").get_attribute("aria-expanded") == "false"


def test_controls_and_tables_have_names(opened):
    nameless = opened.page.evaluate(NAMELESS)
    assert nameless == []
    assert opened.page.locator("html").get_attribute("lang") == "en"
    assert opened.page.locator("h1").count() == 1
    levels = opened.page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((heading) => +heading.tagName[1])")
    assert all(two - one <= 1 for one, two in pairwise(levels))


def test_ten_thousand_contexts_keep_one_page_of_rows(many):
    page = many.page
    assert page.evaluate("document.querySelectorAll('#contexts tbody tr').length") == PAGE_ROWS
    assert many.matched() == 10_000
    page.evaluate(
        """() => {
          window.added = 0;
          new MutationObserver((changes) => changes.forEach((change) => { window.added += change.addedNodes.length; }))
            .observe(document.querySelector('#contexts tbody'), { childList: true });
        }"""
    )
    box = page.get_by_label("Find a context")
    for query, matched in (
        ("tv", 2500),
        ("device=tv advertiser-12", 111),
        ("advertiser=advertiser-12", 4),
        ("", 10_000),
    ):
        box.fill(query)
        assert many.matched() == matched
        assert page.evaluate("document.querySelectorAll('#contexts tbody tr').length") == min(PAGE_ROWS, matched)
    assert page.evaluate("window.added") <= 4 * PAGE_ROWS
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    page.get_by_role("button", name="Next").click()
    assert "26 to 50 of 10,000" in page.locator("#contexts .status").inner_text()


def test_ten_thousand_curves_are_at_hand(many, large):
    assert large.stat().st_size < 3e6
    box = many.page.get_by_label("Add a context")
    box.fill("advertiser=advertiser-2499")
    options = many.page.locator("#curve-options li")
    assert options.count() == 4
    options.first.click()
    many.page.wait_for_selector("#explorer[data-curves='3']")
    box.fill("adv")
    assert many.page.locator("#curve-options li").count() == 30


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_dark_and_print_need_no_redrawing(browser, small, scheme):
    opened = Opened(browser, small, color_scheme=scheme)
    colour = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('#reliability .role-axis-label text')).fill"
    assert opened.page.evaluate(colour) == ("rgb(253, 252, 250)" if scheme == "light" else "rgb(21, 24, 27)")
    assert opened.page.evaluate(text) == ("rgb(100, 108, 117)" if scheme == "light" else "rgb(160, 166, 173)")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate(text) == "rgb(100, 108, 117)"
    assert not opened.page.locator("nav").is_visible()
    pdf = opened.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    opened.context.close()
    assert opened.complaints == []


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"])
def test_every_day_is_named_once_wherever_the_page_is_read(browser, small, zone):
    opened = Opened(browser, small, timezone_id=zone)
    labels = opened.page.locator("#daily .role-axis-label text").evaluate_all(
        "all => all.map((one) => one.textContent)"
    )
    assert labels[:5] == ["1 Mar", "2 Mar", "3 Mar", "4 Mar", "5 Mar"]
    opened.context.close()


def test_a_phone_never_scrolls_sideways(browser, small):
    opened = Opened(browser, small, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    assert opened.page.evaluate(WIDE) == 0
    opened.context.close()
    assert opened.complaints == []


# What a log may call things, and how a page shows it.
ODD = {
    "__proto__": "__proto__",
    "constructor": "constructor",
    "hasOwnProperty": "hasOwnProperty",
    "a\u2028b\u2029c": "a\\u2028b\\u2029c",
    "two\nlines\r\n": "two\\nlines\\r\\n",
    "a\0b": "a\\x00b",
    "\x1b[31mred\x9b": "\\x1b[31mred\\x9b",
    "": "(empty)",
    "  ": "(blank)",
    "</script><!--<script>": "</script><!--<script>",
    "\"'&amp;<b>": "\"'&amp;<b>",
    "$title ${x} `y` \\u003c": "$title ${x} `y` \\u003c",
    "#0b6e75": "#0b6e75",  # the accent of charts
    "family 👩‍👩‍👧 🏳️‍🌈": "family 👩‍👩‍👧 🏳️‍🌈",
    "שלום": "\u2068שלום\u2069",
    "abc\u202edef": "abc\\u202edef",
    "long " + "x" * 5000: "long " + "x" * 35 + "…" + "x" * 39,
    None: "(missing)",
}


def test_any_value_of_a_context_is_shown(browser, tmp_path):
    log = simulated(4000)
    found = {name: shown for name, shown in ODD.items() if name != "a\0b"}  # contexts with NUL are refused
    values = np.array([*found, "web"], dtype=object)
    log["device"] = values[np.arange(4000) % len(values)]
    path = report.write(tmp_path / "odd.html", log, Curves.identity(Grid()), contexts=["device", "position"])
    opened = Opened(browser, path)
    page = opened.page
    page.get_by_label("By", exact=True).select_option(index=1)
    assert sorted(opened.first_column()) == sorted([*found.values(), "web"])
    names = page.locator("#heat-1 .role-axis-label text").evaluate_all("all => all.map((one) => one.textContent)")
    assert {"constructor", "__proto__", "(empty)", "(missing)", "#0b6e75"} <= set(names)
    assert page.locator("#heat-1 .mark-rect path").count() == 4 * len(values)
    for _ in range(2):
        page.locator(".chips button").first.click()
    box = page.get_by_label("Add a context")
    for word in ("__proto__", "constructor", "u2028b"):
        box.fill(word)
        page.locator("#curve-options li").first.click()
    page.wait_for_selector("#explorer[data-curves='3']")
    assert page.locator("#explorer-curves .mark-line.role-mark path").count() == 4  # three curves and the diagonal
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    opened.context.close()
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


@pytest.mark.parametrize("name", [name for name in ODD if name is not None])
def test_any_name_of_a_column_and_of_a_page_is_shown(browser, tmp_path, name):
    log = simulated(500)
    log[name] = log.pop("device")
    names = [name, "position"]
    bias = dual_curves(feature=name) if name.strip() else None
    path = report.write(
        tmp_path / "odd.html", log, Curves.identity(Grid()), contexts=names, bias=bias, title=name or None
    )
    opened = Opened(browser, path, viewport={"width": 390, "height": 844})
    page = opened.page
    assert page.locator("h1").inner_text() == (ODD[name] if name else "Calibration, before and after")
    assert page.locator("#contexts [data-key=context]").inner_text() == f"{ODD[name]} · position"
    empty = "!one.querySelector('svg .role-mark path, svg .role-mark text')"
    assert page.evaluate(f"[...document.querySelectorAll('.chart')].filter((one) => {empty}).length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#heat-1 .mark-rect path").first.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert ODD[name][:10] in page.locator("#vg-tooltip-element").inner_text()
    opened.context.close()
    assert opened.complaints == []


@pytest.mark.parametrize("score", [1e308, -1e308, 1e9])
def test_a_score_beyond_all_bounds_is_drawn_and_told(browser, tmp_path, score):
    log = simulated(500)
    log["score"][:5] = score
    path = report.write(tmp_path / "far.html", log, fitted(simulated(500)), date="when")
    opened = Opened(browser, path)
    text = opened.page.locator("main").inner_text()
    assert "1.00% of rows have a score outside the grid" in text
    assert not {"nan", "inf", "NaN", "Infinity", "undefined"} & set(text.split())
    opened.context.close()
    assert opened.complaints == []


def test_values_that_look_like_markup_stay_text(browser, tmp_path):
    log = simulated(500)
    log["device"] = np.where(log["device"] == "tv", "</script><img src=x onerror=alert(1)>", log["device"])
    path = report.write(tmp_path / "odd.html", log, Curves.identity(Grid()), contexts=["device"], title="<i>odd</i>")
    opened = Opened(browser, path)
    assert any("<img" in text for text in opened.first_column())
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("h1").inner_text() == "<i>odd</i>"
    opened.context.close()
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_a_link_opens_the_same_view(browser, small):
    """What was searched, sorted and drawn is in the address, and only there."""
    opened = Opened(browser, small, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    page.fill("#context-search", "a")
    page.click("#contexts thead button[data-key=weight]")
    page.locator("#contexts tbody button").first.click()
    page.wait_for_timeout(300)
    shown = page.locator(".chips button").all_inner_texts()
    page.click("#copy-link")
    page.wait_for_function("document.querySelector('.share [role=status]').textContent !== ''")
    link, rows = page.evaluate("location.href"), opened.first_column()
    assert link.startswith(f"{small.as_uri()}#view=")
    opened.context.close()
    again = browser.new_page()
    again.goto(link)
    again.wait_for_selector("html[data-ready=yes]")
    assert again.locator("#contexts tbody th").all_inner_texts() == rows
    assert again.locator("#context-search").input_value() == "a"
    assert again.locator(".chips button").all_inner_texts() == shown
    again.close()


@pytest.mark.parametrize("view", ["%7B", "null", "[]", '{"table":{"table":99},"curves":[{"curve":-5,"row":9999}]}'])
def test_a_link_that_makes_no_sense_opens_the_page_as_it_is(browser, small, view):
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{small.as_uri()}#view={view}")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#contexts tbody tr").count() > 0
    assert problems == []
    page.close()


def test_every_figure_is_explained_in_one_sentence(opened):
    page = opened.page
    figures = page.locator("figure, .card").count()
    assert page.locator(".why").count() == figures
    first = page.locator(".why").first
    assert not first.locator("p").is_visible()
    first.locator("summary").click()
    assert first.locator("p").inner_text().count(".") == 1
    assert first.locator("p").is_visible()


@pytest.mark.parametrize(("chart", "says"), [("reliability", "rows"), ("density", "rows"), ("daily", "rows")])
def test_near_a_line_or_a_bar_the_tooltip_shows_counts(opened, chart, says):
    """Ten pixels from a mark, and not only on it."""
    page = opened.page
    area = page.locator(f"#{chart}")
    area.scroll_into_view_if_needed()
    mark = area.locator("svg [opacity='0'] , svg path[opacity='0']").nth(3)
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - min(9, box["width"] / 2 - 1), box["y"] + box["height"] / 2)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert says in page.locator("#vg-tooltip-element").inner_text()
