"""Terms that a user chose: left out, forced, frozen, in Python and on the command line, in memory and in an engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from test_fields import log_of
from typer.testing import CliRunner

from isolayer import Curves, IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.errors import InputError

NAMES = ("device", "country", "hour")
PAIR = ("device", "hour")  # planted


@pytest.fixture(scope="module")
def rows() -> tuple[pd.DataFrame, np.ndarray]:
    frame, label, _ = log_of(8000)
    return frame[["score", *NAMES]], label


@pytest.fixture(scope="module")
def fitted(rows) -> IsotonicCalibrator:
    return IsotonicCalibrator(fields=NAMES).fit(*rows)


@pytest.fixture
def folder(rows, fitted, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows[0].assign(label=rows[1]).to_parquet("log.parquet")
    other, label, _ = log_of(2000, seed=5)
    other[["score", *NAMES]].assign(label=label).to_parquet("other.parquet")
    return tmp_path


def fit(*options: str, log: str = "log.parquet", code: int = 0) -> str:
    """Fit by the command; the error, or what was noted."""
    found = CliRunner().invoke(app, ["fit", log, "--scale", "logit", "--json", *options])
    assert found.exit_code == code or isinstance(found.exception, InputError), found.output
    return found.stderr if found.exit_code == 0 else str(found.exception or found.stdout)


def names_of(path: str = "curves.parquet") -> list[object]:
    return Curves.load(path).terms.names


def test_a_combination_that_is_left_out_is_never_found(rows, fitted):
    assert PAIR in fitted.curves_.terms.names
    model = clone(IsotonicCalibrator(fields=NAMES, without=[PAIR[::-1]])).fit(*rows)
    assert PAIR not in model.curves_.terms.names
    assert not any(set(PAIR) < set(name) for name in model.curves_.terms.names)  # nor in a larger one
    table = IsotonicCalibrator(fields=NAMES, without=[PAIR]).fit_table(rows[0].assign(label=rows[1]))
    assert table.curves_.terms.names == model.curves_.terms.names


def test_a_field_that_is_left_out_is_not_needed_any_more(rows, fitted):
    frame, label = rows
    for model in (
        IsotonicCalibrator(fields=NAMES, without=["hour"]).fit(frame, label),
        IsotonicCalibrator(fields=NAMES, without=["hour"], structure=fitted.curves_).fit(frame, label),
        IsotonicCalibrator(fields=NAMES, structure=fitted.curves_.terms.without("hour")).fit(frame, label),
        IsotonicCalibrator(fields=NAMES, without=["hour"]).fit_table(frame.assign(label=label)),
    ):
        assert model.fields_ == model.curves_.fields == ("device", "country")
        assert all("hour" not in name for name in model.curves_.terms.names)
        assert np.isfinite(model.decision_function(frame.drop(columns="hour"))).all()


def test_a_structure_without_a_field_serves_the_other_terms_as_before(fitted, rows):
    terms = fitted.curves_.terms
    less = terms.without("device")
    assert less.columns == ("country", "hour")
    frame = rows[0].head(50)
    kept = [place for place, name in enumerate(terms.names) if name in less.names]
    whole = terms.totals(frame, 50).offset
    gone = sum(
        term.padded[0].take(term.rows_of([one.levels_of(frame[one.column]) for one in terms.fields]))
        for place, term in enumerate(terms.terms)
        if place not in kept
    )
    np.testing.assert_allclose(less.totals(frame, 50).offset, whole - gone, atol=1e-12)


def test_a_combination_is_forced_alone_or_beside_those_that_are_found(rows, fitted):
    frame, label = rows
    wanted = ("country", "hour")  # nothing is off there
    assert wanted not in fitted.curves_.terms.names
    alone = IsotonicCalibrator(fields=NAMES, interactions=[wanted]).fit(frame, label)
    assert alone.curves_.terms.names == [*NAMES, wanted]
    both = IsotonicCalibrator(fields=NAMES, interactions=[wanted, "auto"]).fit(frame, label)
    assert set(both.curves_.terms.names) >= {wanted, PAIR}
    one = IsotonicCalibrator(fields=NAMES, interactions=[wanted, 1]).fit(frame, label)
    assert one.curves_.terms.names == [*NAMES, wanted, PAIR]


def test_a_forced_combination_is_not_found_a_second_time(rows):
    model = IsotonicCalibrator(fields=NAMES, interactions=[PAIR, "auto"]).fit(*rows)
    assert model.curves_.terms.names.count(PAIR) == 1


def test_terms_are_frozen_by_the_structure(fitted):
    other, label, _ = log_of(8000, seed=5)
    frozen = fitted.curves_.terms.freeze("device", PAIR)
    again = IsotonicCalibrator(fields=NAMES, structure=frozen).fit(other[["score", *NAMES]], label).curves_.terms
    for before, after, name in zip(frozen.terms, again.terms, again.names, strict=True):
        assert np.array_equal(before.values, after.values) == (name in ("device", PAIR))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"without": ["day"]}, "without: expected names of fields, got 'day'; the fields are"),
        ({"without": [("hour", "day")]}, "without: expected names of fields, got 'day'"),
        ({"without": [PAIR], "interactions": [PAIR]}, "interactions: expected none that is left out"),
        ({"interactions": [PAIR, "auto", 3]}, "interactions: expected one number or 'auto'"),
        ({"interactions": ["hour"]}, "interactions: expected an integer >= 0"),
    ],
)
def test_what_is_chosen_has_to_make_sense(rows, settings, words):
    with pytest.raises(InputError, match=words):
        IsotonicCalibrator(fields=NAMES, **settings).fit(*rows)


def test_a_structure_has_its_own_combinations(rows, fitted):
    with pytest.raises(InputError, match="interactions: expected none with a structure"):
        IsotonicCalibrator(fields=NAMES, structure=fitted.curves_, interactions=0).fit(*rows)
    with pytest.raises(InputError, match="structure: expected curves fitted with fields, got curves without"):
        IsotonicCalibrator(fields=NAMES, structure=IsotonicCalibrator().fit(*log_of(200)[:2]).curves_).fit(*rows)


def test_the_command_finds_forces_and_leaves_out(folder):
    assert "combinations: device x hour" in fit("--fields", "all")
    assert PAIR in names_of()
    shown = CliRunner().invoke(app, ["show", "curves.parquet", "--json"])
    assert "device x hour" in json.loads(shown.stdout)["figures"]["terms"]
    assert "combinations: none" in fit("--fields", "all", "--interactions", "0")
    assert names_of() == [*NAMES]
    fit("--fields", "all", "--interactions", "1")
    assert names_of() == [*NAMES, PAIR]
    fit("--fields", "all", "--interactions", "1,country x hour")
    assert names_of() == [*NAMES, ("country", "hour"), PAIR]
    fit("--fields", "all", "--interactions", "country x hour")
    assert names_of() == [*NAMES, ("country", "hour")]
    fit("--fields", "all", "--without", "device x hour")
    assert PAIR not in names_of()
    fit("--fields", "all", "--without", "hour", "--interactions", "0")
    assert Curves.load("curves.parquet").fields == ("device", "country")


def test_the_command_freezes_and_leaves_out_of_a_structure(folder):
    fit("--fields", "all", "--interactions", "1", "--out", "first.parquet")
    options = ("--structure", "first.parquet", "--out", "next.parquet")
    fit(*options, "--freeze", "device,device x hour", log="other.parquet")
    first, following = (Curves.load(name).terms for name in ("first.parquet", "next.parquet"))
    same = [np.array_equal(a.values, b.values) for a, b in zip(first.terms, following.terms, strict=True)]
    assert same == [True, False, False, True]
    shown = CliRunner().invoke(app, ["show", "next.parquet"]).stdout
    assert "device x hour (frozen)" in shown
    fit(*options, "--freeze", "all", log="other.parquet")
    assert all(term.frozen for term in Curves.load("next.parquet").terms.terms)
    fit(*options, "--without", "device x hour", log="other.parquet")
    assert names_of("next.parquet") == [*NAMES]
    fit(*options, "--without", "hour", log="other.parquet")
    assert names_of("next.parquet") == ["device", "country"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--interactions", "0"), "--interactions: expected --fields"),
        (("--without", "hour"), "--without: expected --fields"),
        (("--fields", "all", "--freeze", "hour"), "--freeze: expected --structure"),
        (("--fields", "all", "--interactions", "many"), "--interactions: expected auto, a number or a combination"),
        (("--fields", "all", "--without", "day"), "without: expected names of fields, got 'day'"),
        (("--structure", "first.parquet", "--interactions", "2"), "--structure: expected no --interactions"),
        (("--structure", "first.parquet", "--freeze", "day"), "--freeze: expected a field or a combination"),
        (("--structure", "first.parquet", "--without", "hour x day"), "--without: expected a field or a combination"),
        (
            ("--structure", "first.parquet", "--without", "hour,device,country"),
            "--without: expected at least one field to remain",
        ),
    ],
)
def test_the_options_are_told_apart(folder, fitted, options, words):
    fitted.curves_.save("first.parquet")
    assert words in fit(*options, code=2)
