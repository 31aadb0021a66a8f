"""What a report says: numbers against their oracles and laws, sentences by rule, and a page that holds together."""

from __future__ import annotations

import base64
import gzip
import json
import re
import unicodedata
from dataclasses import fields, is_dataclass, replace

import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from isolayer import Grid, InputError, metrics, report
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.fitting.histogram import Histogram
from isolayer.report import charts, evidence, pack, page, theme
from isolayer.report.advice import advise
from isolayer.report.bias import learned_bias
from isolayer.report.evidence import gather
from isolayer.report.rows import days, from_histogram, from_log
from isolayer.report.words import LONGEST, readable

CONTEXTS = ("device", "position")


def simulated(rows=4000, seed=0, *, days=5):
    """A log whose score is far too high on one device and a little too low in low positions."""
    rng = np.random.default_rng(seed)
    device = rng.choice(["app", "tv", "web"], rows, p=[0.6, 0.1, 0.3])
    position = rng.integers(0, 4, rows)
    truth = rng.normal(-1.5, 1.0, rows)
    score = 1.1 * truth - 0.1 * position + 2.0 * (device == "tv")
    return {
        "score": score,
        "label": (rng.random(rows) < prob_of(truth)).astype(int),
        "device": device,
        "position": position,
        "when": np.datetime64("2026-03-01") + rng.integers(0, days, rows),
    }


def fitted(log, contexts=CONTEXTS):
    return Curves.from_histogram(
        Histogram.from_arrays(log["score"], log["label"], {name: log[name] for name in contexts})
    )


@pytest.fixture(scope="module")
def log():
    return simulated()


@pytest.fixture(scope="module")
def curves():
    return fitted(simulated(seed=1))


@pytest.fixture(scope="module")
def found(log, curves):
    return gather(from_log(log, curves, date="when"), curves)


def numbers_in(thing):
    """Every number of a nest of dataclasses and tuples, in order."""
    if is_dataclass(thing):
        return [number for field in fields(thing) for number in numbers_in(getattr(thing, field.name))]
    if isinstance(thing, tuple):
        return [number for part in thing for number in numbers_in(part)]
    values = np.asarray(thing)
    return values.ravel().tolist() if values.dtype.kind in "iufb" else []


def test_headline_figures_are_those_of_the_metrics(log, curves, found):
    before, after = prob_of(log["score"]), curves.predict_proba(log["score"], log)
    by_name = {figure.name: figure for figure in found.figures}
    oracles = {
        "Log loss": metrics.log_loss,
        "Normalised entropy": metrics.normalised_entropy,
        "ECE": metrics.ece,
        "Observed / expected": lambda label, prob: 1 / metrics.pcoc(label, prob),
    }
    assert list(by_name) == list(oracles)
    for name, oracle in oracles.items():
        for estimate, prob in ((by_name[name].before, before), (by_name[name].after, after)):
            assert estimate.value == pytest.approx(oracle(log["label"], prob), rel=1e-9)
            assert estimate.lower <= estimate.value <= estimate.upper
    assert by_name["Log loss"].change.value == pytest.approx(
        metrics.delta_ne_percent(log["label"], after, before), rel=1e-9
    )


def test_intervals_have_the_width_of_a_bootstrap(log, curves):
    rows = from_log(log, curves)
    rng = np.random.default_rng(0)
    draws = {"Log loss": [], "Normalised entropy": [], "Observed / expected": [], "change": [], "ECE": []}
    for _ in range(300):
        weight = rng.multinomial(len(rows.label), np.full(len(rows.label), 1 / len(rows.label))).astype(float)
        keep = weight > 0
        args = rows.label[keep], rows.before[keep], weight[keep]
        draws["Log loss"].append(metrics.log_loss(*args))
        draws["Normalised entropy"].append(metrics.normalised_entropy(*args))
        draws["Observed / expected"].append(1 / metrics.pcoc(*args))
        draws["change"].append(metrics.delta_ne_percent(rows.label[keep], rows.after[keep], *args[1:]))
        draws["ECE"].append(metrics.ece(*args))
    figures = {figure.name: figure for figure in gather(rows, curves).figures}
    half = {name: figure.before.upper - figure.before.value for name, figure in figures.items()}
    half["change"] = figures["Log loss"].change.upper - figures["Log loss"].change.value
    for name, values in draws.items():
        assert half[name] == pytest.approx(1.96 * np.std(values), rel=0.25), name


def test_the_floor_of_ece_is_what_perfect_scores_show():
    rng = np.random.default_rng(3)
    prob = rng.beta(2, 8, 2000)
    shown = [metrics.BinSums.of_distinct(rng.random(2000) < prob, prob) for _ in range(60)]
    assert np.mean([part.ece() for part in shown]) == pytest.approx(evidence.ece_floor(shown[0]), rel=0.1)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20), rows=st.integers(4, 60))
def test_weight_two_is_the_row_twice(seed, rows):
    rng = np.random.default_rng(seed)
    log = {name: column[:rows] for name, column in simulated(60, seed).items()}
    log["score"] = np.round(log["score"], 1)  # with ties
    log["label"][:2] = 0, 1
    weight = rng.integers(0, 3, rows)
    weight[:2] = 1
    curves = Curves.identity(Grid())
    settings_ = {"contexts": CONTEXTS, "date": "when"}
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(evidence, "DOT_WEIGHT", 2.0)
    weighted = gather(from_log({**log, "w": weight}, curves, weight="w", **settings_), curves)
    rows = {name: np.repeat(column, weight) for name, column in log.items()}
    repeated = gather(from_log(rows, curves, **settings_), curves)
    monkeypatch.undo()
    assert_allclose(numbers_in(replace(weighted, rows=0)), numbers_in(replace(repeated, rows=0)), rtol=1e-7, atol=1e-9)


def test_contexts_are_those_of_the_metrics_and_the_worst_come_first(log, curves, found):
    table = found.tables[0]
    oracle = metrics.observed_over_expected(
        log["label"], curves.predict_proba(log["score"], log), {name: log[name] for name in CONTEXTS}
    )
    place = {
        key: row for row, key in enumerate(zip(*(column.tolist() for column in oracle.context.values()), strict=True))
    }
    order = [place[key] for key in zip(*(key.tolist() for key in table.keys), strict=True)]
    assert sorted(order) == list(range(12))
    assert_allclose(table.after.ratio, oracle.ratio[order])
    assert_allclose(table.after.lower, oracle.lower[order])
    assert (np.diff(np.abs(np.log1p(table.off))) <= 0).all()
    wide = metrics.observed_over_expected(
        log["label"],
        curves.predict_proba(log["score"], log),
        {name: log[name] for name in CONTEXTS},
        level=1 - 0.05 / 12,
    )
    assert_allclose(table.off > 0, (wide.lower > 1)[order])
    assert table.outside[1] == ((wide.lower > 1) | (wide.upper < 1)).sum()
    assert [part.names for part in found.tables] == [CONTEXTS, ("device",), ("position",)]


def test_contexts_are_judged_together_and_not_on_a_handful_of_rows():
    random = np.random.default_rng(0)
    context = np.concatenate([np.repeat(np.arange(400), 100), np.repeat(400, 12), np.repeat(401, 400)])
    prob = np.full(len(context), 0.2)
    label = (random.random(len(context)) < np.where(context == 401, 0.4, prob)).astype(float)
    label[context == 400] = 1.0  # twelve rows, all of them events
    log = {"score": np.log(prob / (1 - prob)), "label": label, "shop": context}
    plain = Curves.identity(Grid())
    table = gather(from_log(log, plain, contexts=["shop"]), plain).tables[0]
    alone = (table.after.lower > 1) | (table.after.upper < 1)
    assert alone.sum() > 10  # of 400 right ones about twenty, each looked at by itself
    assert np.flatnonzero(table.off).tolist() == [0]
    assert table.keys[0][0] == 401
    assert (table.judged, table.outside) == (401, (1, 1))


def test_the_worst_is_what_calibration_leaves_not_what_it_found(log, curves):
    web = curves.rows_of({"device": ["web"] * 4, "position": [0, 1, 2, 3]}, 4)
    values = curves.values.copy()
    values[web] += 3.0
    spoilt = replace(curves, values=values)
    assert set(gather(from_log(log, spoilt), spoilt).tables[0].keys[0][:4]) == {"web"}


def test_of_too_many_contexts_the_worst_are_kept(log, curves, monkeypatch):
    whole = gather(from_log(log, curves), curves).tables[0]
    monkeypatch.setattr(evidence, "TABLE_ROWS", 5)
    part = gather(from_log(log, curves), curves)
    assert part.tables[0].total == 12
    assert_array_equal(part.tables[0].after.ratio, whole.after.ratio[:5])
    assert len(part.dots.start) == 6


def test_every_context_knows_its_curve(log, curves, found):
    table, first = found.tables[0], found.tables[1]
    assert_array_equal(table.curve, curves.rows_of(dict(zip(CONTEXTS, table.keys, strict=True)), len(table.curve)))
    assert_array_equal(first.curve, curves.rows_of({"device": first.keys[0]}, 3, depth=1))
    assert (found.tables[2].curve == -1).all()  # a position is served by the curves of several devices


def test_dots_are_rates_of_rows_in_order_of_score(log, curves, found):
    table, dots = found.tables[0], found.dots
    row = int(np.argmax(table.after.weight))
    own = (log["device"] == table.keys[0][row]) & (log["position"] == table.keys[1][row])
    order = np.argsort(log["score"][own])
    parts = np.array_split(log["label"][own][order], evidence.DOTS)
    shown = dots.rate[dots.start[row] : dots.start[row + 1]]
    assert_allclose(shown, [part.mean() for part in parts], atol=0.01)
    assert (np.diff(dots.prob[dots.start[row] : dots.start[row + 1]]) > 0).all()


def test_days_are_those_of_the_metrics(log, curves, found):
    oracle = metrics.daily_scores(log["label"], curves.predict_proba(log["score"], log), log["when"])
    assert_array_equal(found.daily.day, oracle.day)
    assert_allclose(found.daily.after, oracle.mean_prob)
    assert_allclose(found.daily.rate, oracle.mean_label)
    assert ((found.daily.lower < found.daily.rate) & (found.daily.rate < found.daily.upper)).all()


def test_what_the_curves_have_not_seen_is_counted(log):
    part = {name: column[log["device"] != "tv"] for name, column in log.items()}
    curves = fitted(part)
    assert gather(from_log(log, curves), curves).unseen == pytest.approx(np.mean(log["device"] == "tv"))
    narrow = Curves.identity(Grid(lower=-2, upper=0, step=0.5))
    outside = np.mean((log["score"] < -2) | (log["score"] > 0))
    assert gather(from_log(log, narrow), narrow).beyond == pytest.approx(outside)


def test_a_histogram_tells_what_its_rows_tell(log, curves):
    context = {name: log[name] for name in CONTEXTS}
    rows = from_histogram(Histogram.from_arrays(log["score"], log["label"], context), curves)
    binned, exact = gather(rows, curves), gather(from_log(log, curves), curves)
    assert binned.in_sample
    assert not exact.in_sample
    assert binned.weight == exact.weight
    for one, two in zip(binned.figures, exact.figures, strict=True):
        assert_allclose(one.before, two.before, rtol=0.01, atol=2e-3)
        assert_allclose(one.after, two.after, rtol=0.01, atol=2e-3)
    assert_allclose(np.sort(binned.tables[0].before.ratio), np.sort(exact.tables[0].before.ratio), rtol=1e-3)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_are_read_alike(frame, log, curves, found):
    assert_allclose(
        numbers_in(gather(from_log(frame(log), curves, date="when"), curves).tables), numbers_in(found.tables)
    )


def test_paths_globs_tables_and_relations_are_read_alike(log, curves, found, tmp_path):
    half = len(log["score"]) // 2
    for place, part in enumerate((slice(half), slice(half, None))):
        pq.write_table(pa.table({name: column[part] for name, column in log.items()}), tmp_path / f"{place}.parquet")
    pattern = str(tmp_path / "*.parquet")
    for source in (pattern, tmp_path, ibis.memtable(pa.table(log)), duckdb.from_arrow(pa.table(log))):
        rows = from_log(source, curves, date="when")
        assert_allclose(numbers_in(gather(rows, curves).figures), numbers_in(found.figures))


def test_probabilities_are_read_as_such(log, curves, found):
    probs = {**log, "score": prob_of(log["score"])}
    again = gather(from_log(probs, replace(curves, scale="prob"), date="when"), curves)
    assert_allclose(numbers_in(again.figures), numbers_in(found.figures), rtol=1e-9)


def test_a_missing_context_is_a_context(curves):
    log = {"score": [0.0, 1.0, 0.5], "label": [0, 1, 1], "device": ["tv", None, None], "position": [0, 1, 1]}
    table = gather(from_log(log, curves), curves).tables[1]
    assert {table.label(row) for row in range(2)} == {"device tv", "device (missing)"}


def dual_curves(feature="position"):
    """Curves as of a debiased model: clicks fall with position, skips rise."""
    grid = Grid(lower=-4, upper=4, step=0.5)
    task = np.repeat(["click", "skip"], 4)
    position = np.tile(np.arange(4), 2)
    keys = ((), (np.array(["click", "skip"]),), (task, position))
    shift = np.concatenate([[0, 0, 0], np.where(task == "click", -0.5, 0.25) * position])
    values = grid.knots[1:] + shift[:, None]
    return Curves(grid, ("task", feature), keys, values, np.zeros_like(values), np.zeros_like(values), np.zeros(11))


def test_the_task_is_the_label_where_the_log_does_not_say():
    curves = dual_curves()
    log = {"score": [0.0, 0.0], "click": [0, 1], "position": [0, 3]}
    rows = from_log(log, curves, label="click")
    assert_allclose(rows.calibrated, [0.0, -1.5])
    assert list(rows.keys) == ["position"]
    named = from_log({**log, "task": ["skip", "skip"]}, curves, label="click")
    assert_allclose(named.calibrated, [0.0, 0.75])
    with pytest.raises(InputError, match=r"label: expected a task of the curves, \['click', 'skip'\], got 'like'"):
        from_log({"score": [0.0], "like": [0], "position": [0]}, curves, label="like")


def test_learned_bias_is_read_off_the_curves():
    bias = learned_bias(dual_curves(), (-2, 2))
    assert bias.tasks == ("click", "skip")
    middle = prob_of(np.array([[0, -0.5, -1, -1.5], [0, 0.25, 0.5, 0.75]]))
    assert_allclose(bias.relative, middle / 0.5)
    assert_allclose(bias.observed[0, 3], bias.relevance - 1.5)
    with pytest.raises(InputError, match=r"bias: expected curves over \('task', a bias feature, ...\), got \(\)"):
        learned_bias(Curves.identity(Grid()))


def sentences(log, curves, **options):
    return {each.text: each.kind for each in advise(gather(from_log(log, curves, **options), curves))}


def says(found, start, kind):
    return any(text.startswith(start) and kind == had for text, had in found.items())


def test_the_verdict_follows_the_paired_interval(log, curves):
    assert says(sentences(log, curves), "Calibration helps on this log: log loss", "good")
    none = Curves.identity(Grid())
    assert says(sentences(log, none), "Calibration makes no clear difference", "note")
    worse = replace(none, values=none.values + 2.0)
    assert says(sentences(log, worse), "Calibration harms on this log", "act")


def test_advice_names_the_worst_context_and_what_was_not_seen(log, curves):
    plain = Curves.identity(Grid())
    found = sentences(log, plain, contexts=["device"])
    text = next(text for text in found if "beyond chance" in text)
    assert "The worst is device tv: O/E 0." in text
    part = {name: column[log["device"] != "tv"] for name, column in log.items()}
    assert any("no curve yet" in text for text in sentences(log, fitted(part)))
    assert any(
        "outside the grid" in text for text in sentences(log, Curves.identity(Grid(lower=-1, upper=0, step=0.5)))
    )
    assert not any("no curve yet" in text or "outside the grid" in text for text in sentences(log, curves))


def test_advice_tells_drift_on_the_last_day(log, curves):
    steady = sentences(log, curves, date="when")
    assert any("no sign of drift" in text for text in steady)
    last = log["when"] == log["when"].max()
    moved = {**log, "label": np.where(last, 1, log["label"])}
    assert any(
        "On the last day, 2026-03-05" in text and "drifting" in text for text in sentences(moved, curves, date="when")
    )
    random = np.random.default_rng(0).random(len(last))
    a_little = {**log, "label": np.where(last & (random < 0.06), 1, log["label"])}
    found = sentences(a_little, curves, date="when")
    assert any("only one day in 20 is this far from 1" in text for text in found)


def test_no_advice_to_serve_is_drawn_from_rows_that_were_fitted(log):
    histogram = Histogram.from_arrays(log["score"], log["label"], {"device": log["device"]})
    curves = Curves.from_histogram(histogram)
    advice = advise(gather(from_histogram(histogram, curves), curves), learned_bias(dual_curves(), (-2, 2)))
    assert advice[0].text.startswith("Calibration helps on this log")
    assert not any("Serve" in each.text for each in advice)
    assert any("for an item of medium relevance, at position 3 relative to" in each.text for each in advice)
    assert "Serve" not in next(iter(sentences(log, curves)))
    assert "Serve the calibrated score." in next(iter(sentences(simulated(seed=2), curves)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": "device"}, r"contexts: expected names in a list, got 'device'; use \['device'\]"),
        ({"score": "logit"}, r"column logit: expected it in the frame, got only \["),
        ({"date": "device"}, r"device: expected dates, got .*'\w+'\)?; give dates, ISO text or day numbers"),
        ({"date": "score"}, r"score: expected dates, got .*; give dates, ISO text or day numbers"),
        ({"label": "score"}, r"score: expected labels in \[0, 1\], got"),
    ],
)  # fmt: skip
def test_a_log_that_will_not_do_says_why(change, message, log, curves):
    with pytest.raises(InputError, match=message):
        from_log(log, curves, **change)


def test_what_is_no_log_says_so(curves):
    with pytest.raises(
        InputError, match="log: expected a frame, a dict of columns, a table or a Parquet path, got ndarray"
    ):
        from_log(np.zeros(3), curves)
    with pytest.raises(InputError, match="log: expected at least one row, got none"):
        from_log({"score": [], "label": [], "device": [], "position": []}, curves)


def test_days_come_as_dates_text_or_numbers():
    dates = np.array(["2026-03-01T23:59", "2026-03-02T00:00"], dtype="datetime64[s]")
    assert days("d", dates, 2).astype(str).tolist() == ["2026-03-01", "2026-03-02"]
    assert days("d", pd.Series(pd.to_datetime(dates)), 2).astype(str).tolist() == ["2026-03-01", "2026-03-02"]
    assert days("d", [20260301, 20260302], 2).tolist() == [20260301, 20260302]


def unpacked(packed):
    raw = gzip.decompress(base64.b64decode(packed.text()))
    columns, offset = {}, 0
    for entry in packed.manifest():
        dtype = np.dtype(entry["type"].removesuffix("Array").lower())
        columns[entry["name"]] = np.frombuffer(raw, dtype, entry["length"], offset)
        assert offset % dtype.itemsize == 0  # as a browser demands
        offset += entry["length"] * dtype.itemsize
    assert offset == len(raw)
    return columns


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_packed_ratios_keep_four_digits(values):
    values = np.array(values)
    assert_allclose(np.exp((pack.logs(values).astype(float) - 32768) / pack.LOG_STEPS), values, rtol=3e-4)
    assert pack.logs(np.array([0.0, np.nan])).tolist() == [0, 65535]


@pytest.mark.parametrize("shift", [0.0, 40.0])
def test_packed_curves_are_the_curves_where_they_have_data(curves, shift):
    packed = pack.Pack()
    curves = replace(curves, values=curves.values + shift)
    wanted = np.arange(len(curves.values))
    plain = pack.add_curves(packed, curves, wanted, (-5, 2))
    columns = unpacked(packed)
    assert plain["leftOut"] == 0
    start = 0
    names = ("row", "first", "size", "value")
    for row, first, size, value in zip(*(columns[f"curves.{name}"] for name in names), strict=True):
        part = slice(start, start + int(size))
        shown = slice(int(first), int(first) + int(size))
        value = (value + np.cumsum(columns["curves.rise"][part])) / plain["valueSteps"]
        assert_allclose(value, curves.values[row, shown], atol=6e-4)
        outside = np.ones(curves.values.shape[1], bool)
        outside[shown] = False
        assert (curves.knot_weight[row, outside] == 0).all()
        deviation = np.exp((columns["curves.deviation"][part].astype(float) - 98) / plain["coarseSteps"])
        assert_allclose(deviation, np.sqrt(curves.variance[row, shown]), rtol=0.05)
        start += int(size)


def test_of_too_many_curves_those_with_most_rows_are_kept(curves, monkeypatch):
    monkeypatch.setattr(pack, "KNOTS", 100)
    packed = pack.Pack()
    wanted = np.arange(len(curves.values))
    plain = pack.add_curves(packed, curves, wanted, (-5, 2))
    kept = unpacked(packed)["curves.row"]
    assert plain["leftOut"] == len(wanted) - len(kept) > 0
    assert kept[0] == 0
    assert curves.count[kept].min() >= np.delete(curves.count, kept).max()


def drawn(chart):
    """The picture of a chart whose specification is valid."""
    picture = vl_convert.vegalite_to_svg(chart.to_dict())
    assert "<path" in picture
    assert "NaN" not in picture
    return picture


def test_every_chart_is_valid_and_draws(found):
    parts = dict(zip((charts.BEFORE, charts.AFTER), found.reliability, strict=True))
    bias = learned_bias(dual_curves(), (-2, 2))
    for chart in (
        charts.reliability_chart(parts, [theme.COLOUR["raw"], theme.COLOUR["accent"]]),
        charts.density_chart(found.density, found.weight),
        charts.heat_chart(found.heat, charts.BEFORE),
        charts.heat_chart(found.heat, charts.AFTER),
        charts.daily_chart(found.daily),
        charts.bias_chart(bias, "click"),
        charts.relative_bias_chart(bias),
    ):
        drawn(theme.styled(chart))
    for chart in charts.explorer_charts((-5, 1)):
        chart.to_dict()


def test_notebook_charts_draw_what_they_are_given(log, curves, tmp_path):
    before, after = prob_of(log["score"]), curves.predict_proba(log["score"], log)
    assert "raw" in drawn(report.plot_reliability(log["label"], {"raw": before, "calibrated": after}))
    whole = drawn(report.plot_reliability(log["label"], before))
    assert whole != drawn(report.plot_reliability(log["label"], before, bins=5))
    assert whole != drawn(report.plot_reliability(log["label"], before, 1 + log["position"]))
    contexts = drawn(
        report.plot_observed_over_expected(log["label"], before, {name: log[name] for name in CONTEXTS}, top=3)
    )
    assert contexts.count(">tv · ") == 3
    assert "web" in drawn(report.plot_observed_over_expected(log["label"], before, log["device"], log["position"] + 1))
    named = drawn(report.plot_curves(curves, {"device": ["tv", "web"]}))
    assert ">tv<" in named
    assert ">app<" not in named
    assert drawn(report.plot_curves(curves)) != drawn(report.plot_curves(curves, level=0.5))
    report.plot_curves(curves, most=1).save(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"context: expected columns of \('device', 'position'\), got \['tab'\]"):
        report.plot_curves(curves, {"tab": [1]})


def test_charts_use_no_colour_without_a_dark_form(found):
    spec = json.dumps(page._charts(found, learned_bias(dual_curves(), (-2, 2)))) + json.dumps(page._explorer((-5, 1)))
    assert set(re.findall(r"#[0-9a-f]{6}", spec)) <= {light for light, _ in theme.PALETTE.values()}


def test_the_page_is_one_file_that_asks_for_nothing(log, curves, tmp_path):
    path = report.write(tmp_path / "report.html", log, curves, date="when", bias=dual_curves(), title="Feed <b>")
    text = path.read_text()
    assert path.stat().st_size < 1.5e6
    assert "<title>Feed &lt;b&gt;</title>" in text
    markup = re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe|object)|@import|url\(", markup)
    assert not re.search(r"<script[^>]*\ssrc=", text)
    assert "connect-src 'none'" in text
    rest = ["What to do next", "Reliability", "Contexts", "Curves", "device × position", "Day by day", "Learned bias"]
    for heading in rest:
        assert f">{heading}</h2>" in text
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    again = report.write(tmp_path / "again.html", log, curves, date="when", bias=dual_curves(), title="Feed <b>")
    assert again.read_bytes() == path.read_bytes()


def test_what_the_log_lacks_the_page_leaves_out(log, tmp_path):
    text = report.write(tmp_path / "plain.html", log, Curves.identity(Grid())).read_text()
    for heading in ("Contexts", "Day by day", "Learned bias"):
        assert f">{heading}</h2>" not in text


def test_context_values_cannot_become_markup(log, tmp_path):
    evil = {**log, "device": np.where(log["device"] == "tv", "</script><script>alert(1)</script>", log["device"])}
    text = report.write(tmp_path / "evil.html", evil, Curves.identity(Grid()), contexts=["device"]).read_text()
    assert "<script>alert(1)" not in text


def test_a_page_that_cannot_be_written_leaves_nothing(log, curves, tmp_path):
    with pytest.raises(InputError, match=r"path: expected a folder that exists, got '.*nowhere'; create it"):
        report.write(tmp_path / "nowhere" / "report.html", log, curves)
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match=r"path: expected a file, got a folder at .*taken.; name a file"):
        report.write(tmp_path / "taken", log, curves)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("named", ["log.parquet", "*.parquet", "link.parquet"])
def test_a_page_never_takes_the_place_of_its_log(log, curves, tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(log), "log.parquet")
    (tmp_path / "link.parquet").hardlink_to(tmp_path / "log.parquet")
    with pytest.raises(InputError, match=r"path: expected another file than the input, got 'log.parquet' for both"):
        report.write("log.parquet", named, curves)
    assert pq.read_table("log.parquet").num_rows == len(log["score"])


def test_one_class_and_one_row_still_make_a_page(tmp_path):
    one = {"score": [0.3], "label": [1], "device": ["tv"]}
    text = report.write(tmp_path / "one.html", one, Curves.identity(Grid()), contexts=["device"]).read_text()
    assert "Log loss" in text
    assert "Normalised entropy</h3>" not in text


@given(text=st.text(st.characters(codec=None, exclude_categories=()), max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_is_made_readable(text):
    shown = readable(text)
    assert shown.encode("utf-8")
    assert len(shown.strip()) > 0
    assert len(shown) <= 10 * LONGEST + 2  # one letter can become \\U0010ffff
    kinds = {unicodedata.category(letter) for letter in shown if letter not in "\u200c\u200d\u2068\u2069"}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    if text.isascii() and text.isprintable() and text.strip() and len(text) <= LONGEST:
        assert shown == text


def test_the_artefact_and_the_calibrator_lead_here(log, curves, tmp_path):
    assert curves.plot({"device": ["tv"]}).to_dict() == report.plot_curves(curves, {"device": ["tv"]}).to_dict()
    calibrator = IsotonicCalibrator(("device",)).fit({name: log[name] for name in ("score", "device")}, log["label"])
    text = calibrator.report(tmp_path / "fit.html", title="A fit").read_text()
    assert "<h1>A fit</h1>" in text
    assert 'class="notice" id="in-sample">The curves were fitted to these very rows' in text


def daily_log(days=20, rows=200, deviation=0.6, seed=0):
    """Rows of days whose level varies together, much more than independent rows would."""
    random = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), rows)
    score = random.normal(-1, 1, days * rows)
    label = random.random(days * rows) < 1 / (1 + np.exp(-score - random.normal(0, deviation, days)[day]))
    user = random.permutation(days * rows) % 400
    return {"score": score, "label": label, "day": day, "user": user, "device": np.where(score > -1, "tv", "web")}


def test_intervals_of_clustered_rows_are_those_of_a_bootstrap_over_clusters():
    log = daily_log()
    curves = Curves.from_histogram(Histogram.from_arrays(log["score"] + 0.3, log["label"]))
    shown = gather(from_log(log, curves, contexts=["device"], date="day"), curves)
    assert shown.clusters == ("day", 20)
    random = np.random.default_rng(1)
    found = []
    for _ in range(300):
        rows = np.concatenate([np.flatnonzero(log["day"] == day) for day in random.integers(0, 20, 20)])
        part = {name: values[rows] for name, values in log.items()}
        some = from_log(part, curves, contexts=["device"])
        bins = [metrics.BinSums.of_distinct(some.label, prob, some.weight) for prob in (some.before, some.after)]
        found.append({figure.name: figure for figure in evidence.figures(some, bins)})
    alone = {figure.name: figure for figure in gather(from_log(log, curves, contexts=["device"]), curves).figures}
    for figure in shown.figures:
        drawn = np.quantile([each[figure.name].after.value for each in found], [0.025, 0.975])
        ours = figure.after.upper - figure.after.lower
        if figure.name != "ECE":  # a distance from 0, whose bootstrap is not centred
            assert 0.7 < ours / np.ptp(drawn) < 1.5, figure.name
        assert ours > 1.3 * (alone[figure.name].after.upper - alone[figure.name].after.lower), figure.name
    changes = np.quantile([each["Log loss"].change.value for each in found], [0.025, 0.975])
    assert 0.7 < (shown.figures[0].change.upper - shown.figures[0].change.lower) / np.ptp(changes) < 1.5


def test_clusters_widen_every_interval_and_the_page_says_what_it_assumes(tmp_path):
    log = daily_log()
    curves = Curves.from_histogram(Histogram.from_arrays(log["score"], log["label"]))
    alone, days, users = (
        gather(from_log(log, curves, contexts=["device"], **more), curves)
        for more in ({}, {"cluster": "day"}, {"date": "day", "cluster": "user"})
    )
    for part in (days.tables[0].after, days.reliability[1]):
        other = alone.tables[0].after if hasattr(part, "ratio") else alone.reliability[1]
        assert (part.upper - part.lower > 1.3 * (other.upper - other.lower)).all()
    assert users.clusters == ("user", 400)
    assert users.daily is not None
    page_of = {more: report.write(tmp_path / "x.html", log, curves, cluster=more).read_text() for more in (None, "day")}
    assert "Intervals assume independent rows" in page_of[None]
    assert "Intervals account for 20 clusters by day" in page_of["day"]
    assert "Intervals assume" not in page_of["day"]
