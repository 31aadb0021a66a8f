"""Fitting past one machine: parts from many writers, and a year of daily updates."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.fitting.partial_sums import merge_parts, parts_of

GRID = Grid(lower=-4, upper=3, step=0.5)


def rows(seed, size=40, contexts=6):
    rng = np.random.default_rng(seed)
    score, shop = rng.normal(0, 1.5, size), rng.integers(0, contexts, size)
    return score, (rng.random(size) < 1 / (1 + np.exp(-score - 0.2 * shop))).astype(float), shop


def sums(seed, weight=1.0):
    score, label, shop = rows(seed)
    return Histogram.from_arrays(score, label, {"shop": shop}, np.full(len(score), weight), grid=GRID)


def content(histogram):
    names = ("group", "fold", "bin", "negative_rate", "count", "weight", "weight_squared", "positive", "logit")
    return [key.tolist() for key in histogram.keys], [getattr(histogram, name).tobytes() for name in names]


def test_64_writers_with_duplicates_and_stragglers_give_the_same_sums_to_the_bit():
    parts = {f"part-{place:05}": sums(place) for place in range(64)}
    expected = merge_parts(parts.items())
    every = [rows(place) for place in range(64)]
    score, label, shop = (np.concatenate(column) for column in zip(*every, strict=True))
    whole = Histogram.from_arrays(score, label, {"shop": shop}, grid=GRID)
    np.testing.assert_array_equal(expected.count, whole.count)
    np.testing.assert_allclose(expected.logit, whole.logit, rtol=1e-12, atol=1e-12)
    for seed in range(5):
        draw = random.Random(seed)
        arrived = [*parts.items(), *draw.choices([*parts.items()], k=20)]  # what slow workers sent a second time
        draw.shuffle(arrived)
        assert content(merge_parts(arrived)) == content(expected)


def test_one_id_with_two_contents_is_refused():
    with pytest.raises(InputError, match="part a: expected the same rows each time"):
        merge_parts([("a", sums(0)), ("a", sums(1))])
    with pytest.raises(InputError, match="parts: expected at least one"):
        merge_parts([])
    with pytest.raises(InputError, match="id: expected"):
        merge_parts([(3, sums(0))])


def test_a_year_of_daily_updates_is_one_exact_fit():
    """Forgetting day by day, 365 times, against one fit of all rows with the weights they have at the end."""
    keep, total = 0.98, sums(0)
    for day in range(1, 365):
        total = total.scaled(keep).merge(sums(day))
    every = [rows(day) for day in range(365)]
    score, label, shop = (np.concatenate(column) for column in zip(*every, strict=True))
    weight = np.repeat(keep ** np.arange(364.0, -1, -1), 40)
    whole = Histogram.from_arrays(score, label, {"shop": shop}, weight, grid=GRID)
    for name in ("weight", "weight_squared", "positive", "logit"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-9, atol=1e-9)
    curves = [Curves.from_histogram(one, shrinkage=[4.0, 8.0, 16.0]) for one in (total, whole)]
    ask = np.linspace(-6, 5, 200), {"shop": np.arange(200) % 6}
    assert np.abs(curves[0].predict_proba(*ask) - curves[1].predict_proba(*ask)).max() <= 1e-9


LEAVES = {f"part-{place}": sums(place) for place in range(6)}
TREES = st.recursive(
    st.sampled_from(sorted(LEAVES)), lambda below: st.lists(below, min_size=1, max_size=4), max_leaves=12
)


def merged(tree, name="0", turned=False):
    """Sums of a tree of merges, whose leaves are ids of parts, with the id they are given under."""
    if isinstance(tree, str):
        return tree, LEAVES[tree]
    below = [merged(one, f"{name}.{place}", turned) for place, one in enumerate(tree)]
    return name, merge_parts(reversed(below) if turned else below)


def outcome(tree):
    """The sums of a tree of merges, or the text of the refusal."""
    try:
        return merged(tree)[1]
    except InputError as error:
        return str(error)


def leaves(tree):
    return {tree} if isinstance(tree, str) else set().union(*map(leaves, tree))


def nested(tree):
    """Whether any two branches of one merge are disjoint, or one contains the other."""
    below = [] if isinstance(tree, str) else [leaves(one) for one in tree]
    pairs = ((one, two) for one in below for two in below)
    return all(not one & two or one <= two or two <= one for one, two in pairs) and all(
        map(nested, tree if below else ())
    )


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_a_tree_of_merges_counts_every_part_once_or_refuses_the_overlap(tree):
    found = outcome([tree])
    if isinstance(found, str):
        assert "overlap" in found
        assert not nested([tree])
        return
    whole = merge_parts((name, LEAVES[name]) for name in leaves(tree))
    assert parts_of(found) == parts_of(whole) == tuple(sorted(leaves(tree)))
    np.testing.assert_array_equal(found.count, whole.count)
    np.testing.assert_allclose(found.logit, whole.logit, rtol=1e-12, atol=1e-12)
    assert content(merged([tree], turned=True)[1]) == content(found)


def test_two_merges_that_overlap_are_refused_also_after_they_were_saved(tmp_path):
    for name, some in (("left", (0, 1, 2)), ("right", (2, 3))):
        merge_parts((f"part-{place}", sums(place)) for place in some).save(tmp_path / f"{name}.parquet")
    left, right = ((name, Histogram.load(tmp_path / f"{name}.parquet")) for name in ("left", "right"))
    with pytest.raises(InputError, match=r"overlap: .*'left' and 'right', which both contain 'part-2'"):
        merge_parts([left, right])
    with pytest.raises(InputError, match="merge: expected sums of different parts, got 'part-2' in both"):
        left[1].merge(right[1])
    known_apart = [(f"part-{place}", sums(place)) for place in (0, 1, 2)]
    assert content(merge_parts([left, right, *known_apart])) == content(merge_parts([*known_apart[:2], right]))


def test_totals_of_the_same_parts_give_the_same_sums_in_any_order():
    """Added up in another order, sums differ by rounding."""
    a, b, c = ((name, sums(place, 0.1)) for place, name in enumerate("abc"))
    left = merge_parts([("ab", merge_parts([a, b])), c])
    right = merge_parts([a, ("bc", merge_parts([b, c]))])
    assert content(left) != content(right)
    assert content(merge_parts([("l", left), ("r", right)])) == content(merge_parts([("r", right), ("l", left)]))


def test_a_total_knows_the_rows_of_its_parts():
    total = merge_parts([("a", sums(0)), ("b", sums(1))])
    assert content(merge_parts([("total", total), ("b", sums(1)), ("again", total)])) == content(total)
    with pytest.raises(InputError, match=r"part b: expected the same rows each time, got other rows in 'b'"):
        merge_parts([("total", total), ("b", sums(2))])
    with pytest.raises(InputError, match="part a: expected the same rows each time"):
        merge_parts([("total", total), ("old", total.scaled(0.5))])


def test_sums_that_are_added_or_taken_away_change_what_is_in_a_total():
    total = merge_parts([("a", sums(0)), ("b", sums(1))])
    assert parts_of(total.subtract(sums(1))) == ("a",)
    assert parts_of(total.subtract(merge_parts([("a", sums(0))]))) == ("b",)
    with pytest.raises(InputError, match="subtract: expected parts that these sums contain, got 'c'"):
        total.subtract(merge_parts([("c", sums(1))]))
    more = total.merge(sums(2))
    assert len(parts_of(more)) == 3
    with pytest.raises(InputError, match="overlap"):
        merge_parts([("more", more), ("other", merge_parts([("b", sums(1)), ("d", sums(3))]))])
    assert len(parts_of(more.merge(sums(2)))) == 4  # rows without an id are added as often as they come
    assert more.merge(sums(2)).rows == total.rows + 2 * sums(2).rows
    assert parts_of(sums(0)) == parts_of(total.split(0)[1]) == ()
    some = total.subtract(sums(1).only_cells(slice(0, 3)))  # some rows of b: no longer the same parts
    with pytest.raises(InputError, match="part a: expected the same rows each time"):
        merge_parts([("some", some), ("a", sums(0))])
