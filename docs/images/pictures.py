"""Draw the pictures of the guides, light and dark: ``python docs/images/pictures.py`` writes them beside this file.

Charts are drawn from simulated logs or from the numbers in docs/reproduced; parts of the report page and of the
explainer are photographed by chromium. Names may be given to draw only those:
``python docs/images/pictures.py overview``.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import altair as alt
import numpy as np
import pyarrow as pa
import vl_convert
from PIL import Image

import isolayer
from isolayer import Histogram, IsotonicCalibrator, metrics
from isolayer.monitor import check
from isolayer.report import plot_curves, write, write_audit
from isolayer.report.history import ratio_chart
from isolayer.report.theme import COLOUR, PALETTE, styled
from isolayer.simulate import scored_log

HERE = Path(__file__).parent
MODES = {"light": 0, "dark": 1}


def save(chart, name, scale=1.6):
    """One chart as two pictures, in the light and in the dark palette."""
    text = json.dumps(chart.to_dict())
    for mode, place in MODES.items():
        drawn = text
        for light, dark in PALETTE.values():
            drawn = drawn.replace(light, (light, dark)[place])
        spec = json.loads(drawn)
        spec.setdefault("config", {}).update(
            background=PALETTE["paper"][place], padding=14, font="DejaVu Sans, sans-serif"
        )
        path = HERE / f"{name}-{mode}.png"
        path.write_bytes(vl_convert.vegalite_to_png(spec, scale=scale))
        shrink(path)


def shrink(path):
    """Keep 128 colours of a picture, which no eye can tell from all of them."""
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def fitted(rows=200_000):
    """A calibrator of half of the users of a log, and the rows of the others with both probabilities."""
    log = scored_log(rows, 14)
    past = log["user"] % 2 == 0
    frame = {name: log[name] for name in ("prob", "surface")}
    calibrator = IsotonicCalibrator(("surface",), scale="prob")
    calibrator.fit({name: column[past] for name, column in frame.items()}, log["click"][past], score="prob")
    rest = {name: column[~past] for name, column in log.items()}
    rest["calibrated"] = calibrator.predict_proba({name: rest[name] for name in frame})[:, 1]
    return calibrator, rest


def overview():
    """The tension: right on the whole, wrong on every surface; and after calibration."""
    _, log = fitted()
    rows = []
    for name, column in (("before", "prob"), ("after", "calibrated")):
        for by in (np.full(len(log["click"]), "all surfaces"), log["surface"]):
            table = metrics.observed_over_expected(log["click"], log[column], by)
            for where, ratio, lower, upper in zip(table.context, table.ratio, table.lower, table.upper, strict=True):
                rows.append({"where": str(where), "when": name, "ratio": ratio, "lower": lower, "upper": upper})
    order = ["all surfaces", "feed", "search", "email", "push"]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("where:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False, labelFontSize=13)),
        yOffset=alt.YOffset("when:N", sort=["before", "after"]),
        color=alt.Color(
            "when:N",
            sort=["before", "after"],
            scale=alt.Scale(domain=["before", "after"], range=[COLOUR["series2"], COLOUR["accent"]]),
            legend=alt.Legend(title=None, orient="top", labelFontSize=12),
        ),
    )
    scale = alt.Scale(type="log", domain=[0.45, 1.6], nice=False)
    ticks = alt.Axis(values=[0.5, 0.67, 0.8, 1, 1.25, 1.5], format=".2~f", title="observed clicks / predicted clicks")
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(x=alt.X("ratio:Q", scale=scale, axis=ticks))
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("lower:Q", scale=scale), x2="upper:Q")
    line = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(color=COLOUR["muted"], strokeDash=[4, 3])
    chart = alt.layer(line.encode(x=alt.X("one:Q", scale=scale)), bars, dots).properties(width=520, height=230)
    save(styled(chart, "Right on the whole, wrong on every surface; on users that the fit has not seen"), "overview")


def curves():
    """One curve per surface."""
    calibrator, _ = fitted()
    chart = plot_curves(calibrator.curves_, {"surface": ["feed", "search", "email", "push"]})
    save(chart, "curves")


def falling():
    """What a monotone curve does where the rate falls, and what a free one does."""
    random = np.random.default_rng(0)
    score = random.normal(0, 1.5, 60_000)
    rate = (0.3 - 0.08 * np.abs(score - 0.4)).clip(0.01)
    click = random.random(len(score)) < rate
    grid = np.linspace(-3.5, 3.5, 141)
    rows = [{"score": x, "prob": max(0.3 - 0.08 * abs(x - 0.4), 0.01), "what": "true rate"} for x in grid]
    for name, monotone in (("monotone", True), ("monotone=False", False)):
        prob = IsotonicCalibrator(monotone=monotone).fit(score, click).predict_proba(grid)[:, 1]
        rows += [{"score": x, "prob": p, "what": name} for x, p in zip(grid, prob, strict=True)]
    save(styled(_lines(rows, "score", "prob", "what", "probability")), "falling")


def steps():
    """scikit-learn's steps and our curve, on few rows."""
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(3)
    score = random.normal(0, 1.2, 600)
    click = random.random(600) < 1 / (1 + np.exp(1 - 0.8 * score))
    grid = np.linspace(-3, 3, 301)
    both = {
        "IsotonicRegression": IsotonicRegression(out_of_bounds="clip").fit(score, click).predict(grid),
        "IsotonicCalibrator": IsotonicCalibrator().fit(score, click).predict_proba(grid)[:, 1],
        "true rate": 1 / (1 + np.exp(1 - 0.8 * grid)),
    }
    rows = [
        {"score": x, "prob": p, "what": name} for name, prob in both.items() for x, p in zip(grid, prob, strict=True)
    ]
    save(styled(_lines(rows, "score", "prob", "what", "probability")), "steps")


def shrinkage():
    """Curves of contexts with ever more rows, and that of all rows."""
    random = np.random.default_rng(8)
    sizes = {"all rows": 0, "10 rows": 10, "300 rows": 300, "30,000 rows": 30_000}
    others = [np.full(2_000, f"other {place}") for place in range(40)]
    context = np.concatenate([*others, *(np.full(n, name) for name, n in sizes.items() if n)])
    score = random.normal(-1, 1.2, len(context))
    shift = np.where(
        np.char.startswith(context, "other"), np.resize(np.repeat(random.normal(0, 0.6, 40), 2_000), len(context)), 1.5
    )
    click = random.random(len(context)) < 1 / (1 + np.exp(-score - shift))
    calibrator = IsotonicCalibrator(("context",)).fit({"score": score, "context": context}, click)
    grid = np.linspace(-4, 2, 121)
    rows = []
    for name in sizes:
        where = "never seen" if name == "all rows" else name
        prob = calibrator.predict_proba({"score": grid, "context": np.full(len(grid), where)})[:, 1]
        rows += [{"score": x, "prob": p, "what": name} for x, p in zip(grid, prob, strict=True)]
    save(styled(_lines(rows, "score", "prob", "what", "calibrated probability")), "shrinkage")


def debias():
    """How far rankers that learn from biased clicks come, from the numbers of the benchmark."""
    document = json.loads((HERE.parent / "reproduced" / "debias-benchmark.json").read_text())
    rows = [
        {"name": row["name"].removeprefix("trust, spurious: "), **row["ours"]}
        for row in document["rows"]
        if row["metric"] == "nDCG@10" and row["name"].startswith("trust, spurious: ") and "advised" not in row["name"]
    ]
    rows.sort(key=lambda row: -row["value"])
    y = alt.Y(
        "name:N",
        sort=[row["name"] for row in rows],
        title=None,
        axis=alt.Axis(ticks=False, domain=False, labelLimit=240),
    )
    x = alt.Scale(zero=False, nice=True)
    data = alt.Chart(alt.Data(values=rows)).encode(y=y)
    dots = data.mark_point(filled=True, size=80, opacity=1, color=COLOUR["accent"])
    bars = data.mark_rule(color=COLOUR["accent"], strokeWidth=2)
    chart = alt.layer(
        bars.encode(x=alt.X("lower:Q", scale=x), x2="upper:Q"),
        dots.encode(x=alt.X("value:Q", scale=x, title="nDCG@10 against true relevance, with 95% intervals")),
    ).properties(width=420, height=24 * max(1, len(rows)))
    save(styled(chart), "debias")


def nightly():
    """A history of nightly checks: a fit on two weeks, then three weeks of checks; clicks are lost on the last days."""
    log, random = scored_log(250_000, 35), np.random.default_rng(1)
    day = random.integers(0, 35, len(log["click"]))  # at random, so that only the last days differ
    click = log["click"] * (random.random(len(day)) < np.where(day >= 32, 0.8, 1.0))  # a fifth of the clicks is lost
    calibrator = IsotonicCalibrator(("surface",), scale="prob")
    frame = {name: log[name] for name in ("prob", "surface")}
    calibrator.fit({name: column[day < 14] for name, column in frame.items()}, click[day < 14], score="prob")
    curves, checks = calibrator.curves_, []
    for today in range(14, 35):
        at = day == today
        logit = np.log(log["prob"][at] / (1 - log["prob"][at]))
        sums = Histogram.from_arrays(
            logit, click[at], {"surface": log["surface"][at]}, fold=log["user"][at] % 100, grid=curves.grid
        )
        found = check(curves, sums, clustered=True)
        ends = (float(found.lower[0]), float(found.upper[0]))
        figures = {"o_over_e": float(found.ratio[0]), "o_over_e_from": ends[0], "o_over_e_to": ends[1]}
        verdict = "holds" if found.holds else "drifted"
        checks.append(
            {
                "day": str(np.datetime64("2026-10-19") + today)[5:],
                "verdict": verdict,
                "rows": float(at.sum()),
                **figures,
            }
        )
    table = pa.Table.from_pylist([{"in_sample": False, **one} for one in checks])
    chart = ratio_chart(table).properties(width=560, height=220)
    save(styled(chart, "Nightly checks: observed / expected clicks of each day"), "nightly")


def _lines(rows, x, y, series, title):
    names = list(dict.fromkeys(row[series] for row in rows))
    colours = [COLOUR[name] for name in ("raw", "series2", "series3", "accent")]
    colours = [*colours[: len(names) - 1], COLOUR["accent"]] if len(names) < 4 else colours
    colour = alt.Color(
        f"{series}:N",
        sort=names,
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, labelFontSize=12),
    )
    axes = {"x": alt.X(f"{x}:Q", title="raw score"), "y": alt.Y(f"{y}:Q", title=title, axis=alt.Axis(format=".0%"))}
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=2.5)
        .encode(**axes, color=colour)
        .properties(width=420, height=250)
    )


def photographs():
    """Parts of the report page and of the explainer, as people see them."""
    from playwright.sync_api import sync_playwright

    calibrator, log = fitted()
    rows = {name: log[name] for name in ("prob", "surface", "click", "day")}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        title = "A feed, on users that were left out"
        write(page_file, rows, calibrator.curves_, score="prob", label="click", date="day", title=title)
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for mode in MODES:
            page = browser.new_page(viewport={"width": 1000, "height": 760}, color_scheme=mode)
            page.goto(page_file.as_uri())
            page.wait_for_selector("#explorer-curves svg")
            page.wait_for_timeout(400)
            page.screenshot(path=HERE / f"report-{mode}.png", clip={"x": 0, "y": 0, "width": 1000, "height": 640})
            parts = {"reliability": "#reliability-part", "contexts": "#contexts-part", "explorer": "#explorer-part"}
            for name, selector in (parts | {"daily": "#daily-part"}).items():
                if page.locator(selector).count():
                    page.locator(selector).screenshot(path=HERE / f"{name}-{mode}.png")
            page.goto((HERE.parent / "explainer.html").as_uri())
            page.wait_for_timeout(300)
            page.locator("main").screenshot(path=HERE / f"explainer-{mode}.png")
            page.close()
        browser.close()
    for name in ("report", "reliability", "contexts", "explorer", "daily", "explainer"):
        for mode in MODES:
            shrink(HERE / f"{name}-{mode}.png")


def audit():
    """The page of an audit."""
    from playwright.sync_api import sync_playwright

    log = scored_log(40_000, 14)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "audit.html"
        found = isolayer.audit(log, score="prob", label="click", scale="prob", cluster="user")
        write_audit(page_file, found, title="Where a score is wrong")
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for mode in MODES:
            page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme=mode)
            page.goto(page_file.as_uri())
            page.wait_for_timeout(800)
            page.screenshot(path=HERE / f"audit-{mode}.png")
            page.close()
        browser.close()
    for mode in MODES:
        shrink(HERE / f"audit-{mode}.png")


PICTURES = (overview, curves, falling, steps, shrinkage, debias, nightly, photographs, audit)
ALL = {each.__name__: each for each in PICTURES}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or ALL:
        ALL[chosen]()
