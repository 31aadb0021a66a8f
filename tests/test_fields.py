"""Fields: levels of any type, terms that never invert a score, fits that find what was planted, and one artefact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import log_loss

from isolayer import Curves, Grid, IsotonicCalibrator
from isolayer.errors import InputError
from isolayer.fitting import fields as fitting
from isolayer.fitting.backfitting import Backfit, Block, Rows, grouped
from isolayer.fitting.field_levels import Field, fields_of, kind_of
from isolayer.fitting.field_refit import RowSums
from isolayer.fitting.field_solver import solve
from isolayer.fitting.fields import data_of, fit_fields
from isolayer.fitting.interactions import View, coarser, evidence
from isolayer.fitting.terms import Term, Terms, Totals


def sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def log_of(rows: int = 6000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Rows whose rate depends on a category, a number, a missing number and a pair; labels and true logits."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "score": rng.normal(-1, 1.2, rows),
            "device": pd.Series(rng.choice(["tv", "web", "ios"], rows), dtype="string"),
            "country": pd.Series(rng.choice([f"c{i}" for i in range(12)], rows), dtype="string"),
            "hour": rng.integers(0, 24, rows),
            "age": rng.normal(40, 12, rows),
            "member": rng.random(rows) < 0.4,
            "when": pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 90 * 86400, rows), unit="s"),
        }
    )
    logit = 0.8 * frame["score"] + 0.9 * (frame["device"] == "tv").astype(float) + 0.6 * np.sin(frame["age"] / 8)
    logit += 1.2 * ((frame["device"] == "web") & (frame["hour"] >= 20)).astype(float)
    frame.loc[rng.random(rows) < 0.1, "age"] = np.nan
    logit = (logit - 0.7 * frame["age"].isna()).to_numpy(float)
    return frame, (rng.random(rows) < sigmoid(logit)).astype(int), logit


@pytest.fixture(scope="module")
def fitted() -> tuple[pd.DataFrame, np.ndarray, IsotonicCalibrator]:
    frame, label, _ = log_of(40_000)
    return frame, label, IsotonicCalibrator(fields="all").fit(frame, label)


# Levels


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "number"),
        (np.array([1.5, np.nan]), "number"),
        (["a", None], "category"),
        ([True, False], "category"),
        (pd.Series(["a", "b"], dtype="category"), "category"),
        (pd.Series([1, None], dtype="Int64"), "number"),
        (pd.to_datetime(pd.Series(["2024-01-01"])), "date"),
        (pl.Series(["a"]), "category"),
        (pl.Series([1.0]), "number"),
        ([None, None], "nothing"),
    ],
)
def test_a_column_is_a_number_a_category_or_a_date_by_its_type(values, kind):
    assert kind_of("x", values) == kind


def test_numbers_fall_into_bins_between_values_that_occur_and_missing_is_a_level_of_its_own():
    values = np.array([0.0, 1.0, 1.0, 3.0, np.nan])
    field = Field.of("x", values)
    assert field.edges.tolist() == [0.5, 2.0]
    assert field.levels_of(values).tolist() == [0, 1, 1, 2, 3]
    assert field.levels_of([-np.inf, np.inf, 0.5, None]).tolist() == [0, 2, 1, 3]


def test_many_values_make_bins_of_about_equal_mass_and_a_spike_has_its_own():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(20_000) < 0.4, 0.0, rng.normal(0, 1, 20_000))
    field = Field.of("x", values)
    counts = np.bincount(field.levels_of(values), minlength=field.size)
    assert counts[field.spike] == (values == 0).sum()
    others = np.delete(counts[:-1], field.spike)
    assert others.max() < 3 * np.median(others)
    assert not field.linked[field.spike - 1 : field.spike + 1].any()
    assert not field.linked[-1]  # missing


def test_weights_count_as_rows_when_bins_are_made():
    rng = np.random.default_rng(0)
    values, weight = rng.normal(0, 1, 3000), rng.integers(1, 4, 3000)
    weighted = Field.of("x", values, weight.astype(float))
    np.testing.assert_array_equal(weighted.edges, Field.of("x", np.repeat(values, weight)).edges)


def test_a_date_becomes_hour_weekday_and_month_and_parts_that_never_change_are_left_out():
    when = pd.date_range("2024-02-05", periods=14, freq="D")  # Mondays first, all at midnight
    fields = fields_of({"when": pd.Series(when)})
    assert [field.name for field in fields] == ["when.weekday"]
    assert fields[0].levels_of(pd.Series(when[:8])).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


def test_a_category_that_was_not_fitted_has_no_level_and_missing_only_if_it_was_there():
    field = Field.of("x", ["a", "b"])
    assert field.levels_of(["b", "c", None]).tolist() == [1, -1, -1]
    assert Field.of("x", ["a", None]).levels_of(["c", None]).tolist() == [-1, 1]


def test_another_type_than_was_fitted_is_refused():
    with pytest.raises(InputError, match="field age: expected numbers as when fitted, got category; convert"):
        Field.of("age", [1.0, 2.0]).levels_of(["a"])
    with pytest.raises(InputError, match="field x: expected numbers, text, booleans or dates, got list"):
        kind_of("x", [[1], [2]])


# Terms


@st.composite
def any_terms(draw) -> Terms:
    """Terms with any values: two categories and their pair."""
    sizes = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    number = st.floats(-50, 50)

    def term(views, columns):
        cells = int(np.prod([view.size for view in views]))
        values = np.array(draw(st.lists(number, min_size=cells * columns, max_size=cells * columns)))
        one = np.ones(cells)
        spread = np.zeros((cells, columns, columns))
        return Term(views, np.arange(cells), values.reshape(cells, columns), spread, one, one, one)

    views = tuple(View(i, np.arange(size), size) for i, size in enumerate(sizes))
    fields = tuple(Field(f"f{i}", "category", np.array([f"v{k}" for k in range(size)])) for i, size in enumerate(sizes))
    lower = draw(st.floats(-5, 5))
    terms = (term(views[:1], 2), term(views[1:], 2), term(views, 1))
    return Terms(fields, terms, lower, lower + draw(st.floats(0.01, 10)), (draw(number), draw(number)))


@given(any_terms(), st.integers(-1, 3), st.integers(-1, 3))
@settings(deadline=None, max_examples=200)
def test_no_terms_whatever_invert_a_score(terms, first, second):
    score = np.unique(np.concatenate([np.linspace(-30, 30, 301), [terms.lower, terms.upper]]))
    own = zip((first, second), terms.fields, strict=True)
    levels = [np.full(len(score), min(level, field.size - 1)) for level, field in own]
    corrected = terms.correct(score, terms.totals_of_levels(levels, len(score)))
    assert (np.diff(corrected) >= -1e-12 * np.abs(corrected).max()).all()


@given(any_terms())
@settings(deadline=None, max_examples=50)
def test_sums_of_terms_are_those_of_the_obvious_loop(terms):
    rng = np.random.default_rng(0)
    levels = [rng.integers(-1, field.size, 20) for field in terms.fields]
    totals = terms.totals_of_levels(levels, 20)
    for row in range(20):
        offset, tilt = terms.shared
        for term in terms.terms:
            own = [levels[view.field][row] for view in term.views]
            if min(own) < 0:
                continue
            cell = own[0] if len(own) == 1 else own[0] * term.views[1].size + own[1]
            offset += term.values[cell, 0]
            tilt += term.values[cell, 1] if term.values.shape[1] == 2 else 0
        assert totals.offset[row] == pytest.approx(offset)
        assert totals.tilt[row] == pytest.approx(tilt)


def test_the_inverse_is_the_smallest_base_logit_that_reaches_a_logit():
    terms = Terms((), (), -1.0, 1.0)
    base = np.linspace(-4, 4, 81)
    for tilt in (-2.0, -1.0, 0.0, 3.0):
        totals = Totals(np.full(81, 0.3), np.full(81, tilt))
        found = terms.base_of(terms.correct(base, totals), totals)
        np.testing.assert_allclose(terms.correct(found, totals), terms.correct(base, totals), atol=1e-12)
        assert (found <= base + 1e-12).all()


# The fit


def test_a_step_solves_the_penalised_least_squares_of_its_sums():
    rng = np.random.default_rng(0)
    level, residual, weight = rng.integers(0, 5, 200), rng.normal(0, 1, 200), rng.random(200)
    tilt = rng.random(200) - 0.5
    linked = np.array([True, True, False, True])
    for block in (Block.of(level, 5, tilts=True), Block.of(level, 5, tilts=True, linked=linked)):
        block.values = rng.normal(0, 0.1, (5, 2))
        design = np.zeros((200, 10))
        design[np.arange(200), level] = 1
        design[np.arange(200), 5 + level] = tilt
        rough = np.diff(np.eye(5), axis=0)[linked]
        prior = np.zeros((10, 10))
        for j in range(2):
            own = block.strengths[j] * np.eye(5)
            prior[5 * j : 5 * j + 5, 5 * j : 5 * j + 5] = own + (
                0 if block.linked is None else block.strengths[2 + j] * rough.T @ rough
            )
        gradient = design.T @ residual - prior @ block.values.T.reshape(-1)
        expected = np.linalg.solve(design.T @ (weight[:, None] * design) + prior, gradient)
        change = block.step(grouped(level, 5, residual, weight, tilt), choose=False)
        np.testing.assert_allclose(change.T.reshape(-1), expected, atol=1e-10)


def test_sums_of_chunks_are_those_of_all_rows_and_rows_without_a_level_count_nowhere():
    rng = np.random.default_rng(0)
    n = 70_000
    rows = Rows((rng.random(n) < 0.3).astype(float), rng.random(n), rng.random(n) - 0.5)
    block = Block.of(rng.integers(0, 4, n), 3, tilts=True)
    logit = rng.normal(0, 1, n)
    whole = grouped(block.level, 3, *rows.residual(logit), rows.tilt)
    found = block.sums(rows, logit)
    np.testing.assert_allclose(found.gradient, whole.gradient)
    np.testing.assert_allclose(found.hessian, whole.hessian)
    some = block.level == 3
    assert (block.correction(np.ones((3, 2)), rows.tilt)[some] == 0).all()


def test_sweeps_settle_where_no_block_wants_to_move():
    frame, label, _ = log_of(4000)
    tilt = np.random.default_rng(0).random(4000) - 0.5
    fit = Backfit(Rows(label.astype(float), np.ones(4000), tilt), np.zeros(4000))
    for name in ("device", "country"):
        codes = pd.factorize(frame[name])[0]
        fit.blocks.append(Block.of(codes, codes.max() + 1, tilts=True))
    for _ in range(60):
        change = fit.sweep(choose=False)
    assert change < 1e-6


def test_evidence_is_that_of_a_gaussian_and_grows_with_what_is_off():
    gradient, hessian = np.array([12.0, -5.0, 0.0]), np.array([40.0, 30.0, 0.0])
    exact = [
        sum(g * g / (2 * (h + 1 / v)) - np.log1p(h * v) / 2 for g, h in zip(gradient[:2], hessian[:2], strict=True))
        for v in (0.003, 0.01, 0.03, 0.1, 0.3)
    ]
    assert evidence(gradient, hessian) == pytest.approx(max(exact))
    assert evidence(2 * gradient, hessian) > evidence(gradient, hessian)


def test_a_coarser_view_joins_neighbours_only():
    field = Field("x", "number", edges=np.arange(99.0))
    view = coarser(0, field, np.append(np.ones(100), 7.0), 8)
    assert (np.diff(view.level) >= 0).all()
    assert view.size == 9
    assert np.bincount(view.level[:-1]).tolist() == [12, 13, 12, 13, 12, 13, 12, 13]
    assert view.of(np.array([-1, 0, 100])).tolist() == [-1, 0, 8]


def test_all_fields_find_what_was_planted(fitted):
    frame, label, model = fitted
    test, held, logit = log_of(20_000, seed=1)
    base = IsotonicCalibrator().fit(frame["score"], label).predict_proba(test["score"])[:, 1]
    prob = model.predict_proba(test)[:, 1]
    best = log_loss(held, sigmoid(logit))
    assert log_loss(held, prob) - best < 0.12 * (log_loss(held, base) - best)
    terms = model.curves_.terms
    pairs = {tuple(sorted(terms.fields[i].name for i in term.fields)) for term in terms.terms if len(term.views) > 1}
    assert ("device", "hour") in pairs
    off = [
        t for t in terms.terms if len(t.views) > 1 and {terms.fields[i].name for i in t.fields} == {"device", "hour"}
    ]
    place = terms.terms.index(off[0])
    top = int(np.argmax(off[0].values[:, 0]))
    assert "device web" in terms.words(place, top)
    assert off[0].observed[top] > 1.3 * off[0].expected[top]


def test_scores_are_never_inverted_at_fixed_fields(fitted):
    frame, _, model = fitted
    some = frame.head(200).loc[np.repeat(np.arange(200), 41)].reset_index(drop=True)
    some["score"] = np.tile(np.linspace(-20, 20, 41), 200)
    prob = model.decision_function(some).reshape(200, 41)
    assert (np.diff(prob, axis=1) >= 0).all()
    assert (np.diff(prob[:, 19:22], axis=1) > 0).all()  # where there are scores


def test_interactions_are_limited_by_their_number(fitted):
    frame, label, model = fitted
    none = IsotonicCalibrator(fields="all", interactions=0).fit(frame, label)
    one = IsotonicCalibrator(fields="all", interactions=1).fit(frame, label)
    fields = len(model.curves_.terms.fields)
    assert len(none.curves_.terms.terms) == fields
    assert len(one.curves_.terms.terms) == fields + 1
    assert log_loss(label, one.predict_proba(frame)) < log_loss(label, none.predict_proba(frame))
    with pytest.raises(InputError, match='interactions: expected an integer >= 0, got -1; 0 is none; or "auto"'):
        IsotonicCalibrator(interactions=-1).fit(frame["score"], label)
    for wrong in ([("hour",)], [("hour", "hour")], [(1, 2)]):
        with pytest.raises(InputError, match="interactions: expected two or three different names of fields in each"):
            IsotonicCalibrator(interactions=wrong).fit(frame["score"], label)


def test_interactions_can_be_asked_for(fitted):
    frame, label, _ = fitted
    names = ("device", "country", "hour")
    model = IsotonicCalibrator(fields=names, interactions=[("country", "hour")]).fit(frame, label)
    assert model.curves_.terms.names == [*names, ("country", "hour")]
    with pytest.raises(InputError, match="interactions: expected names of fields, got 'day'"):
        IsotonicCalibrator(fields=names, interactions=[("country", "day")]).fit(frame, label)


def test_fields_that_say_nothing_change_little_even_with_few_rows():
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(20):
        frame = pd.DataFrame({f"x{i}": rng.normal(0, 1, 1000) for i in range(6)} | {"score": rng.normal(0, 1, 1000)})
        frame["id"] = [f"u{k}" for k in rng.integers(0, 300, 1000)]
        label = (rng.random(1000) < sigmoid(frame["score"])).astype(int)
        model = IsotonicCalibrator(fields="all").fit(frame, label)
        base = IsotonicCalibrator().fit(frame["score"], label)
        truth = sigmoid(frame["score"].to_numpy())
        losses = [
            -np.mean(truth * np.log(p) + (1 - truth) * np.log(1 - p))
            for p in (model.predict_proba(frame)[:, 1], base.predict_proba(frame["score"])[:, 1])
        ]
        changes.append(losses[0] - losses[1])
    assert np.mean(changes) < 2e-4


def test_a_weight_of_two_is_the_row_twice(monkeypatch):
    monkeypatch.setattr(fitting, "GUARDED", 0)
    frame, label, _ = log_of(3000)
    weight = np.random.default_rng(1).integers(0, 3, 3000)
    names = ["device", "age", "hour"]
    columns = {name: frame[name] for name in names}
    twice = np.repeat(np.arange(3000), weight)
    base = 0.8 * frame["score"].to_numpy()
    kept = weight > 0
    some = {name: column[kept] for name, column in columns.items()}
    one = fit_fields(base[kept], label[kept].astype(float), some, weight[kept].astype(float))
    two = fit_fields(base[twice], label[twice].astype(float), {n: c.iloc[twice] for n, c in columns.items()})
    assert len(one.terms) == len(two.terms)
    for a, b in zip(one.terms, two.terms, strict=True):
        np.testing.assert_allclose(a.values, b.values, atol=1e-8)
    model = IsotonicCalibrator(fields=names).fit(frame, label, weight)
    again = IsotonicCalibrator(fields=names).fit(frame[kept], label[kept], weight[kept])
    np.testing.assert_array_equal(model.predict_proba(frame), again.predict_proba(frame))


def test_importance_weights_may_have_any_scale():
    frame, label, _ = log_of(3000)
    weight = np.random.default_rng(1).random(3000)
    one, two = (
        IsotonicCalibrator(fields=["device"], weight_kind="importance").fit(frame, label, scale * weight)
        for scale in (1.0, 1000.0)
    )
    np.testing.assert_allclose(one.predict_proba(frame), two.predict_proba(frame), atol=1e-6)


def test_sampled_negatives_give_the_probabilities_of_real_traffic():
    frame, label, logit = log_of(60_000)
    kept = (label == 1) | (np.random.default_rng(2).random(len(label)) < 0.25)
    names = ["device", "age"]
    for rate in (0.25, "rate"):
        model = IsotonicCalibrator(fields=names, negative_rate=rate)
        model.fit(frame[kept].assign(rate=0.25), label[kept], score="score")
        prob = model.predict_proba(frame)[:, 1]
        assert prob.mean() == pytest.approx(label.mean(), rel=0.03)
        for device in ("tv", "web"):
            own = (frame["device"] == device).to_numpy()
            assert prob[own].mean() == pytest.approx(label[own].mean(), rel=0.05)
    assert np.corrcoef(np.log(prob / (1 - prob)), logit)[0, 1] > 0.9


def test_fields_are_combined_with_contexts():
    frame, label, _ = log_of(20_000)
    test, held, _ = log_of(20_000, seed=1)
    both = IsotonicCalibrator(("device",), fields=["age", "hour"]).fit(frame, label)
    alone = IsotonicCalibrator(("device",)).fit(frame[["score", "device"]], label)
    assert both.curves_.contexts == ("device",)
    np.testing.assert_array_equal(both.curves_.values, alone.curves_.values)
    assert log_loss(held, both.predict_proba(test)) < log_loss(held, alone.predict_proba(test)) - 0.005


def test_bands_cover_the_true_probability():
    frame, label, _ = log_of(20_000)
    model = IsotonicCalibrator(fields=["device", "age", "hour"]).fit(frame, label)
    test, _, truth = log_of(4000, seed=1)
    lower, upper = model.band(test)
    prob = model.predict_proba(test)[:, 1]
    assert (lower < prob).all()
    assert (prob < upper).all()
    assert ((lower < sigmoid(truth)) & (sigmoid(truth) < upper)).mean() > 0.85
    wide = model.band(test, level=0.99)
    assert (wide[0] < lower).all()


def test_bands_are_as_wide_as_errors_of_additive_truths_are():
    """A category, a smooth and a linear effect, and a field that says nothing; 95% bands, over worlds."""
    covered, relative = list[float](), list[float]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        effects, slope, wave = rng.normal(0, 0.3, 12), rng.normal(0, 0.4), rng.normal(0, 0.5)

        def world(n, rng=rng, effects=effects, slope=slope, wave=wave):
            shop, hour = rng.integers(0, 12, n), rng.integers(0, 24, n)
            frame = pd.DataFrame({"score": rng.normal(-1, 1, n), "hour": hour, "age": rng.normal(0, 1, n)})
            frame = frame.assign(shop=[f"s{place}" for place in shop], nothing=rng.normal(0, 1, n))
            return frame, frame["score"] + effects[shop] + wave * np.sin(hour / 4) + slope * frame["age"]

        frame, truth = world(4000)
        model = IsotonicCalibrator(fields="all", interactions=0)
        model.fit(frame, rng.random(4000) < sigmoid(truth), score="score")
        other, truth = world(2000)
        (lower, upper), found = model.band(other), model.decision_function(other)
        covered.append(((lower < sigmoid(truth)) & (sigmoid(truth) < upper)).mean())
        width = np.log(upper / (1 - upper)) - np.log(lower / (1 - lower))
        relative.append(np.mean(((found - truth) / (width / (2 * 1.96))) ** 2))
    assert 0.92 < np.mean(covered) < 0.98
    assert 0.6 < np.mean(relative) < 1.4


def test_another_day_can_reuse_the_structure(fitted):
    _, _, model = fitted
    other, _, logit = log_of(20_000, seed=3)
    shifted = logit - 0.8 * (other["device"] == "ios").to_numpy(float)
    labels = (np.random.default_rng(0).random(len(logit)) < sigmoid(shifted)).astype(int)
    again = IsotonicCalibrator(fields="all", structure=model.curves_).fit(other, labels)
    assert again.curves_.terms.names == model.curves_.terms.names
    assert again.curves_.terms.fields == model.curves_.terms.fields
    assert log_loss(labels, again.predict_proba(other)) < log_loss(labels, model.predict_proba(other)) - 0.005
    frozen = replace(model.curves_, terms=model.curves_.terms.freeze("device"))
    kept = IsotonicCalibrator(fields="all", structure=frozen).fit(other, labels).curves_.terms
    np.testing.assert_array_equal(kept.terms[0].values, model.curves_.terms.terms[0].values)
    assert not np.array_equal(kept.terms[1].values, model.curves_.terms.terms[1].values)
    with pytest.raises(InputError, match="structure: expected curves fitted with fields among"):
        IsotonicCalibrator(fields=("device",), structure=model.curves_).fit(other, labels)


@pytest.mark.parametrize("rows", [2_000, 8_000, 40_000])
def test_the_same_rows_and_structure_give_the_same(rows):
    frame, label, _ = log_of(rows, seed=4)
    first = IsotonicCalibrator(fields="all").fit(frame, label)
    assert first.curves_.terms.share > 0
    again = IsotonicCalibrator(fields="all", structure=first.curves_).fit(frame, label)
    np.testing.assert_allclose(again.decision_function(frame), first.decision_function(frame), atol=1e-6)
    assert again.curves_.terms.share == first.curves_.terms.share
    for one, two in zip(again.curves_.terms.terms, first.curves_.terms.terms, strict=True):
        np.testing.assert_array_equal(one.strengths, two.strengths)
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-6)


def test_values_come_from_the_rows_not_from_the_structure(fitted):
    frame, label, model = fitted
    terms = model.curves_.terms
    blank = replace(terms, terms=tuple(replace(t, values=0 * t.values) for t in terms.terms), shared=(0.0, 0.0))
    again = IsotonicCalibrator(fields="all", structure=replace(model.curves_, terms=blank)).fit(frame, label)
    change = again.decision_function(frame) - model.decision_function(frame)
    assert np.abs(change).max() < 0.02
    assert np.abs(change).mean() < 0.002


def test_the_solver_ends_where_no_block_wants_to_move():
    frame, label, _ = log_of(4000)
    columns = {name: frame[name] for name in ("device", "age", "hour")}
    terms = fit_fields(frame["score"].to_numpy(), label.astype(float), columns)
    data = data_of(terms, frame["score"].to_numpy(), label.astype(float), columns, np.ones(4000), 1.0)
    source = RowSums(data, terms)
    solved = solve(source.blocks, source.scan, most=500, still=1e-9)
    assert solved.move < 1e-9
    for block, values, sums in zip(source.blocks, solved.values, solved.last.sums, strict=True):
        np.testing.assert_allclose(sums.gradient, block.pull(values), atol=1e-5)
    rng = np.random.default_rng(0)
    lowest = _objective(source, solved.values)
    for _ in range(5):
        other = [values + rng.normal(0, 0.01, values.shape) for values in solved.values]
        assert _objective(source, other) > lowest


def _objective(source: RowSums, values) -> float:
    penalty = sum(np.sum(block.pull(value) * value) for block, value in zip(source.blocks, values, strict=True))
    return source.scan(values).loss + penalty / 2


@pytest.mark.parametrize("rows", [3_000, 40_000])
def test_a_frozen_term_keeps_its_values_and_the_others_make_room(rows):
    frame, label, _ = log_of(rows, seed=6)
    names = ("device", "age", "hour")
    first = IsotonicCalibrator(fields=names, interactions=0).fit(frame, label)
    terms = first.curves_.terms
    moved = replace(terms.terms[0], values=terms.terms[0].values + np.array([[0.5, 0.0]]))
    forced = replace(terms, terms=(moved, *terms.terms[1:])).freeze("device")
    settings = {"fields": names, "structure": replace(first.curves_, terms=forced)}
    kept = IsotonicCalibrator(**settings).fit(frame, label).curves_.terms
    np.testing.assert_array_equal(kept.terms[0].values, moved.values)
    assert kept.terms[0].frozen
    room = kept.shared[0] - terms.shared[0] + np.mean(kept.terms[1].values[:-1, 0] - terms.terms[1].values[:-1, 0])
    assert room < -0.1  # half a logit more for everyone is taken back


def test_a_structure_without_a_term_is_fitted_without_it(fitted):
    frame, label, model = fitted
    pair = next(name for name in model.curves_.terms.names if isinstance(name, tuple))
    less = replace(model.curves_, terms=model.curves_.terms.without(pair))
    again = IsotonicCalibrator(fields="all", structure=less).fit(frame, label)
    assert again.curves_.terms.names == less.terms.names
    assert log_loss(label, model.predict_proba(frame)) < log_loss(label, again.predict_proba(frame))


def test_terms_can_be_left_out(fitted):
    frame, _, model = fitted
    terms = model.curves_.terms
    less = terms.without("hour")
    assert all("hour" not in (name if isinstance(name, tuple) else (name,)) for name in less.names)
    pair = next(name for name in terms.names if isinstance(name, tuple))
    assert {name for name in terms.names if name not in terms.without(pair).names} == {pair}
    curves = replace(model.curves_, terms=less)
    early, late = (curves.predict_proba(frame["score"], frame.assign(hour=hour)) for hour in (1, 22))
    np.testing.assert_array_equal(early, late)


def test_segments_say_where_the_score_was_off(fitted):
    _, _, model = fitted
    found = model.curves_.terms.segments(5)
    assert len(found) == 5
    assert [one.deviations for one in found] == sorted((one.deviations for one in found), reverse=True)
    assert any(one.where == "device tv" and one.observed > one.predicted for one in found)
    assert str(found[0]).startswith(f"{found[0].where}: predicted ")


def test_a_number_is_told_of_in_ranges_that_have_rows(fitted):
    frame, label, model = fitted
    terms = model.curves_.terms
    place = terms.names.index("age")
    found = terms.segments(100, rows=0.0, term=place)
    assert len(terms.terms[place].cells) > 100
    assert 10 < len(found) < 20  # and one for missing
    assert sum(one.rows for one in found) == pytest.approx(len(frame))
    assert sum(one.rows * one.observed for one in found) == pytest.approx(label.sum())
    assert min(one.rows for one in found) > 1000


def test_rows_that_are_added_move_the_terms_and_keep_their_structure():
    frame, label, logit = log_of(40_000)
    names = ("device", "age", "hour")
    first, rest = slice(0, 10_000), slice(10_000, 40_000)
    whole = IsotonicCalibrator(fields=names, grid=Grid()).fit(frame, label)
    model = IsotonicCalibrator(fields=names, grid=Grid()).partial_fit(frame[first], label[first], score="score")
    start = model.curves_.terms
    before = np.abs(model.decision_function(frame) - logit).mean()
    model.partial_fit(frame[rest], label[rest])
    assert model.curves_.terms.names == start.names
    np.testing.assert_allclose(model.curves_.values, whole.curves_.values, atol=1e-6)
    assert np.abs(model.decision_function(frame) - logit).mean() < before
    np.testing.assert_allclose(model.curves_.terms.terms[0].count.sum(), 40_000)
    assert log_loss(label, model.predict_proba(frame)) < log_loss(label, whole.predict_proba(frame)) + 0.002
    assert (model.curves_.terms.terms[0].covariance[:, 0, 0] < start.terms[0].covariance[:, 0, 0]).all()


def test_forgetting_makes_new_rows_count_more():
    frame, _, logit = log_of(20_000)
    drift = logit + (frame["device"] == "ios").to_numpy(float)
    rng = np.random.default_rng(0)
    old, new = ((rng.random(20_000) < sigmoid(one)).astype(int) for one in (logit, drift))
    at = (frame["device"] == "ios").to_numpy()
    gaps = []
    for half_life in (None, 2_000.0):
        model = IsotonicCalibrator(fields=("device",), half_life=half_life)
        model.partial_fit(frame, old, score="score").partial_fit(frame, new)
        gaps.append(abs(model.predict_proba(frame)[at, 1].mean() - new[at].mean()))
    assert gaps[1] < gaps[0] / 2


# The artefact


def odd(frame: pd.DataFrame, rows: int = 300) -> pd.DataFrame:
    """Rows with unseen categories, missing values, and numbers at and beyond the edges."""
    rng = np.random.default_rng(5)
    some = frame.sample(rows, random_state=0).reset_index(drop=True)
    for name, values in {"device": ["radio", None], "country": [None, "", "c1 "]}.items():
        at = rng.choice(rows, rows // 3, replace=False)
        some.loc[at, name] = rng.choice(np.array(values, dtype=object), len(at))
    edges = Field.of("age", frame["age"].to_numpy()).edges
    at = rng.choice(rows, rows // 3, replace=False)
    some.loc[at, "age"] = rng.choice([np.nan, -1e300, 1e300, np.inf, -np.inf, *edges[:20]], len(at))
    some["score"] = rng.choice([-40.0, 40.0, *some["score"]], rows)
    return some


def test_saved_curves_with_fields_are_the_same_to_the_bit(fitted, tmp_path):
    frame, _, model = fitted
    path = tmp_path / "curves.parquet"
    model.curves_.save(path)
    again = Curves.load(path)
    some = odd(frame)
    np.testing.assert_array_equal(
        again.predict_proba(some["score"], some), model.curves_.predict_proba(some["score"], some)
    )
    for one, two in zip(again.band(some["score"], some), model.curves_.band(some["score"], some), strict=True):
        np.testing.assert_array_equal(one, two)
    again.save(tmp_path / "twice.parquet")
    assert (tmp_path / "twice.parquet").read_bytes() == path.read_bytes()


def test_the_rows_of_a_file_say_their_term_in_words(fitted, tmp_path):
    import pyarrow.parquet as pq

    _, _, model = fitted
    model.curves_.save(tmp_path / "curves.parquet")
    rows = pq.read_table(tmp_path / "curves.parquet").to_pandas()
    device = rows[rows["level"] == "device tv"].iloc[0]
    assert device["observed"] > 1.2 * device["expected"]
    assert {"age missing", "member True"} <= set(rows["level"])


def test_terms_that_cannot_be_are_refused_when_saved(fitted, tmp_path):
    _, _, model = fitted
    terms = model.curves_.terms
    for broken in (
        replace(terms, upper=terms.lower),
        replace(terms, last=np.zeros(3)),
        replace(terms, terms=(replace(terms.terms[0], values=terms.terms[0].values * np.nan),)),
        replace(terms, fields=(terms.fields[0], terms.fields[0]), terms=()),
    ):
        with pytest.raises(InputError, match="expected"):
            replace(model.curves_, terms=broken).save(tmp_path / "broken.parquet")
    assert not (tmp_path / "broken.parquet").exists()


def test_the_inverse_with_fields_reaches_the_probability(fitted):
    frame, _, model = fitted
    some = frame.head(500)
    prob = model.curves_.predict_proba(some["score"], some)
    np.testing.assert_allclose(model.curves_.inverse(prob, some), some["score"], atol=1e-8)


def test_without_columns_the_base_curve_serves(fitted):
    frame, label, model = fitted
    base = IsotonicCalibrator().fit(frame["score"], label)
    np.testing.assert_array_equal(model.curves_.predict_proba([0.0, 1.0]), base.curves_.predict_proba([0.0, 1.0]))


# The estimator


def test_frames_of_every_kind_give_the_same(fitted):
    frame, _, model = fitted
    some = frame.head(300)
    expected = model.predict_proba(some)
    np.testing.assert_array_equal(model.predict_proba(pl.from_pandas(some)), expected)
    np.testing.assert_array_equal(model.predict_proba({name: some[name] for name in some}), expected)
    import pyarrow as pa

    np.testing.assert_array_equal(model.predict_proba(pa.Table.from_pandas(some)), expected)


def test_settings_survive_a_clone_and_fields_are_checked(fitted):
    frame, label, model = fitted
    again = clone(model)
    assert again.get_params()["fields"] == "all"
    assert model.fields_ == ("device", "country", "hour", "age", "member", "when")
    with pytest.raises(InputError, match="column nowhere: expected it in the frame"):
        IsotonicCalibrator(fields=("nowhere",)).fit(frame, label)
    with pytest.raises(InputError, match="fields: expected \"all\" or names in a tuple, got 'device'"):
        IsotonicCalibrator(fields="device").fit(frame, label)
    with pytest.raises(InputError, match="fields: expected every name once"):
        IsotonicCalibrator(fields=("device", "device")).fit(frame, label)
    with pytest.raises(InputError, match="column device: expected it in the frame"):
        model.predict_proba(frame[["score"]])
    with pytest.raises(InputError, match="X: expected a frame"):
        model.predict_proba(frame["score"].to_numpy())


def test_the_last_curve_mends_what_a_sum_cannot():
    rng = np.random.default_rng(0)
    n = 40_000
    frame = {"score": rng.normal(0, 1, n), "x": rng.normal(0, 1, n)}
    logit = 2.5 * np.tanh(frame["score"] + frame["x"])
    label = (rng.random(n) < sigmoid(logit)).astype(int)
    model = IsotonicCalibrator(fields="all", interactions=0).fit(frame, label)
    curves = model.curves_
    assert curves.terms.last is not None
    without = replace(curves, terms=replace(curves.terms, last=None))
    assert log_loss(label, curves.predict_proba(frame["score"], frame)) < log_loss(
        label, without.predict_proba(frame["score"], frame)
    )
    assert (np.diff(curves.terms.last) >= 0).all()


def test_what_cannot_use_fields_says_so(fitted):
    from isolayer.monitor import check
    from isolayer.report import write_fitted

    _, _, model = fitted
    curves, sums = model.curves_, model.histogram_
    with pytest.raises(
        InputError, match=r"report: expected rows with the fields device.*use IsotonicCalibrator.report"
    ):
        write_fitted("nowhere.html", sums, curves)
    for use in (lambda: check(curves, sums), lambda: curves.compare(curves)):
        with pytest.raises(InputError, match="expected rows with the fields"):
            use()
    with pytest.raises(InputError, match="fields: expected none, since a histogram has no fields"):
        IsotonicCalibrator(fields="all").fit_histogram(sums)


def test_curves_without_fields_have_no_terms():
    assert Curves.identity(Grid()).terms is None
    model = IsotonicCalibrator(fields="all").fit(np.linspace(-1, 1, 50), [0, 1] * 25)
    assert model.curves_.terms is None
