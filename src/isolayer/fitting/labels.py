"""Labels of two classes as numbers, by scikit-learn's rules for targets, and soft labels, which are fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from isolayer.errors import InputError
from isolayer.fitting.columns import array_of, same_length
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.label_words import value_of

Floats = NDArray[np.float64]


def two_classes(y: ArrayLike, classes: ArrayLike | None, rows: int) -> tuple[Floats, NDArray[Any]]:
    """Labels as numbers, and the two classes that they represent.

    Args:
    y: Labels of two classes, or fractions between 0 and 1.
    classes: The two classes, where they are known; else those that occur.
    rows: How many labels there must be.

    Returns:
    1 for the positive class and 0 for the negative, or soft labels; and the classes, shape ``[2]``. The positive class
    is the greater one, but of words such as yes and no always the one that says yes. Words in several spellings, such
    as ``"Yes"`` and ``"yes"``, become 0 and 1. Where the classes are known, labels may be spelled in another way.

    >>> two_classes(["no", "yes", "no"], None, 3)
    (array([0., 1., 0.]), array(['no', 'yes'], dtype='<U3'))
    >>> two_classes(["N", "y"], [0, 1], 2)
    (array([0., 1.]), array([0, 1]))
    """
    labels = _one_spelling(_label_column(y, rows))
    if _are_soft(labels) and (classes is None or _distinct(np.asarray(classes)).tolist() == [0, 1]):
        return np.asarray(labels, np.float64), np.array([0, 1])
    found = _distinct(labels)
    known = found if classes is None else _distinct(array_of("classes", classes), "classes")
    if len(known) > 2:
        raise InputError(
            f"y: expected two classes, got {len(known)}: {known[:5].tolist()}; fit one calibrator per class. "
            f"Only binary classification is supported. The type of the target is {type_of_target(labels)}."
        )
    if len(known) < 2:
        raise InputError(
            f"y: expected two classes, got one class only: {known.tolist()}; collect rows of both, or give "
            "partial_fit its classes"
        )
    if np.isin(found, known).all():
        return np.asarray(labels == known[1], np.float64), known
    answers = {one: _answer(one) for one in found.tolist()}
    if [_answer(one) for one in known.tolist()] != [0, 1] or None in answers.values():
        raise InputError(f"y: expected the classes {known.tolist()}, got {found.tolist()}; call fit for others")
    return np.array([answers[label] for label in labels.tolist()], np.float64), known


def _label_column(y: Any, rows: int) -> NDArray[Any]:
    """One finite label per row; a column ``[n, 1]`` is accepted with scikit-learn's warning."""
    labels = _unmasked_labels(y)
    try:
        labels = column_or_1d(labels, warn=True)
        assert_all_finite(labels, input_name="y")
    except (TypeError, ValueError) as error:  # scikit-learn's words, which its own checks of an estimator look for
        raise InputError(f"y: expected one label per row, got another column ({error}); repair the labels") from error
    same_length("y", len(labels), rows)
    return np.asarray(labels)


def _distinct(labels: NDArray[Any], name: str = "y") -> NDArray[Any]:
    """The classes among the labels, in order."""
    try:
        check_classification_targets(labels)
        return _yes_last(np.unique(labels))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected labels of two classes, got something else ({error}); convert them"
        ) from error


def _yes_last(classes: NDArray[Any]) -> NDArray[Any]:
    """Two classes in order; if they are words for no and yes, in any case, yes is last."""
    return classes[::-1].copy() if [value_of(one) for one in classes.tolist()] == [1, 0] else classes


def _answer(label: object) -> float | None:
    """What a label says: 1 for yes, 0 for no, None if it is neither.

    >>> _answer("Yes"), _answer(False), _answer(2)
    (1.0, 0.0, None)
    """
    if isinstance(label, bool | int | float):
        return float(label) if label in (0, 1) else None
    return value_of(label)


def _one_spelling(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as 0 and 1 if they are words for yes and no with several spellings; otherwise unchanged."""
    if labels.dtype.kind not in "UO" or not all(isinstance(label, str) for label in labels.tolist()):
        return labels
    words = {word: value_of(word) for word in set(labels.tolist())}
    if any(not word.strip() for word in words):
        raise InputError("y: expected a label in every row, got blank ones; leave out rows without a label")
    if None in words.values() or len(set(words.values())) == len(words):
        return labels
    return np.array([words[word] for word in labels.tolist()]).astype(np.int64)


def _unmasked_labels(y: Any) -> NDArray[Any]:
    """Labels of any type that can be a class: not masked, and neither dates nor complex numbers."""
    if y is None:
        raise InputError("y: expected labels, got None; fit requires y to be passed, but the target y is None")
    labels = array_of("y", y)
    if labels.dtype.kind == "T":  # numpy's text of any length, which scikit-learn does not know
        labels = labels.astype(object)
    if labels.dtype.kind not in "biufUO":
        raise InputError(f"y: expected integers, booleans or strings, got {labels.dtype}; convert the labels")
    return labels


def _are_soft(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind == "f" and bool(((labels >= 0) & (labels <= 1)).all() and (labels % 1 > 0).any())


def two_labels(classes: ArrayLike) -> NDArray[Any]:
    """Two classes in order, the positive one last.

    >>> two_labels([1, 0]).tolist()
    [0, 1]
    """
    known = _distinct(array_of("classes", classes), "classes")
    if known.shape != (2,):
        raise InputError(f"classes: expected two labels, got {known.tolist()}; give (0, 1)")
    return known


def refuse_one_class(histogram: Histogram) -> None:
    """Raise if all rows with a positive weight have the same class."""
    positive, weight = histogram.positive.sum(), histogram.weight.sum()
    if not 0 < positive < weight:
        raise InputError(
            "y: expected both classes among the rows whose weight is not zero, got one only; collect rows of both"
        )
