"""One row at a time: the same answers as for arrays, from any thread, while the file is replaced."""

import math
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from chaos.fuzz import packed_curves
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.curves.fielded import LabelledRows, with_fields
from isolayer.curves.scorer import Scorer, WatchedScorer

GRID = Grid(lower=-4, upper=3, step=0.5)
ROWS = 3000


def log(seed=0):
    rng = np.random.default_rng(seed)
    device = rng.choice(np.array(["tv", "web", "\u00e4pp", None]), ROWS)
    slot, new = rng.integers(0, 5, ROWS), rng.random(ROWS) < 0.5
    score, age = rng.normal(0, 2, ROWS), np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(40, 10, ROWS))
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-score - 0.3 * slot + 0.02 * np.nan_to_num(age)))).astype(float)
    return {"score": score, "label": label, "device": device, "slot": slot, "new": new, "age": age}


def fitted(contexts=("device", "slot"), **options):
    data = log()
    sums = Histogram.from_arrays(data["score"], data["label"], {name: data[name] for name in contexts}, grid=GRID)
    return Curves.from_histogram(sums, **options)


def with_terms():
    data = log()
    columns = {name: data[name] for name in ("device", "slot", "age", "new")}
    rows = LabelledRows(data["score"], data["label"], columns)
    return with_fields(fitted(("device",)), rows, ["slot", "age", "new"], interactions=2)


CURVES = {
    "nested": fitted(),
    "booleans": fitted(("new",)),
    "probabilities, clipped": fitted(scale="prob", extrapolation="clip"),
    "no context": fitted(()),
    "fields": with_terms(),
    "a last curve": replace(with_terms(), terms=replace(with_terms().terms, last=np.linspace(-16, 9, 126) + 0.1)),
    "packed": packed_curves(),
}
SCORES = st.one_of(st.floats(-50, 50), st.floats(allow_nan=False, allow_infinity=False), st.integers(-9, 9))
VALUES = {
    "device": st.sampled_from(["tv", "web", "\u00e4pp", "never", "\ud800", "\0", None, math.nan, 3, True]),
    "slot": st.sampled_from(
        [0, 1, 4, 99, 2**70, 2.0, 0.5, math.inf, math.nan, None, Decimal(3), np.int32(1), "1", True]
    ),
    "new": st.sampled_from([True, False, None, np.True_, 1, "yes"]),
    "age": st.sampled_from([40.0, 17, -1e300, math.inf, math.nan, None, Decimal("33.5"), np.float32(40), "old", True]),
    "shop": st.sampled_from([0, 5, 39, 40, None, 7.0, "5"]),
}


def outcome(call):
    try:
        return call()
    except InputError as error:
        return str(error).partition(":")[0].split()[0]  # what is wrong; the words may differ


@pytest.mark.parametrize("which", CURVES)
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_row_alone_is_answered_as_in_an_array(which, data):
    curves = CURVES[which]
    score = data.draw(SCORES if curves.scale == "logit" else st.one_of(st.floats(0, 1), st.sampled_from([-0.1, 1.5])))
    names = (*curves.contexts, *curves.fields)
    context = data.draw(st.one_of(st.none(), st.fixed_dictionaries({name: VALUES[name] for name in names})))
    columns = None if context is None else {name: [value] for name, value in context.items()}
    alone = outcome(lambda: SCORERS[which](score, context))
    there = outcome(lambda: float(curves.predict_proba([score], columns or None)[0]))
    if isinstance(there, str) or isinstance(alone, str):
        assert alone == there
    else:
        assert alone == pytest.approx(there, rel=4e-16 if which != "packed" else 1e-13, abs=0)


SCORERS = {which: curves.scorer() for which, curves in CURVES.items()}


@pytest.mark.parametrize("score", [math.nan, math.inf, "x", None, True, 1j])
def test_what_is_no_score_is_refused_as_in_an_array(score):
    with pytest.raises(InputError, match="score: expected"):
        SCORERS["nested"](score)


def test_a_missing_column_is_refused():
    with pytest.raises(InputError, match="slot"):
        SCORERS["nested"](0.0, {"device": "tv"})
    with pytest.raises(InputError, match="age"):
        SCORERS["fields"](0.0, {"device": "tv", "slot": 1, "new": True})


def test_sixteen_threads_and_a_pickled_copy_agree():
    scorer, data = pickle.loads(pickle.dumps(SCORERS["fields"])), log(1)
    rows = [
        (float(data["score"][i]), {name: data[name][i].item() if name != "device" else data[name][i]
         for name in ("device", "slot", "age", "new")})
        for i in range(400)
    ]  # fmt: skip
    expected = [SCORERS["fields"](*row) for row in rows]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: [scorer(*row) for row in rows], range(16)))
    assert all(answer == expected for answer in answers)


def test_a_row_takes_microseconds():
    """A bound that holds on a busy machine; ``python -m benchmarks serving`` measures."""
    scorer, context = SCORERS["nested"], {"device": "tv", "slot": 1}
    scorer(0.3, context)
    start = time.perf_counter()
    for _ in range(1000):
        scorer(0.3, context)
    assert time.perf_counter() - start < 0.2


def test_a_new_file_is_taken_over_without_a_dropped_request(tmp_path):
    path = tmp_path / "curves.parquet"
    releases = [replace(CURVES["nested"], values=CURVES["nested"].values + shift) for shift in (0.0, 0.5, 1.0)]
    context = {"device": "tv", "slot": 1}
    right = {float(one.predict_proba([0.3], {name: [value] for name, value in context.items()})[0]) for one in releases}
    releases[0].save(path)
    seen, stop = set(), threading.Event()
    with WatchedScorer(path, every=0.01) as scorer:

        def ask():
            while not stop.is_set():
                seen.add(scorer(0.3, context))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for release in releases[1:]:
            loads = scorer.loads
            release.save(path)
            deadline = time.monotonic() + 20
            while scorer.loads == loads and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(0.05)
        path.write_bytes(b"half a file")
        deadline = time.monotonic() + 20
        while scorer.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "file: expected" in str(scorer.error)
        stop.set()
        for thread in threads:
            thread.join()
        assert scorer.curves.values[0, 0] == releases[2].values[0, 0]
    assert seen == right


def test_a_scorer_is_made_of_curves():
    assert isinstance(Curves.identity(GRID).scorer(), Scorer)
    with pytest.raises(InputError, match="every: expected"):
        WatchedScorer("curves.parquet", every=-1)
    with pytest.raises(InputError, match="file: expected curves at"):
        WatchedScorer("no such file")
