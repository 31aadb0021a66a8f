"""The kinds of bad values, and the message of each: the rules that the table of ``test_bad_inputs.py`` is made of.

A parameter is a valid value, or ``DEFAULT``, and the mistakes that can be made with it. A mistake is a bad value and
its whole message, in which ``{name}`` is the parameter; a message that begins with ~ is a regular expression.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse
import torch

DEFAULT = object()  # the parameter is left out of the valid call
N = 4  # rows of the columns below, unless an entry needs more


class Param(NamedTuple):
    """A parameter: a valid value, and the mistakes with their messages."""

    valid: Any
    mistakes: dict[str, tuple[Any, str]]

    def but(self, **changed: Any) -> "Param":
        """The same with other mistakes; ``None`` takes one out, because that value is legitimate here."""
        kept = {**self.mistakes, **changed}
        return self._replace(mistakes={what: case for what, case in kept.items() if case is not None})

    def without(self, *what: str) -> "Param":
        return self.but(**dict.fromkeys(what))

    def at(self, valid: Any) -> "Param":
        return self._replace(valid=valid)

    def called(self, name: str) -> "Param":
        """The same under the name that the message has for it."""
        return self._replace(
            mistakes={what: (bad, text.replace("{name}", name)) for what, (bad, text) in self.mistakes.items()}
        )


# Settings: one value of each kind, and how a message shows it.

SCALARS: dict[str, tuple[Any, str]] = {
    "None": (None, "None"),
    "text": ("x", "'x'"),
    "bool": (True, "True"),
    "nan": (math.nan, "nan"),
    "inf": (math.inf, "inf"),
    "minus": (-1, "-1"),
    "zero": (0, "0"),
    "fraction": (2.5, "2.5"),
    "huge": (10**400, "an integer of 1329 bits"),
    "list": ([1.0], "[1.0]"),
    "complex": (1j, "1j"),
    "object": (object(), "an object"),
    "array": (np.array([1.0]), "a ndarray of shape (1,)"),
    "tensor": (torch.tensor([1.0]), "a Tensor of shape (1,)"),
    "frame": (pd.DataFrame({"a": [1.0]}), "a DataFrame of shape (1, 1)"),
}


def setting(rule: str, advice: str, *legitimate: str, valid: Any = DEFAULT) -> Param:
    """Every scalar is a mistake but the legitimate ones."""
    mistakes = {
        what: (value, f"{{name}}: expected {rule}, got {shown}; {advice}")
        for what, (value, shown) in SCALARS.items()
        if what not in legitimate
    }
    return Param(valid, mistakes)


def count(least: int = 1, most: int | None = None, advice: str = "count from 1", valid: Any = DEFAULT) -> Param:
    """A whole number."""
    rule = f"an integer from {least} to {most}" if most else f"an integer >= {least}"
    rule = "a positive integer" if least == 1 and not most else rule
    param = setting(rule, advice, *(["zero"] if least == 0 else []), valid=valid)
    bound = f"{{name}}: expected an integer from {least} to {most or 2**31 - 1}, got an integer of 1329 bits; {advice}"
    return param.but(huge=(10**400, bound))


def choice(*options: str | None, advice: str = "choose one", valid: Any = DEFAULT) -> Param:
    """One of a few words."""
    words = [repr(option) for option in options]
    rule = f"{', '.join(words[:-1])} or {words[-1]}"
    return setting(rule, advice, *(["None"] if None in options else []), valid=valid)


def instance(kind: str, advice: str, *legitimate: str, valid: Any = DEFAULT) -> Param:
    return setting(kind, advice, *legitimate, valid=valid)


FLAG = setting("True or False", "choose one", "bool")
LEVEL = setting("a number in (0, 1)", "try 0.95")
SEED = count(0, 2**63 - 1, "give any such integer").but(
    **{
        what: (value, f"{{name}}: expected an integer >= 0, got {shown}; give any such integer")
        for what, (value, shown) in SCALARS.items()
        if what not in ("huge", "zero")
    }
)
GRID = setting("a Grid", "use Grid(lower=..., upper=..., step=...)", "None")
PATH = setting("a path", "name a file", "text", valid=DEFAULT)


def number(rule: str, advice: str, *legitimate: str) -> Param:
    return setting(rule, advice, *legitimate)


# Columns: one mistake of each kind, and its message. A message that begins with ~ is a regular expression.

DATES = np.array(["2024-01-01"], "M8[D]")
NOT_A_COLUMN = "{name}: expected a column, got %s; give a list, an array or a Series"
NOT_NUMBERS = "{name}: expected a column of numbers, got %s; convert it to numbers"
NOT_FLAT = "{name}: expected one dimension, got shape %s; give one column, shape [n]"
LENGTHS = r"~[\w ]+: expected \d+ rows like the other columns, got \d+; align the columns"
NO_ROWS = rf"~({LENGTHS[1:]}|[\w ]+: expected at least one row, got 0; check the filter that made this table)"


def shapes(n: int = N) -> dict[str, tuple[Any, str]]:
    """What is no column, or not one that stands beside the others, whatever it should hold."""
    return {
        "None": (None, NOT_A_COLUMN % "None"),
        "a set": ({0.5}, NOT_A_COLUMN % "a set"),
        "a string": ("abc", NOT_A_COLUMN % "a str"),
        "an iterator": (iter([0.5] * n), NOT_A_COLUMN % "a list_iterator"),
        "a lazy frame": (pl.LazyFrame({"a": [0.5] * n}), NOT_A_COLUMN % "a LazyFrame"),
        "sparse": (
            scipy.sparse.csr_matrix(np.eye(n)),
            "{name}: expected a dense column, got a sparse csr_matrix; use .toarray()",
        ),
        "masked": (
            np.ma.array([1] * n, mask=[0, 1] + [0] * (n - 2)),
            f"{{name}}: expected no masked values, got 1 of {n}; fill them or drop them",
        ),
        "short": ([1] * (n - 1), LENGTHS),
        "empty": ([], NO_ROWS),
    }


def tables(n: int = N) -> dict[str, tuple[Any, str]]:
    """Arrays of the wrong number of dimensions."""
    return {
        "2-D": (np.full((n, 2), 0.5), NOT_FLAT % f"({n}, 2)"),
        "a number": (0.5, NOT_FLAT % "()"),
        "a frame": (pd.DataFrame({"a": [0.5] * n}), NOT_FLAT % f"({n}, 1)"),
        "duplicate columns": (pd.DataFrame(np.full((n, 2), 0.5), columns=["a", "a"]), NOT_FLAT % f"({n}, 2)"),
        "a gradient": (
            torch.full((n,), 0.5, requires_grad=True),
            (
                "{name}: expected a column, got Can't call numpy() on Tensor that requires grad. Use "
                "tensor.detach().numpy() instead; convert it to an array"
            ),
        ),
        "ragged": (
            [[0.5], [0.5, 0.5]] * (n // 2),
            r"~\w+: expected a column, got setting an array element with a sequence.*; convert it to an array",
        ),
    }


def contents(n: int = N) -> dict[str, tuple[Any, str]]:
    """Columns whose values are not numbers, or not finite."""
    rest = [0.5] * (n - 2)
    return {
        "text": (["1"] * n, NOT_NUMBERS % "text"),
        "bytes": ([b"1"] * n, NOT_NUMBERS % "bytes"),
        "dates": (DATES.repeat(n), NOT_NUMBERS % "dates"),
        "time differences": ((DATES - DATES).repeat(n), NOT_NUMBERS % "time differences"),
        "complex": (np.full(n, 1j), NOT_NUMBERS % "complex numbers"),
        "booleans": ([True, False] * (n // 2), NOT_NUMBERS % "booleans"),
        "objects": (np.array([0.5, {}, *rest], object), NOT_NUMBERS % "{} in row 1"),
        "nulls": ([0.5, None, *rest], NOT_NUMBERS % "None in row 1"),
        "polars nulls": (
            pl.Series([0.5, None, *rest]),
            "{name}: expected finite numbers, got nan in row 1; drop or repair those rows",
        ),
        "nan": ([0.5, math.nan, *rest], "{name}: expected finite numbers, got nan in row 1; drop or repair those rows"),
        "inf": ([0.5, math.inf, *rest], "{name}: expected finite numbers, got inf in row 1; drop or repair those rows"),
        "huge": (
            [10**400] * n,
            "{name}: expected numbers that fit a double, got int too large to convert to float; rescale the column",
        ),
    }


def numbers(valid: Any, n: int = N) -> Param:
    return Param(valid, {**shapes(n), **tables(n), **contents(n)})


def probs(valid: Any, n: int = N, advice: str = "for logits, take the sigmoid first") -> Param:
    rest = [0.5] * (n - 2)
    rule = "{name}: expected probabilities in [0, 1], got %s in row 1; " + advice
    return numbers(valid, n).but(above=([0.5, 1.5, *rest], rule % 1.5), below=([0.5, -0.5, *rest], rule % -0.5))


def labels(valid: Any, n: int = N) -> Param:
    rest = [0] * (n - 2)
    rule = "{name}: expected labels in [0, 1], got %s in row 1; give 0 and 1, or a soft label between them"
    above, below = ([1, 2, *rest], rule % 2.0), ([1, -1, *rest], rule % -1.0)
    words = "{name}: expected labels (0 and 1, true and false, yes and no, or t, f, y and n), got 'maybe'; write 1 for "
    text = (["maybe"] * n, words + "the event and 0 for the rest")
    return numbers(valid, n).but(above=above, below=below, text=text).without("booleans")


def weights(valid: Any = DEFAULT, n: int = N) -> Param:
    rule = "{name}: expected numbers >= 0, got -1.0 in row 1; drop those rows or clip their weights"
    below = ([1, -1] + [1] * (n - 2), rule)
    return numbers(valid, n).but(below=below).without("booleans", *(["None"] if valid is DEFAULT else []))


def keys(valid: Any, n: int = N) -> Param:
    """A column of segments, groups or queries."""
    return Param(
        valid,
        shapes(n)
        | {what: case for what, case in tables(n).items() if what not in ("a gradient", "ragged")}
        | {
            "complex": (
                np.full(n, 1j),
                "{name}: expected strings, numbers or dates, got complex128; convert the column",
            ),
            "a mixture": (
                np.array(["a", 1] * (n // 2), object),
                "{name}: expected values of one type, got a mixture; cast the column to strings",
            ),
            "objects": (
                np.array([{}] * n, object),
                "{name}: expected values of one type, got a mixture; cast the column to strings",
            ),
            "nulls": (
                ["a", None] + ["b"] * (n - 2),
                "{name}: expected no nulls, got None in row 1; replace missing values by a value of their own",
            ),
        },
    )


def matrix(valid: Any, *dims: int, rule: str) -> Param:
    """An array of several dimensions."""
    kept = {what: case for what, case in shapes().items() if what not in ("short", "empty", "masked")}
    bad = {
        "text": (np.full(dims, "1"), NOT_NUMBERS % "text"),
        "complex": (np.full(dims, 1j), NOT_NUMBERS % "complex numbers"),
        "nan": (
            np.full(dims, np.nan),
            f"~\\w+: expected finite numbers, got nan at {[0] * len(dims)} and".replace("[", r"\[") + r" \d+ more; .*",
        ),
    }
    return Param(valid, kept | bad | {"a number": (0.5, f"{{name}}: {rule}")})


# Tensors, modules and what belongs to them.

TENSOR = setting("a tensor", "use torch.as_tensor", "tensor")
INTEGERS = (torch.zeros(N, dtype=torch.int64), "{name}: expected floating-point values, got torch.int64; call .float()")
FLOATS = TENSOR.but(integers=INTEGERS)
MODULE = setting("a Module", "give a torch.nn.Module")
LOGIT = FLOATS.at(torch.zeros(N)).but(
    shape=(
        torch.zeros(N, 2, 2),
        "logit: expected shape [batch] or [batch, 1], got [4, 2, 2]; give one column per unit, or one for all of them",
    )
)
IDS = {"position": torch.tensor([0, 1, 2, 3])}
SIZES = setting("a mapping from names", "give the number of ids of each feature").but(
    no_ids=({"position": 0}, "contexts 'position': expected a positive integer, got 0; count its values"),
    a_fraction=({"position": 2.5}, "contexts 'position': expected a positive integer, got 2.5; count its values"),
    a_number=({1: 2}, "contexts: expected a mapping from names, got {1: 2}; give the number of ids of each feature"),
)


def ids(valid: Any = IDS, rows: int | str = N, n: int = N) -> Param:
    """The context of a batch: integers of each feature."""
    param = setting("a mapping from 'position' to ids", "add them, or pass -1 for unknown", valid=valid)
    rule = "context 'position': expected %s"
    return param.but(
        missing=({}, "context: expected ids for 'position', got keys []; add them, or pass -1 for unknown"),
        a_list=(
            {"position": ["top"] * N},
            rule % "integer ids, got ['top', 'top', 'top', 'top']; number the values from 0",
        ),
        floats=({"position": torch.zeros(N)}, rule % "integer ids, got torch.float32; call .long()"),
        shape=(
            {"position": torch.zeros(N, 2, dtype=torch.int64)},
            rule % f"ids of shape [{rows}], got [4, 2]; give one id per logit",
        ),
        beyond=({"position": torch.full((n,), 9)}, rule % "ids from -1 (unknown) to 4, got 9; map unseen values to -1"),
    ).called("context")
