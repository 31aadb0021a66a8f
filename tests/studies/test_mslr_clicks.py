"""Graded documents: clicks at the rates of their formula, loggers, archives and folders."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from made_up_numbers import lost, outcome

from isolayer.errors import InputError
from isolayer.simulate import PositionBased
from research import mslr_clicks
from research.result import Unit


def documents(queries: int = 6, of_each: int = 20) -> mslr_clicks.Documents:
    rng = np.random.default_rng(0)
    grade = rng.integers(0, 5, queries * of_each)
    features = np.stack([grade + rng.normal(0, 0.5, len(grade)), rng.normal(0, 1, len(grade))], axis=1)
    features = (features - features.mean(0)) / features.std(0)
    return mslr_clicks.Documents(features.astype(np.float32), grade, np.repeat(np.arange(queries), of_each))


def test_clicks_have_the_rates_of_their_formula():
    docs, rng = documents(), np.random.default_rng(1)
    flat = mslr_clicks.Documents(docs.features, np.full_like(docs.grade, 4), docs.query)
    biased, fair = mslr_clicks.click_log(flat, np.zeros(len(docs.grade)), PositionBased(), 8_000, rng)
    curve = PositionBased().curve(10, np.ones(1))[0]
    rate = biased.labels["click"].view(-1, 10).mean(0).numpy()
    np.testing.assert_allclose(rate, curve, atol=0.025)
    assert fair.labels["click"].mean() == 1  # full attention, best grade
    ranked, _ = mslr_clicks.click_log(docs, docs.features[:, 1].astype(float), PositionBased(), 500, rng)
    by_position = ranked.features[:, 1].view(-1, 10).mean(0)
    assert (by_position[:-1] > by_position[1:]).all()


def test_loggers_rank_by_what_they_say():
    docs, rng = documents(), np.random.default_rng(2)
    other = mslr_clicks.logging_score(docs, "other feature", rng)
    assert abs(np.corrcoef(other, docs.features[:, 1])[0, 1]) == pytest.approx(1, abs=1e-5)
    weak = mslr_clicks.logging_score(docs, "weak ranker", rng)
    assert np.corrcoef(weak, docs.grade)[0, 1] > 0.8


def test_one_file_is_not_both_training_and_test(tmp_path):
    (tmp_path / "all.txt").write_text("2 qid:1 1:3 2:3\n")
    with pytest.raises(InputError, match=r"mslr: expected a folder with train.txt and test.txt, got the one file"):
        mslr_clicks.documents(tmp_path / "all.txt")


def test_a_published_fold_is_a_folder_of_files(tmp_path):
    rng = np.random.default_rng(0)
    for part, queries in (("train", range(3)), ("test", range(3, 5))):
        lines = [
            f"{rng.integers(0, 5)} qid:{q} 1:{rng.random():.3f} 2:{rng.random():.3f}" for q in queries for _ in range(4)
        ]
        (tmp_path / f"{part}.txt").write_text("\n".join(lines) + "\n")
    train, test = mslr_clicks.documents(tmp_path)
    assert sorted(set(train.query)) == [0, 1, 2]
    assert sorted(set(test.query)) == [3, 4]


def test_the_study_runs_on_an_archive(monkeypatch, tmp_path):
    docs = documents(queries=4, of_each=15)
    lines = [
        f"{grade} qid:{query} 1:{x[0]:.4f} 2:{x[1]:.4f} 136:1\n"
        for x, grade, query in zip(docs.features, docs.grade, docs.query, strict=True)
    ]
    inside = tmp_path / "rankeval-0.8.2" / "rankeval" / "test" / "data"
    inside.mkdir(parents=True)
    for part in ("train", "test"):
        (inside / f"msn1.fold1.{part}.5k.txt").write_text("".join(lines))
    with tarfile.open(tmp_path / mslr_clicks.ARCHIVE, "w:gz") as tar:
        tar.add(tmp_path / "rankeval-0.8.2", "rankeval-0.8.2")
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    numbers = mslr_clicks.run_unit(Unit(0, "position bias, other feature", quick=True))
    assert numbers["queries"] == 4
    assert numbers[f"{mslr_clicks.CEILING} ndcg"] > 0.9
    assert len(numbers[f"{mslr_clicks.JOINT} ndcg draws"]) == 50


GOOD = {"dual head": 0.9, "trees, ours, labels alone": 0.9, "trees, ours, with a teacher": 0.95}


@pytest.mark.parametrize(
    ("better", "failed"),
    [
        ({"PAL": 0.92}, ("the paper's joint loss ranks better than PAL", "the detached anchor ranks better than PAL")),
        ({"trees, naive": 0.92}, ("trees, ours, labels alone, rank better than naive trees",)),
        (
            {"trees, naive": 0.97},
            (
                "trees, ours, labels alone, rank better than naive trees",
                "trees, ours, with a teacher, rank better than naive trees",
            ),
        ),
    ],
)
def test_heads_are_compared_with_pal_and_trees_with_uncorrected_trees(better, failed):
    assert outcome(mslr_clicks, GOOD).held == "held"
    expected = [f"{says} under {setting}" for says in failed for setting in mslr_clicks.SETTINGS]
    assert sorted(lost(outcome(mslr_clicks, better | GOOD))) == sorted(expected)


def test_every_method_that_is_trained_is_on_one_side_of_a_part_or_is_the_ceiling():
    """Whichever method is changed, some part changes with it."""
    plain = {part.says: part.estimate for part in outcome(mslr_clicks, {}).parts}
    for method in set(mslr_clicks.METHODS) - {mslr_clicks.CEILING}:
        moved = outcome(mslr_clicks, {f"{method} ndcg": 0.7}).parts
        assert any(part.estimate != plain[part.says] for part in moved), method
