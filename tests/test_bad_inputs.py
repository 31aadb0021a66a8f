"""Every public entry against every kind of bad value: one table, and the message of each mistake.

A row of ``TABLE`` is an entry (a function, a constructor or a method), how it is called, and its parameters with the
mistakes that can be made with each; the rules that many parameters share are in ``bad_values.py``. The table is
complete: a public name that is missing from it, or a parameter of one, fails the last tests.
"""

import importlib
import inspect
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from bad_values import (
    DATES,
    DEFAULT,
    FLAG,
    FLOATS,
    GRID,
    IDS,
    LENGTHS,
    LEVEL,
    LOGIT,
    MODULE,
    NOT_A_COLUMN,
    PATH,
    SCALARS,
    SEED,
    SIZES,
    TENSOR,
    N,
    Param,
    choice,
    contents,
    count,
    ids,
    keys,
    labels,
    matrix,
    number,
    numbers,
    probs,
    setting,
    weights,
)
from torch import nn

import isolayer.mlflow
from isolayer import (
    ContextIsotonicLayer,
    Curves,
    DualHead,
    Grid,
    Histogram,
    InputError,
    IsotonicCalibrator,
    IsotonicEmbedding,
    IsotonicLayer,
    MonotoneLattice,
    RowAdam,
    audit,
    calibrate,
    debias,
    metrics,
    parameter_groups,
    piecewise_linear,
    policy,
    simulate,
    train_curves,
)
from isolayer.curves.scorer import Scorer, WatchedScorer
from isolayer.debias.lists import Outputs
from isolayer.grid import Spread
from isolayer.nn.sharded import ShardedContextIsotonicLayer, data_parallel

# What the table calls: small rows, fitted curves, models.

SCORE, PROB, LABEL = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1])
SEGMENT, POSITION = np.array(["a", "b", "a", "b"]), np.array([0, 1, 1, 0])
LOG = {"score": [0.0, 1.0, 2.0, -1.0] * 20, "label": [0, 1, 1, 0] * 20, "prob": [0.1, 0.2, 0.3, 0.4] * 20}
LOG["device"] = ["tv", "web"] * 40
SUMS = Histogram.from_arrays(SCORE, LABEL, {"device": SEGMENT})
CURVES, PROB_CURVES = Curves.from_histogram(SUMS), Curves.from_histogram(SUMS, scale="prob")
CALIBRATOR = IsotonicCalibrator().fit(SCORE, LABEL)
BINS, SEGMENTS = metrics.BinSums.from_rows(LABEL, PROB), metrics.SegmentSums.from_rows(LABEL, PROB, SEGMENT)
ESTIMATE = policy.ipw(LABEL, np.ones(N))
FEED = simulate.Feed(population=simulate.Population(users=40, items=100), tasks=())
FEATURES = torch.zeros(N, 3)
LABELS = {"click": torch.tensor([0.0, 1.0, 0.0, 1.0])}
_FOLDER = tempfile.TemporaryDirectory(prefix="isolayer-bad-inputs-")  # removed when the process ends
FOLDER = Path(_FOLDER.name)
CURVES.save(FOLDER / "curves.parquet")
SUMS.save(FOLDER / "sums.parquet")
HARVESTED = debias.harvest([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0])


BY_POSITION = (
    *(debias.Cascade, debias.DCM, debias.DBN, debias.UBM),
    *(debias.RegressionEM, debias.PairwiseDebiasing),
)


def backbone(inputs: int = 3) -> nn.Module:
    return nn.Linear(inputs, 4)


def model(kind: Callable[..., Any] = DualHead, **options: Any) -> Any:
    contexts = {} if kind in (debias.Naive, debias.InversePropensity) else {"contexts": {"position": 5}}
    contexts = {"positions": 5} if kind in BY_POSITION else contexts
    inputs = 7 if kind in (debias.PositionAsFeature, debias.PositionDropout) else 3
    given = {"backbone": backbone(inputs), "width": 4, "tasks": ("click",), **contexts, **options}
    if kind is debias.InversePropensity:
        given = {"propensity": [1.0, 0.5, 0.4, 0.3, 0.2], **given}
    return kind(**given)


DUAL, NAIVE, IPS, DLA = (
    model(kind) for kind in (DualHead, debias.Naive, debias.InversePropensity, debias.DualLearning)
)
REM, PAIRS, REVERSAL = (
    model(kind) for kind in (debias.RegressionEM, debias.PairwiseDebiasing, debias.GradientReversal)
)
PAP = debias.PositionPredictor(DUAL, backbone(), width=4)
LISTS = {**IDS, "session": torch.zeros(N, dtype=torch.int64)}
LAYER, CONTEXT_LAYER, STUDENT = (
    IsotonicLayer(),
    ContextIsotonicLayer({"position": 5}),
    debias.ShallowHead({"position": 5}),
)
MANY = 400  # rows, fewer of which no tree is grown from
BOOSTED_FEATURES, BOOSTED_IDS = np.arange(1200.0).reshape(MANY, 3), {"position": np.tile(POSITION, 100)}
BOOSTED = debias.BoostedRanker({"position": 5}, curves="trees", rounds=2)
BOOSTED.fit(BOOSTED_FEATURES, np.tile(LABEL, 100), BOOSTED_IDS)
BOOSTED.save(FOLDER / "ranker")
EVALUATED = {"session": np.repeat(np.arange(100), 2), "click": np.tile([1, 0], 100), "relevance": np.zeros(200)}
EVALUATED["position"] = np.tile([0, 1], 100)
LATTICE = MonotoneLattice({"quality": Grid(lower=0, upper=1, step=0.5)})
ONNX_COLUMNS = {"width": 3, "mean": [0.0] * 3, "std": [1.0] * 3}
LISTED = {"label": np.tile(LABEL, 60), "prob": np.tile(PROB, 60), "score": np.tile(SCORE, 60)}  # 60 lists of 4 rows
LISTED |= {"position": np.tile(np.arange(4), 60), "session": np.repeat(np.arange(60), 4)}

# Parameters that many entries have.

ROWS = {"label": labels(LABEL), "prob": probs(PROB), "weight": weights()}
LOGITS = {"label": labels(LABEL), "logit": numbers(SCORE), "weight": weights()}
SCORES = {"label": labels(LABEL), "score": numbers(SCORE), "weight": weights()}
BY_LIST = {"grade": numbers(LABEL).without("booleans"), "score": numbers(SCORE), "query": keys(SEGMENT)}
BY_LIST |= {
    "weight": weights(),
    "k": count(advice="or None for whole lists").without("None"),
    "gain": choice("exponential", "linear"),
    "empty": choice("skip", "zero", "one"),
}
OF_BINS = {"bins": count(1, 1 << 24, "15 is usual"), "binning": choice("mass", "width")}
OTHER = "merge sums of the same kind"
SEGMENT_SUMS = {"sums": setting("a SegmentSums", "use SegmentSums.from_rows or from_table", valid=SEGMENTS)}
EPSILON = number("a number >= 0", "the papers use 0.01 or 0", "zero", "fraction")
FIELDS = setting("a mapping from names", "give columns by name", valid={"device": SEGMENT}).but(
    none=({}, "fields: expected at least one column, got none; name a column")
)
COLUMN = setting("a name", "name a column of the table", "text")
BOOSTED_MATRIX = matrix(BOOSTED_FEATURES, MANY, 3, rule="expected 2 dimensions, got shape (); reshape it")

TABLE_COLUMN = COLUMN.called("column").mistakes
TASK_COLUMNS = setting("a mapping from names", "give a column for each task")
LOGGED = {
    "reward": numbers(LABEL).without("booleans"),
    "weight": weights(np.ones(N)),
    "logged_hat": numbers(PROB),
    "target_hat": numbers(PROB),
}
TEMPERATURE = number("a positive number", "towards 0 the policy sorts", "fraction")
UNIT = setting("a number in [0, 1]", "give a probability", "zero")
ETA = number("a number >= 0", "or give one per device", "zero", "fraction", "list", "array", "tensor").but(
    below=([-1.0], "{name}: expected numbers >= 0, got -1.0 in row 0; drop those rows or clip their weights")
)
SHARE = setting("a number in [0, 1]", "give a share", "zero")
CLUSTER = (
    keys(DEFAULT)
    .without("None")
    .but(one=([7] * N, "cluster: expected at least two clusters, got 1; name a column with more, or leave it out"))
)
SESSIONS = count(advice="simulate several logs with other seeds", valid=2)
WIDTH = count(advice="give the width of the backbone's output")
TASKS = setting("distinct names", "name each label once", "text").but(
    none=([], "tasks: expected at least one name, got none; name each label once"),
    twice=(["click", "click"], "tasks: expected distinct names, got ['click', 'click']; name each label once"),
)
DECREASING = setting("distinct names among ['click']", "name tasks only").but(
    text=("x", "decreasing: expected distinct names among ['click'], got ['x']; name tasks only")
)
HEADS = {"backbone": MODULE, "width": WIDTH, "tasks": TASKS, "decreasing": DECREASING}
PER_TASK = number("a number >= 0", "0 leaves that loss out", "zero", "fraction").but(
    unknown=({"like": 1.0}, "{name}: expected a number for each of ['click'], got ['like']; name them all"),
    below=({"click": -1.0}, "{name} 'click': expected a number >= 0, got -1.0; 0 leaves that loss out"),
)
NO_OUTPUT = "outputs: expected %s of every task, got none of ['click']; pass what forward returned"
OUTPUTS = setting("a mapping from names", "pass what forward returned").but(none=({}, NO_OUTPUT % "observed_logit"))
TARGETS = setting("a mapping from names", "give a tensor for each task", valid=LABELS).but(
    missing=({}, "labels: expected a tensor for task 'click', got keys []; add it"),
    an_array=(
        {"click": np.zeros(N)},
        "labels 'click': expected a tensor, got a ndarray of shape (4,); use torch.as_tensor",
    ),
    short=({"click": torch.zeros(3)}, "labels 'click': expected shape [4], got [3]; one label per row"),
    above=(
        {"click": torch.full((N,), 2.0)},
        "labels: expected values in [0, 1], got 2.0 to 2.0; mask rows that have no label",
    ),
    nan=(
        {"click": torch.full((N,), math.nan)},
        "labels: expected values in [0, 1], got nan to nan; mask rows that have no label",
    ),
)
MASK = setting("a mapping from names", "give a tensor for each task that has one", "None").but(
    unknown=({"like": torch.ones(N)}, "mask: expected tasks ['click'], got ['like']; remove or rename them"),
    short=({"click": torch.ones(3)}, "mask 'click': expected shape [4], got [3]; one entry per row"),
    an_array=(
        {"click": np.ones(N)},
        "mask 'click': expected a tensor, got a ndarray of shape (4,); use torch.as_tensor",
    ),
)
ROW_WEIGHT = TENSOR.without("None").but(
    tensor=(torch.ones(3), "weight: expected shape [4], got [3]; one weight per row"),
    below=(torch.full((N,), -1.0), "weight: expected finite numbers >= 0, got -1.0 to -1.0; check the column"),
)
KEPT = "give the share of the negatives that was kept"
ONE_RATE = number("a number in (0, 1]", KEPT)
RATE_OF_ROWS = ONE_RATE.without("None").but(
    tensor=(torch.ones(3), "negative_rate: expected a number or shape [4], got [3]; give one rate per row"),
    unknown=({"like": 0.5}, "negative_rate: expected tasks ['click'], got ['like']; remove or rename them"),
    above=(torch.full((N,), 2.0), "negative_rate: expected shares in (0, 1], got 2.0 to 2.0; give the share kept"),
)
MOVES = number("a number in (0, 1]", "0.05 is usual", "fraction")
NORM = number("a number >= 0", "0 leaves the ratios as they are", "zero", "fraction")
FORWARD = "pass what forward returned"
TRAINING = {"labels": TARGETS, "mask": MASK, "weight": ROW_WEIGHT}
INIT = number("a number in [-1e+06, 1e+06]", "1.0 starts at the identity", "minus", "zero", "fraction")
STEP = number("a number in [0, 1e+06]", "0.1 is usual", "zero", "fraction")
CONSTRAINT = choice("relu", "softplus", None, advice="use 'relu'")
EXTRAPOLATION = choice("clip", "extend", advice="'clip' is the paper's")
OPTIONAL_COUNT = count(advice="or None to leave it out").without("None")
SHRINKAGE = Param(
    DEFAULT,
    {
        what: (
            value,
            '~shrinkage: expected "auto", a number >= 0, three of them or \\d times three, got .*; use "auto"',
        )
        for what, (value, _) in SCALARS.items()
        if what not in ("zero", "fraction", "array", "tensor", "list", "frame")
    },
)
CONTEXT = Param(
    {"device": SEGMENT},
    {
        "missing": ({"x": SEGMENT}, "column device: expected it in the frame, got only ['x']; add it"),
        "a number": (
            3,
            (
                "frame: expected a frame with the columns ['device'], got a int; give a dict of columns, such as "
                "{'device': values}"
            ),
        ),
        "short": ({"device": SEGMENT[:3]}, LENGTHS),
        "2-D": ({"device": np.full((N, 2), "a")}, r"~context device: expected .*"),
        "complex": ({"device": np.full(N, 1j)}, r"~context device: expected strings, integers or booleans, got .*"),
        "objects": ({"device": np.array([{}] * N, object)}, r"~context device: expected .*"),
        "another type": (
            {"device": [1] * N},
            "context device: expected strings as when fitted, got integers; convert the column",
        ),
        "masked": (
            {"device": np.ma.array(["a"] * N, mask=[0, 1, 0, 0])},
            "context device: expected no masked values, got 1 of 4; fill them or drop them",
        ),
    },
)
SCORED = numbers(SCORE)
X = Param(
    SCORE,
    {
        what: (value, message.replace("{name}", "score" if what in contents() else "X"))
        for what, (value, message) in SCORED.mistakes.items()
        if what not in ("short", "empty", "a lazy frame", "a frame")
    },
).but(
    **{
        "2-D": (np.zeros((N, 2)), "X: expected scores of shape [n] or [n, 1], got (4, 2); give one column of scores"),
        "a number": (0.5, "X: expected scores of shape [n] or [n, 1], got (); give one column of scores"),
        "duplicate columns": (
            SCORED.mistakes["duplicate columns"][0],
            "frame: expected every column name once, got ['a'] more than once; rename them",
        ),
    }
)
CLASS_LABELS = "y: expected one label per row, got another column (%s); repair the labels"

NO_TABLE = {
    what: (value, r"~table: expected an Ibis table, a Parquet path, a DuckDB relation or a frame, got .*; convert it")
    for what, (value, _) in SCALARS.items()
    if what not in ("text", "frame")
} | {"no file": ("nothing here.parquet", "table: expected a file at 'nothing here.parquet', got none; check the path")}
OF_LOG = setting("distinct names among ['prob', 'device']", "name columns of the log")
ESTIMATE_AGAIN = "estimate them again, or drop the position"
NO_CONTEXT = "contexts: expected at least one feature, got none; use Naive, which reads no context"
# Single rows, and models of MLflow. Calls that would start a process or a server are made with mistakes only.
NO_SCORES = {what: case for what, case in SCALARS.items() if what not in ("minus", "zero", "fraction")}
NO_CONTEXTS = {what: case for what, case in SCALARS.items() if what != "None"}
SAVED_CURVES = setting("a Curves", "give the curves_ of a calibrator, or load a file", valid=CURVES)
MODEL_NAME = setting("a name", "name the model", "text")
MODEL_URI = setting("a name", "give models:/..., runs:/... or a folder", "text")

CONTEXTS = Param(
    DEFAULT,
    {
        what: (value, f"contexts: expected names of columns, got {shown}; name each column")
        for what, (value, shown) in SCALARS.items()
        if what not in ("text", "list", "array")
    }
    | {
        "text": ("x", "contexts: expected names in a tuple, got 'x'; use ('x',)"),
        "numbers": ([1.0], "contexts: expected names of columns, got (1.0,); name each column"),
        "twice": (["a", "a"], "contexts: expected every name once, got ('a', 'a'); name each column once"),
    },
)
OTHER_SUMS = setting("a Histogram", "make it with Histogram.from_arrays or from_table", valid=SUMS)
FROM_TABLE = {
    "table": Param(LOG, NO_TABLE),
    "label": Param(DEFAULT, TABLE_COLUMN),
    "prob": Param(DEFAULT, TABLE_COLUMN),
    "weight": Param(DEFAULT, TABLE_COLUMN).without("None"),
}
WHOLE = Param(
    DEFAULT,
    {
        "fractions": ([0.5] * N, "{name}: expected integers from 0 to 126, got float64 values; number them from 0"),
        "beyond": ([0, 200, 0, 0], "{name}: expected integers from 0 to 126, got 200 in row 1; number them from 0"),
        "short": ([0] * 3, LENGTHS),
        "a set": ({0}, NOT_A_COLUMN % "a set"),
    },
)
TWO_COLUMNS = matrix(np.arange(8.0).reshape(N, 2), N, 2, rule="expected 2 dimensions, got shape (); reshape it")
TWO_POSITIONS = WHOLE.at([0, 1, 0, 1]).but(
    **{
        "None": (None, NOT_A_COLUMN % "None"),
        "fractions": (
            [0.5] * N,
            "{name}: expected integers from 0 to 1, got float64 values; number them from 0",
        ),
        "beyond": (
            [0, 200, 0, 0],
            "{name}: expected integers from 0 to 1, got 200 in row 1; number them from 0",
        ),
    }
)
RATE = (
    numbers(DEFAULT)
    .without("a number", "short", "empty", "booleans")
    .but(
        zero=(0, f"negative_rate: expected a number in (0, 1], got 0; {KEPT}"),
        above=(
            [0.5, 1.5, 0.5, 0.5],
            f"negative_rate: expected numbers in (0, 1], got 1.5 in row 1; {KEPT}",
        ),
        bool=(
            True,
            f"negative_rate: expected a number in (0, 1], got True; {KEPT}",
        ),
    )
)
FIELD_NAMES = setting('"all" or names of columns', "name each column").but(
    text=("x", """fields: expected "all" or names in a tuple, got 'x'; use ('x',)"""),
    list=([1.0], "fields: expected names of columns, got (1.0,); name each column"),
    array=(["a", "a"], "fields: expected every name once, got ('a', 'a'); name each column once"),
)
INTERACTIONS = count(0, advice='0 is none; or "auto"')
FRAME = Param(
    pd.DataFrame({"score": SCORE, "device": SEGMENT}),
    {
        "an array": (SCORE, "X: expected a frame with the columns ['device'], got an array; give a frame or a dict"),
        "missing": (
            pd.DataFrame({"score": SCORE}),
            "column device: expected it in the frame, got only ['score']; add it",
        ),
        "lazy, missing": (
            pl.LazyFrame({"score": SCORE}),
            "column device: expected it in the frame, got only ['score']; add it",
        ),
        "duplicate columns": (
            pd.DataFrame(np.zeros((N, 3)), columns=["score", "device", "score"]),
            "frame: expected every column name once, got ['score'] more than once; rename them",
        ),
        "nulls": (
            pd.DataFrame({"score": SCORE, "device": ["a", None, "b", "b"]}),
            (
                "context device: expected no missing values, got 1 of 4 rows; fill them, or use "
                'missing="own" to give them a curve of their own'
            ),
        ),
        "polars nulls": (
            pl.DataFrame({"score": [0.5, None, 1.0, 1.0], "device": SEGMENT}),
            "score: expected finite numbers, got nan in row 1; drop or repair those rows",
        ),
        "text": (
            pd.DataFrame({"score": ["1"] * N, "device": SEGMENT}),
            "~score: expected a column of numbers, got .*; convert it to numbers",
        ),
        "dates": (
            pd.DataFrame({"score": DATES.repeat(N), "device": SEGMENT}),
            "score: expected a column of numbers, got dates; convert it to numbers",
        ),
    },
)
OTHER_LABELS = "y: expected integers, booleans or strings, got %s; convert the labels"
NO_CLASSES = r"~y: expected labels of two classes, got something else \(Unknown label type: unknown.*\); convert them"
Y = (
    numbers(LABEL)
    .without("booleans", "text", "bytes", "a frame", "a gradient")
    .but(
        **{
            "None": (None, "y: expected labels, got None; fit requires y to be passed, but the target y is None"),
            "2-D": (np.zeros((N, 2)), CLASS_LABELS % "y should be a 1d array, got an array of shape (4, 2) instead."),
            "a number": (0.5, CLASS_LABELS % "y should be a 1d array, got an array of shape () instead."),
            "duplicate columns": (
                SCORED.mistakes["duplicate columns"][0],
                CLASS_LABELS % "y should be a 1d array, got an array of shape (4, 2) instead.",
            ),
            "dates": (DATES.repeat(N), OTHER_LABELS % "datetime64[D]"),
            "time differences": ((DATES - DATES).repeat(N), OTHER_LABELS % "timedelta64[D]"),
            "complex": (np.full(N, 1j), OTHER_LABELS % "complex128"),
            "bytes": ([b"1", b"0"] * 2, OTHER_LABELS % "|S1"),
            **{what: (SCORED.mistakes[what][0], NO_CLASSES) for what in ("objects", "nulls", "huge")},
            **{
                what: (SCORED.mistakes[what][0], CLASS_LABELS % "Input y contains NaN.")
                for what in ("nan", "polars nulls")
            },
            "inf": (
                SCORED.mistakes["inf"][0],
                CLASS_LABELS % "Input y contains infinity or a value too large for dtype('float64').",
            ),
            "one class": ([1] * N, "~y: expected two classes, got one class only: .*"),
            "three classes": ([0, 1, 2, 0], "~y: expected two classes, got 3: .*"),
        }
    )
)
CLASSES = Param(
    DEFAULT,
    {
        "None": (None, NOT_A_COLUMN % "None"),
        "one": ([0], "~(classes|y): expected two (labels|classes), got .*"),
        "three": ([0, 1, 2], "~(classes|y): expected two (labels|classes), got .*"),
        "a number": (3, "~(classes|y): expected .*"),
        "objects": (np.array([{}, 1], object), "~(classes|y): expected .*"),
    },
)
DELTA = FLOATS.without("None").but(
    tensor=(torch.zeros(3), "weight_delta: expected shape [..., 1, 126], got [3]; give one number per bucket")
)
BATCHES = Param(
    [(FEATURES, torch.tensor([[0.0], [1.0], [0.0], [1.0]]))],
    {
        what: (value, f"batches: expected tuples of tensors, got {shown}; give [(inputs, labels), ...]")
        for what, (value, shown) in SCALARS.items()
        if what not in ("list", "array", "frame")
    }
    | {
        "none": ([], "batches: expected at least one batch, got none; a generator can be read only once"),
        "no pair": (
            [FEATURES],
            "batches: expected (inputs, labels) or those and a context, got a Tensor of shape (4, 3); pair them",
        ),
        "an array": (
            [(FEATURES, np.zeros((N, 1)))],
            "labels: expected a tensor, got a ndarray of shape (4, 1); use torch.as_tensor",
        ),
        "shape": (
            [(FEATURES, torch.zeros(N))],
            "labels: expected the shape of the logits, [4, 1], got [4]; align them",
        ),
    },
)

TABLE: dict[str, tuple[Callable[..., Any], dict[str, Param]]] = {
    # isolayer
    "Grid": (
        Grid,
        {
            name: number("a finite number", "give a float", "minus", "zero", "fraction").called(f"grid {name}")
            for name in ("lower", "upper")
        }
        | {"step": number("a finite number", "give a float", "minus", "zero", "fraction").called("grid step")},
    ),
    "Grid.covering": (Grid.covering, {"spread": setting("a Spread", "use Spread.of", valid=Spread.of(SCORE))}),
    "Grid.locate": (
        Grid().locate,
        {"x": setting("an array or a tensor of floats", "convert it to floats", "array", "tensor", valid=SCORE)},
    ),
    "Curves.identity": (
        Curves.identity,
        {
            "grid": GRID.at(Grid()).but(
                **{"None": (None, "grid: expected a Grid, got None; use Grid(lower=..., upper=..., step=...)")}
            ),
            "scale": choice("logit", "prob"),
        },
    ),
    "Curves.from_histogram": (
        Curves.from_histogram,
        {
            "histogram": setting("a Histogram", "make it with Histogram.from_arrays or from_table", valid=SUMS),
            "shrinkage": SHRINKAGE,
            "strict": FLAG,
            "monotone": FLAG,
            "extrapolation": choice("extend", "clip"),
            "scale": choice("logit", "prob").without("None"),
        },
    ),
    "Curves.predict_proba": (
        CURVES.predict_proba,
        {"score": numbers(SCORE).without("short", "empty"), "context": CONTEXT},
    ),
    "Curves.decision_function": (
        PROB_CURVES.decision_function,
        {"score": probs(PROB, advice='for logits use scale="logit"').without("short", "empty"), "context": CONTEXT},
    ),
    "Curves.inverse": (CURVES.inverse, {"prob": probs(PROB).without("short", "empty"), "context": CONTEXT}),
    "Curves.band": (
        CURVES.band,
        {"score": numbers(SCORE).without("None", "short", "empty"), "context": CONTEXT, "level": LEVEL},
    ),
    "Curves.compare": (CURVES.compare, {"other": setting("a Curves", "load or fit the other release", valid=CURVES)}),
    "Curves.check_sums": (
        CURVES.check_sums,
        {"sums": setting("a Histogram", "load the sums that were written with the curves", valid=SUMS)},
    ),
    "Curves.apply_table": (
        CURVES.apply_table,
        {
            "table": Param(LOG, NO_TABLE),
            "score": setting("a name", "name a column", "text"),
            "prob": setting("a name", "name a column", "text"),
        },
    ),
    "Curves.to_sql": (
        CURVES.to_sql,
        {
            "dialect": choice("duckdb", "spark", "bigquery", "snowflake", "trino", "postgres"),
            "table": setting("a name", "write it as in a FROM clause", "text"),
            "score": setting("a name", "name a column", "text"),
        },
    ),
    "Curves.to_onnx": (CURVES.to_onnx, {"path": PATH.at(FOLDER / "curves.onnx")}),
    "Curves.from_layer": (
        Curves.from_layer,
        {
            "layer": setting(
                "an IsotonicLayer or a ContextIsotonicLayer", "for a DualHead use its curves()", valid=CONTEXT_LAYER
            ),
            "like": setting("a Curves", "give the curves that the layer was made from", "None"),
            "names": setting(
                "a mapping from names", "give one for each feature of the layer that has another", "None"
            ).but(unknown=({"x": "y"}, "names: expected features among ['position'], got ['x']; check spelling")),
            "vocabulary": setting(
                "a mapping from names", "give one for each feature of the layer that has another", "None"
            ).but(unknown=({"x": "y"}, "vocabulary: expected features among ['position'], got ['x']; check spelling")),
            "unit": setting("an integer from 0 to 0", "count the layer's units", "zero"),
        },
    ),
    "Curves.plot": (
        CURVES.plot,
        {"context": setting("a mapping from names", "give a column for each context", "None"), "level": LEVEL},
    ),
    "Curves.save": (CURVES.save, {"path": PATH.at(FOLDER / "curves.parquet")}),
    "Curves.load": (Curves.load, {"path": PATH.called("file").at(FOLDER / "curves.parquet")}),
    "Scorer": (Scorer, {"curves": setting("a Curves", "load or fit the calibrator", valid=CURVES)}),
    "Scorer of a row": (
        CURVES.scorer(),
        {
            "score": Param(0.1, {what: (value, "~score: expected .*; .*") for what, (value, _) in NO_SCORES.items()}),
            "context": Param(
                {"device": "a"},
                {what: (value, "~(frame|column device): expected .*; .*") for what, (value, _) in NO_CONTEXTS.items()}
                | {"a list in it": ({"device": [1.0]}, "~context device: expected .*; .*")},
            ),
        },
    ),
    "WatchedScorer": (
        WatchedScorer,
        {
            "path": PATH.at(FOLDER / "curves.parquet"),
            "every": number("a positive number", "use a second", "fraction"),
        },
    ),
    "mlflow.save_model": (
        isolayer.mlflow.save_model,
        {"curves": SAVED_CURVES, "path": PATH.at(FOLDER / "as_a_model")},
    ),
    "mlflow.log_model": (isolayer.mlflow.log_model, {"curves": SAVED_CURVES, "name": MODEL_NAME}),
    "mlflow.load_model": (isolayer.mlflow.load_model, {"uri": MODEL_URI}),
    "nn.sharded.ShardedContextIsotonicLayer": (
        ShardedContextIsotonicLayer,
        {
            "contexts": SIZES.at({"position": 5}),
            "units": count(advice="use one unit per task"),
            "grid": GRID,
            "mode": choice("sum", "cross", advice="'sum' is the paper's"),
            "hash_buckets": OPTIONAL_COUNT,
            "constraint": CONSTRAINT,
            "init": INIT,
            "extrapolation": EXTRAPOLATION,
            "leaky_gradient": FLAG,
            "optimiser": choice("rowwise_adagrad", "sgd"),
            "learning_rate": number("a positive number", "use 0.01", "fraction"),
        },
    ),
    "nn.sharded.data_parallel": (data_parallel, {"model": setting("a Module", "give a module")}),
    "Curves.rows_of": (
        CURVES.rows_of,
        {
            "context": CONTEXT,
            "rows": count(0, None, "give the number of rows", valid=N),
            "depth": count(0, 1, "or None for all context columns").without("None"),
        },
    ),
    "Histogram.from_arrays": (
        Histogram.from_arrays,
        {
            "logit": numbers(SCORE),
            "label": labels(LABEL),
            "context": setting("a mapping from names", "name columns", "None").but(
                short=({"device": SEGMENT[:3]}, LENGTHS),
                fractions=(
                    {"device": [0.5] * N},
                    "context device: expected strings, integers or booleans, got 0.5; bin or convert it",
                ),
                mixture=(
                    {"device": np.array(["a", 1, "a", 1], object)},
                    r"~context device: expected values of one type, got a mixture .*; convert the column",
                ),
            ),
            "weight": weights(),
            "fold": WHOLE,
            "negative_rate": RATE,
            "grid": GRID,
        },
    ),
    "Histogram.from_table": (
        Histogram.from_table,
        {
            "table": Param(LOG, NO_TABLE),
            "contexts": CONTEXTS,
            "score": COLUMN,
            "label": COLUMN,
            "weight": COLUMN.without("None"),
            "scale": choice("logit", "prob"),
            "grid": GRID,
            "folds": count(1, 127, "try 5, or (5, a column)").without("None"),
            "on_bad_rows": choice("error", "drop"),
        },
    ),
    "Histogram.save": (SUMS.save, {"path": PATH.at(FOLDER / "sums.parquet")}),
    "Histogram.load": (Histogram.load, {"path": PATH.called("file").at(FOLDER / "sums.parquet")}),
    "Histogram.merge": (SUMS.merge, {"other": OTHER_SUMS}),
    "Histogram.subtract": (SUMS.subtract, {"other": OTHER_SUMS}),
    "Histogram.scaled": (
        SUMS.scaled,
        {"factor": number("a positive number", "use one in (0, 1] to forget", "fraction").at(0.5)},
    ),
    "Histogram.level": (SUMS.level, {"depth": count(0, 1, "0 is all rows together", valid=0)}),
    "Histogram.split": (SUMS.split, {"fold": count(0, 126, "folds are numbered from 0", valid=0)}),
    "IsotonicCalibrator": (
        lambda **settings: IsotonicCalibrator(**settings).fit(SCORE, LABEL),
        {
            "contexts": CONTEXTS,
            "fields": FIELD_NAMES,
            "interactions": INTERACTIONS,
            "audit_only": setting("distinct names", "name columns that do not correct the score"),
            "without": setting("names of fields or tuples of them", 'try ["user", ("hour", "device")]').but(
                alone=([("hour",)], "~without: expected two or three different names of fields in each, got .*"),
            ),
            "structure": setting("Curves or their terms", "give the curves_ of a fit with fields", "None"),
            "scale": choice("logit", "prob"),
            "grid": setting('"auto" or a Grid', "try Grid(lower=-10, upper=10, step=0.2)"),
            "shrinkage": SHRINKAGE,
            "strict": FLAG,
            "monotone": FLAG,
            "missing": choice("error", "own"),
            "negative_rate": number(
                "a number in (0, 1]", "give the share of the negatives that was kept", "None", "text"
            ),
            "weight_kind": choice("frequency", "importance"),
            "half_life": number("a positive number", "None forgets nothing", "None", "fraction"),
        },
    ),
    "IsotonicCalibrator.fit": (
        lambda **rows: IsotonicCalibrator().fit(**rows),
        {
            "X": X,
            "y": Y,
            "sample_weight": weights(),
            "score": setting("a name", "name the score column", "None", "text"),
        },
    ),
    "IsotonicCalibrator.fit of a frame": (
        lambda **rows: IsotonicCalibrator(("device",)).fit(**rows),
        {"X": FRAME, "y": Y},
    ),
    "IsotonicCalibrator.partial_fit": (
        lambda **rows: IsotonicCalibrator().partial_fit(**rows),
        {
            "X": X,
            "y": Y,
            "classes": CLASSES.without("None"),
            "sample_weight": weights(),
            "score": setting("a name", "name the score column", "None", "text"),
        },
    ),
    "IsotonicCalibrator.fit_histogram": (
        lambda **rows: IsotonicCalibrator().fit_histogram(**rows),
        {
            "histogram": setting(
                "a Histogram", "make it with Histogram.from_arrays or from_table", valid=SUMS.level(0)
            ),
            "classes": CLASSES,
        },
    ),
    "audit": (
        audit,
        {
            "log": Param(LOG, NO_TABLE),
            "score": COLUMN,
            "label": COLUMN,
            "fields": FIELD_NAMES,
            "exclude": OF_LOG,
            "audit_only": OF_LOG,
            "scale": choice("logit", "prob"),
            "weight": COLUMN.without("None"),
            "weight_kind": choice("frequency", "importance"),
            "negative_rate": number(
                "a number in (0, 1]", "give the share of the negatives that was kept", "None", "text"
            ),
            "cluster": setting("a name", "name a column of the log", "None", "text").but(
                another=("user", "cluster: expected a column of the log, got 'user'; it has ['prob', 'device']")
            ),
            "depth": count(1, 3, "1 to 3"),
            "most": count(),
            "level": setting("a number in (0, 1)", "try 0.05"),
            "on_bad_rows": choice("error", "drop"),
        },
    ),
    "IsotonicCalibrator.fit_table": (
        lambda **rows: IsotonicCalibrator().fit_table(**rows),
        {
            "table": Param(LOG, NO_TABLE),
            "score": COLUMN,
            "label": COLUMN,
            "weight": COLUMN.without("None"),
            "on_bad_rows": choice("error", "drop"),
        },
    ),
    "IsotonicCalibrator.apply_table": (
        CALIBRATOR.apply_table,
        {
            "table": Param(LOG, NO_TABLE),
            "score": setting("a name", "name a column", "None", "text"),
            "prob": setting("a name", "name a column", "text"),
        },
    ),
    **{
        f"IsotonicCalibrator.{method}": (getattr(CALIBRATOR, method), {"X": X})
        for method in ("predict_proba", "decision_function", "predict", "transform")
    },
    "IsotonicCalibrator.band": (CALIBRATOR.band, {"X": X, "level": LEVEL}),
    "IsotonicCalibrator.report": (
        CALIBRATOR.report,
        {"path": PATH.at(FOLDER / "report.html"), "title": setting("a name", "or None for the usual", "None", "text")},
    ),
    "IsotonicLayer": (
        IsotonicLayer,
        {
            "units": count(advice="use one unit per task"),
            "grid": GRID,
            "constraint": CONSTRAINT,
            "init": INIT,
            "bias": FLAG,
            "extrapolation": EXTRAPOLATION,
            "leaky_gradient": FLAG,
        },
    ),
    "IsotonicLayer.knot_values": (LAYER.knot_values, {"weight_delta": DELTA}),
    "IsotonicLayer.forward": (LAYER.forward, {"logit": LOGIT, "weight_delta": DELTA}),
    "IsotonicLayer.prob": (LAYER.prob, {"logit": LOGIT}),
    "IsotonicLayer.inverse": (LAYER.inverse, {"logit": LOGIT}),
    "IsotonicLayer.set_values": (
        IsotonicLayer(grid=Grid(0, 1, 1)).set_values,
        {
            "values": TENSOR.at(torch.tensor([[0.0, 1.0]])).but(
                shape=(torch.zeros(3), "values: expected shape [1, 2], got [3]; leave out the knot below the grid"),
                falling=(
                    torch.tensor([[1.0, 0.0]]),
                    "values: expected curves that never decrease, got one that does; use constraint=None",
                ),
            )
        },
    ),
    "ContextIsotonicLayer": (
        ContextIsotonicLayer,
        {
            "contexts": SIZES.at({"position": 5}),
            "units": count(advice="use one unit per task"),
            "grid": GRID,
            "mode": choice("sum", "cross", advice="'sum' is the paper's"),
            "rank": OPTIONAL_COUNT,
            "hash_buckets": OPTIONAL_COUNT,
            "projection": OPTIONAL_COUNT,
            "constraint": CONSTRAINT,
            "init": INIT,
            "extrapolation": EXTRAPOLATION,
            "leaky_gradient": FLAG,
            "sparse": FLAG,
        },
    ),
    **{
        f"ContextIsotonicLayer.{method}": (getattr(CONTEXT_LAYER, method), {"logit": LOGIT, "context": ids()})
        for method in ("forward", "prob", "inverse")
    },
    "ContextIsotonicLayer.knot_values": (CONTEXT_LAYER.knot_values, {"context": ids(rows="batch")}),
    "ContextIsotonicLayer.embeddings": (CONTEXT_LAYER.embeddings, {"context": ids(rows="batch")}),
    "IsotonicEmbedding": (
        IsotonicEmbedding,
        {
            "levels": count(valid=3),
            "dim": count(valid=2),
            "constraint": choice("relu", "softplus", advice="an embedding without it has no order"),
            "init": STEP,
        },
    ),
    "IsotonicEmbedding.forward": (
        IsotonicEmbedding(3, 2).forward,
        {
            "level": TENSOR.at(torch.tensor([0, 2])).but(
                tensor=(torch.zeros(2), "level: expected integers, got torch.float32; call .long()"),
                beyond=(
                    torch.tensor([3]),
                    "level: expected ids from 0 to 2, got 3; clip them or make the table larger",
                ),
            )
        },
    ),
    "MonotoneLattice": (
        MonotoneLattice,
        {
            "inputs": setting("a mapping from names", "give the grid of each", valid={"quality": Grid(0, 1, 1)}).but(
                no_grid=(
                    {"quality": 3},
                    "inputs 'quality': expected a Grid, got 3; use Grid(lower=..., upper=..., step=...)",
                ),
                none=({}, "inputs: expected 1 to 8, got 0; each doubles the cost"),
            ),
            "monotone": setting("distinct names among ['quality']", "name inputs"),
            "decreasing": setting("distinct names among ['quality']", "name inputs"),
            "units": count(advice="use one unit per function"),
            "constraint": choice("relu", "softplus", advice="use 'relu'"),
            "init": number("a number in [0, 1e+06]", "try 1.0", "zero", "fraction"),
            "input_knots": count(0, advice="try 10, or 0 for no maps"),
        },
    ),
    "MonotoneLattice.forward": (
        LATTICE.forward,
        {
            "columns": setting(
                "a mapping from names", "give a tensor for each input", valid={"quality": torch.zeros(N)}
            ).but(
                missing=({}, "columns: expected a tensor for 'quality', got keys []; add it"),
                an_array=(
                    {"quality": np.zeros(N)},
                    "columns 'quality': expected a tensor, got a ndarray of shape (4,); use torch.as_tensor",
                ),
            )
        },
    ),
    "piecewise_linear": (
        piecewise_linear,
        {
            "x": FLOATS.at(torch.zeros(N)),
            "knot_values": FLOATS.at(torch.zeros(1, 127)).but(
                tensor=(
                    torch.zeros(1, 3),
                    "knot_values: expected shape [curves, 127], got [1, 3]; give one value per knot of the grid",
                )
            ),
            "rows": TENSOR.without("None").but(
                tensor=(torch.zeros(N), "rows: expected integers, got torch.float32; call .long()"),
                beyond=(
                    torch.full((N,), 9),
                    "rows: expected integers from 0 to 0, got something else; number the curves from 0",
                ),
                shape=(
                    torch.zeros(3, dtype=torch.int64),
                    "rows: expected a shape that broadcasts against [4], got [3]; give one curve per input",
                ),
            ),
            "grid": GRID.at(Grid()).but(
                **{"None": (None, "grid: expected a Grid, got None; use Grid(lower=..., upper=..., step=...)")}
            ),
            "extrapolation": EXTRAPOLATION,
        },
    ),
    "parameter_groups": (
        parameter_groups,
        {
            "module": MODULE.at(LAYER),
            "lr": number("a positive number", "try 0.001", "fraction").at(0.1),
            "curve_lr": number("a positive number", "10 is usual", "fraction"),
            "decay": number("a number >= 0", "try 0.1", "fraction", "zero"),
        },
    ),
    "RowAdam": (
        RowAdam,
        {
            "groups": setting(
                "parameters, or groups of them", "use parameter_groups", valid=list(LAYER.parameters())
            ).without("list", "array", "frame"),
            "lr": number("a positive number", "try 0.001", "fraction"),
            "betas": setting("two numbers in [0, 1)", "(0.9, 0.999) is usual"),
            "eps": number("a positive number", "1e-8 is usual", "fraction"),
        },
    ),
    "train_curves": (
        lambda model, **given: train_curves(nn.Linear(3, 1) if model is LAYER else model, **{"epochs": 1} | given),
        {
            "model": MODULE.at(LAYER),
            "batches": BATCHES,
            "contexts": SIZES.without("None"),
            "mode": choice("sum", "cross", advice="'cross' is the paper's"),
            "grid": GRID,
            "epochs": count(advice="try 30"),
            "batch_size": count(advice="try 4096"),
            "lr": number("a positive number", "try 0.01", "fraction"),
            "seed": SEED,
        },
    ),
    "calibrate": (
        lambda model, **given: calibrate(nn.Linear(3, 1) if model is LAYER else model, **given),
        {
            "model": MODULE.at(LAYER),
            "batches": BATCHES,
            "negative_rate": ONE_RATE,
            "contexts": SIZES.without("None"),
            "grid": GRID,
            "shrinkage": SHRINKAGE,
            "strict": FLAG,
        },
    ),
    "DualHead": (
        lambda **given: model(DualHead, **given),
        {
            **HEADS,
            "contexts": SIZES.without("None"),
            "alpha": PER_TASK,
            "beta": PER_TASK,
            "anchor": choice("joint", "detached", advice="'joint' is the paper's"),
            "wiring": choice("curve", "parallel", advice="use 'curve'"),
            "reference": setting("a mapping from names", "give an id of each feature", "None").but(
                unknown=({"device": 0}, "reference: expected 'position', got 'device'; name a context feature"),
                beyond=(
                    {"position": 5},
                    "reference 'position': expected an integer from 0 to 4, got 5; give an id of the feature",
                ),
            ),
            "grid": GRID,
            "mode": choice("sum", "cross", advice="'sum' is the paper's"),
            "tasks": TASKS.without("None"),
            "decreasing": DECREASING.without("None"),
            "towers": setting("a Module", "give a torch.nn.Module", "None").but(
                unknown=(
                    {"like": LAYER},
                    "towers: expected a module for each of ['click'], got ['like']; name them all",
                ),
            ),
            "rank": OPTIONAL_COUNT,
            "hash_buckets": OPTIONAL_COUNT,
            "projection": OPTIONAL_COUNT,
            "sparse": FLAG,
            "loss": choice(
                "pointwise", "listwise", "pairwise", "lambdarank", "jrc", advice="'pointwise' is the log loss"
            ),
        },
    ),
    "DualHead.forward": (lambda **given: DUAL(FEATURES, **given), {"context": ids()}),
    "DualHead.loss": (
        DUAL.loss,
        {"outputs": OUTPUTS.at(DUAL(FEATURES, IDS)), **TRAINING, "negative_rate": RATE_OF_ROWS},
    ),
    **{
        f"DualHead.{method}": (
            lambda method=method, **given: getattr(DUAL, method)(FEATURES, **given),
            {**TRAINING, "negative_rate": RATE_OF_ROWS},
        )
        for method in ("refit_served", "served_sums")
    },
    "DualHead.fit_served": (
        DUAL.fit_served,
        {
            "sums": setting("a mapping from names", "use served_sums", valid={}).but(
                unknown=({"like": SUMS}, "sums: expected 'click', got 'like'; name tasks of the model"),
                other=({"click": 3}, "sums 'click': expected a Histogram, got 3; use served_sums"),
            )
        },
    ),
    "DualHead.curves": (DUAL.curves, {"kind": choice("bias", "calibration")}),
    # isolayer.metrics
    **{
        f"metrics.{name}": (getattr(metrics, name), ROWS)
        for name in ("brier", "log_loss", "normalised_entropy", "pcoc", "smooth_ece")
    },
    **{
        f"metrics.{name}": (getattr(metrics, name), LOGITS)
        for name in ("log_loss_of_logit", "normalised_entropy_of_logit")
    },
    "metrics.auc": (metrics.auc, SCORES),
    "metrics.brier_decomposition": (metrics.brier_decomposition, ROWS | OF_BINS),
    "metrics.ece": (metrics.ece, ROWS | OF_BINS | {"norm": choice("l1", "l2"), "debiased": FLAG}),
    "metrics.ece_at_k": (
        metrics.ece_at_k,
        ROWS | OF_BINS | {"query": keys(SEGMENT), "k": count(advice="10 is usual"), "debiased": FLAG},
    ),
    "metrics.daily_scores": (metrics.daily_scores, ROWS | {"day": keys(POSITION).called("segment")}),
    "metrics.delta_auc_percent": (
        metrics.delta_auc_percent,
        SCORES | {"baseline_score": numbers(SCORE).called("score"), "against": choice("auc", "chance")},
    ),
    "metrics.delta_auc_percent_by_task": (
        metrics.delta_auc_percent_by_task,
        {
            "label": TASK_COLUMNS.at({"click": LABEL}),
            "score": TASK_COLUMNS.at({"click": SCORE}),
            "baseline_score": TASK_COLUMNS.at({"click": SCORE}).but(
                missing=({}, "baseline_score: expected every task of score, got none for ['click']; add these columns")
            ),
            "weight": weights(),
        },
    ),
    "metrics.delta_ne_percent": (metrics.delta_ne_percent, ROWS | {"baseline_prob": probs(PROB).called("prob")}),
    "metrics.f_rce": (metrics.f_rce, ROWS | {"field": keys(SEGMENT).called("segment"), "epsilon": EPSILON}),
    "metrics.mf_rce": (metrics.mf_rce, ROWS | {"fields": FIELDS, "epsilon": EPSILON}),
    **{
        f"metrics.{name}": (
            getattr(metrics, name),
            SCORES | {"group": keys(np.array([0, 0, 1, 1])), "label": labels([0, 1, 1, 0])},
        )
        for name in ("gauc", "gauc_sums")
    },
    **{f"metrics.{name}": (getattr(metrics, name), BY_LIST) for name in ("ndcg", "ndcg_sums")},
    "metrics.multicalibration_error": (
        metrics.multicalibration_error,
        ROWS | {"groups": keys(SEGMENT).called("group"), "level": LEVEL, "min_rows": count()},
    ),
    "metrics.observed_over_expected": (
        metrics.observed_over_expected,
        ROWS | {"context": keys(SEGMENT).called("segment"), "level": LEVEL, "cluster": CLUSTER},
    ),
    "metrics.segmented_ne": (metrics.segmented_ne, ROWS | {"segment": keys(SEGMENT)}),
    "metrics.ratio_table": (metrics.ratio_table, SEGMENT_SUMS | {"level": LEVEL}),
    "metrics.f_rce_of": (metrics.f_rce_of, SEGMENT_SUMS | {"epsilon": EPSILON}),
    "metrics.segmented_ne_of": (metrics.segmented_ne_of, SEGMENT_SUMS),
    "metrics.daily_scores_of": (metrics.daily_scores_of, SEGMENT_SUMS),
    "metrics.Sums.from_rows": (metrics.Sums.from_rows, ROWS),
    "metrics.Sums.from_logits": (metrics.Sums.from_logits, LOGITS),
    "metrics.Sums.from_table": (metrics.Sums.from_table, FROM_TABLE),
    "metrics.Sums.merge": (
        metrics.Sums.from_rows(LABEL, PROB).merge,
        {"other": setting("a Sums", OTHER, valid=metrics.Sums.from_rows(LABEL, PROB))},
    ),
    "metrics.SegmentSums.from_rows": (metrics.SegmentSums.from_rows, ROWS | {"segment": keys(SEGMENT)}),
    "metrics.SegmentSums.from_table": (
        metrics.SegmentSums.from_table,
        FROM_TABLE | {"segment": Param("device", TABLE_COLUMN)},
    ),
    "metrics.SegmentSums.merge": (
        SEGMENTS.merge,
        {
            "other": setting("a SegmentSums", OTHER, valid=SEGMENTS).but(
                other_type=(
                    metrics.SegmentSums.from_rows(LABEL, PROB, POSITION),
                    "other: expected segments of type <U1, got int64; convert one of the columns",
                )
            )
        },
    ),
    "metrics.BinSums.from_rows": (metrics.BinSums.from_rows, ROWS | {"bins": count(2, 1 << 24, "4096 is usual")}),
    "metrics.BinSums.from_table": (
        metrics.BinSums.from_table,
        FROM_TABLE | {"bins": count(2, 1 << 24, "4096 is usual")},
    ),
    "metrics.BinSums.of_distinct": (metrics.BinSums.of_distinct, ROWS),
    "metrics.BinSums.merge": (BINS.merge, {"other": setting("a BinSums", OTHER, valid=BINS)}),
    "metrics.BinSums.ece": (BINS.ece, OF_BINS | {"norm": choice("l1", "l2"), "debiased": FLAG}),
    "metrics.BinSums.grouped": (
        BINS.grouped,
        {"bins": OF_BINS["bins"].at(5), "binning": OF_BINS["binning"].at("mass")},
    ),
    "metrics.BinSums.brier_parts": (BINS.brier_parts, OF_BINS),
    "metrics.MeanSums.merge": (
        metrics.MeanSums(1.0, 2.0).merge,
        {"other": setting("a MeanSums", OTHER, valid=metrics.MeanSums(1.0, 2.0))},
    ),
    # isolayer.policy
    "policy.Estimate": (policy.Estimate, {"gain": numbers(SCORE), "mass": numbers(np.ones(N))}),
    "policy.Estimate.normal": (ESTIMATE.normal, {"level": LEVEL}),
    "policy.Estimate.bootstrap": (
        ESTIMATE.bootstrap,
        {"level": LEVEL, "resamples": count(advice="1000 is usual"), "seed": SEED},
    ),
    "policy.importance_weight": (
        policy.importance_weight,
        {
            "target_prob": numbers(PROB).but(
                above=(
                    [2.0] * N,
                    "target_prob: expected probabilities in [0, 1], got 2; pass probabilities, not logits",
                )
            ),
            "logging_prob": numbers(PROB).but(
                zero=(
                    [0.0] * N,
                    "logging_prob: expected probabilities in (0, 1], got 0; drop rows the logger cannot produce",
                )
            ),
            "clip": number("a positive number", "leave it out to clip nothing", "inf", "fraction"),
        },
    ),
    "policy.effective_sample_size": (policy.effective_sample_size, {"weight": weights(np.ones(N)).without("short")}),
    "policy.expected_reward": (
        policy.expected_reward,
        {
            name: matrix(np.full((N, 2), 0.5), N, 2, rule="expected 2 dimensions, got shape (); reshape it")
            for name in ("target_prob", "reward_hat")
        },
    ),
    **{f"policy.{name}": (getattr(policy, name), LOGGED) for name in ("dr", "estimates")},
    **{
        f"policy.{name}": (getattr(policy, name), {"reward": LOGGED["reward"], "weight": LOGGED["weight"]})
        for name in ("ipw", "snipw")
    },
    "policy.dm": (policy.dm, {"target_hat": numbers(PROB).without("short")}),
    "policy.dros": (
        policy.dros,
        LOGGED | {"shrinkage": number("a number >= 0", 'or "auto"', "inf", "zero", "fraction")},
    ),
    "policy.switch_dr": (
        policy.switch_dr,
        LOGGED | {"threshold": number("a number >= 0", 'or "auto"', "inf", "zero", "fraction")},
    ),
    "policy.softmax_propensity": (
        policy.softmax_propensity,
        {
            "utility_logit": matrix(np.zeros((N, 2)), N, 2, rule="expected an array, got shape (); give one"),
            "temperature": TEMPERATURE,
        },
    ),
    "policy.ranking_propensity": (
        policy.ranking_propensity,
        {
            "utility_logit": matrix(np.zeros((N, 3)), N, 3, rule="expected an array, got shape (); give one"),
            "ranking": Param(
                np.array([[0, 1]] * N),
                {
                    "None": (None, NOT_A_COLUMN % "None"),
                    "fractions": (
                        np.full((N, 2), 0.5),
                        "{name}: expected integers from 0 to 2, got float64 values; number them from 0",
                    ),
                    "beyond": (
                        np.full((N, 2), 9),
                        "{name}: expected integers from 0 to 2, got 9 at [0, 0] and 7 more; number them from 0",
                    ),
                    "twice": (
                        np.zeros((N, 2), int),
                        "{name}: expected different items, got one twice in a slate; an item is shown once",
                    ),
                    "short": (np.array([[0, 1]]), "{name}: expected one for each of the 4 slates, got 1; align them"),
                },
            ),
            "temperature": TEMPERATURE,
        },
    ),
    "policy.placement_prob": (
        policy.placement_prob,
        {
            "utility_logit": matrix(np.zeros((N, 3)), N, 3, rule="expected an array, got shape (); give one"),
            "positions": count(1, 3, "show at most all items", valid=2),
            "temperature": TEMPERATURE,
        },
    ),
    "policy.exposure": (
        policy.exposure,
        {
            "placement": matrix(np.full((N, 2, 2), 0.5), N, 2, 2, rule="expected an array, got shape (); give one"),
            "examination": matrix(np.array([1.0, 0.5]), 2, rule="expected an array, got shape (); give one").but(
                nan=None
            ),
        },
    ),
    "policy.curve_examination": (
        policy.curve_examination,
        {
            "curves": setting("a Curves", "use DualHead.curves, or load them", valid=CURVES),
            "relevance_logit": numbers(SCORE).without("short", "empty"),
            "context": CONTEXT,
            "reference": CONTEXT,
        },
    ),
    "policy.item_position": (
        policy.item_position,
        {
            name: matrix(np.full((2, 2), 0.5), 2, 2, rule="expected an array, got shape (); give one")
            for name in ("click", "target_placement", "logging_placement")
        },
    ),
    "policy.ranked_positions": (
        policy.ranked_positions,
        {"score": numbers(SCORE).without("short"), "session": keys(SEGMENT)},
    ),
    "policy.position_based": (
        policy.position_based,
        {
            name: matrix(np.full((2, 2), 0.5), 2, 2, rule="expected an array, got shape (); give one")
            for name in ("click", "target_exposure", "logging_exposure")
        },
    ),
    # isolayer.simulate
    "simulate.Population": (
        simulate.Population,
        {
            "users": count(advice="raise it"),
            "items": count(2, advice="raise it"),
            "features": count(6, advice="raise it"),
            "hidden": SHARE,
            "spurious_relevance": SHARE,
            "seed": SEED,
        },
    ),
    "simulate.PositionBased": (
        simulate.PositionBased,
        {
            "examination": probs([0.5], advice="give one share per position").without("None", "short"),
            "eta": ETA,
            "noise": UNIT,
        },
    ),
    "simulate.Trust": (simulate.Trust, {"eta": ETA}),
    "simulate.DynamicBayesian": (simulate.DynamicBayesian, {"continuation": UNIT, "eta": ETA}),
    "simulate.DependentClick": (simulate.DependentClick, {"beta": UNIT, "eta": ETA, "noise": UNIT}),
    "simulate.Contextual": (
        simulate.Contextual,
        {
            "eta": ETA,
            "query": Param(DEFAULT, {"two": ((1.0, 2.0), "query: expected 3 factors, got 2; one per length")}),
            "noise": UNIT,
        },
    ),
    "simulate.Mixture": (
        simulate.Mixture,
        {
            "behaviours": setting(
                "at least two", "use simulate.PositionBased() and another", valid=(simulate.Trust(), simulate.Trust())
            ).but(
                others=((1, 2), "behaviours: expected eta, curve and act, got 1; use simulate.PositionBased()"),
            ),
            "shares": Param(
                DEFAULT,
                {"one": ((1.0,), "shares: expected 2 that add up to 1, got (1.0,); give one per behaviour")},
            ),
            "eta": ETA,
        },
    ),
    "simulate.Distortion": (simulate.Distortion, {"eta": ETA, "seed": SEED}),
    "simulate.Drift": (
        simulate.Drift,
        {
            name: number("a finite number", "give the change per day", "minus", "zero", "fraction")
            for name in ("position_bias", "relevance", "rate")
        },
    ),
    "simulate.Logger": (
        simulate.Logger,
        {
            name: number("a finite number", "give the weight of this part of the score", "minus", "zero", "fraction")
            for name in ("relevance", "spurious", "informed", "grade", "popularity")
        }
        | {name: number("a number >= 0", "0 leaves it out", "zero", "fraction") for name in ("noise", "temperature")},
    ),
    "simulate.Task": (
        simulate.Task,
        {
            "name": setting("a name", "name the column of the label", "text", valid="buy"),
            "rate": setting("a number in (0, 1)", "give a probability", valid=0.1),
            "slope": number("a finite number", "1.0 is usual", "minus", "zero", "fraction"),
            "own": SHARE,
            "after": setting("a name", "name the task it is conditional on, or None", "None", "text"),
        },
    ),
    "simulate.Feed": (
        simulate.Feed,
        {
            **{
                name: setting(f"a {name.title()}", f"use simulate.{name.title()}(...)")
                for name in ("population", "logger", "drift")
            },
            "behaviour": setting("eta, curve and act", "use simulate.PositionBased()"),
            "tasks": setting("a tuple of tasks", "use simulate.Task(...)").but(
                list=([1.0], "tasks: expected a Task, got 1.0; use simulate.Task(...)")
            ),
            "positions": count(1, 10_000, "list at most half the items, or add items"),
            "days": count(advice="raise it"),
        },
    ),
    **{
        f"simulate.Feed.{method}": (
            getattr(FEED, method),
            {
                "sessions": SESSIONS,
                "seed": SEED,
                "policy": setting("a function", "give a function of the features", "None"),
            },
        )
        for method in ("log", "batches")
    },
    "simulate.closed_loop": (
        simulate.closed_loop,
        {
            "feed": setting("a Feed", "use simulate.Feed(...)", valid=FEED),
            "policies": setting(
                "a mapping from names", "name each function of the features", valid={"first": lambda x: x[:, 0]}
            ).but(
                none=({}, "policies: expected at least one, got none; name a function of the features"),
                other=({"a": 3}, "policies 'a': expected a function, got 3; give a function of the features"),
                no_scores=(
                    {"a": lambda x: None},
                    "scores of the policy: expected a column, got None; give a list, an array or a Series",
                ),
                two_scores=(
                    {"a": lambda x: x},
                    r"~scores of the policy: expected one dimension, got shape \(20, 12\); .*",
                ),
            ),
            "sessions": SESSIONS,
            "seed": SEED,
            "common_random_numbers": FLAG,
        },
    ),
    "simulate.UserMetrics.per_session": (
        simulate.closed_loop(FEED, {"a": lambda x: x[:, 0]}, 2)["a"].per_session,
        {"metric": choice("click", "dcg", valid="click")},
    ),
    "simulate.debias_feed": (
        simulate.debias_feed,
        {
            "bias": choice("position", "trust", "cascade", "dependent", "contextual", "mixture"),
            "logger": choice("spurious", "popular", "informed"),
            "deterministic": FLAG,
            "seed": SEED,
        },
    ),
    "simulate.scored_log": (
        simulate.scored_log,
        {"rows": count(advice="count from 1"), "days": count(1, 3650, advice="count from 1"), "seed": SEED},
    ),
    "simulate.self_test": (
        simulate.self_test,
        {
            "feed": setting("a Feed", "use simulate.Feed(...)", "None", valid=FEED),
            "sessions": count(advice="20,000 is usual", valid=20),
            "seed": SEED,
        },
    ),
    # isolayer.debias
    "debias.BoostedRanker": (
        debias.BoostedRanker,
        {
            "contexts": SIZES.at({"position": 5}).but(
                none=({}, "contexts: expected at least one feature, got none; without bias use the engine itself")
            ),
            "engine": choice("lightgbm", "xgboost"),
            "curves": choice("network", "trees"),
            "teacher": setting("a number in [0, 1]", "0.5 is usual, 0 is labels alone", "zero", "None"),
            "rounds": count(advice="200 is usual"),
            "learning_rate": setting("a number in (0, 1]", "0.1 is usual"),
            "leaves": count(2, advice="15 is usual"),
            "l2": number("a number >= 0", "100 is usual", "zero", "fraction"),
            "seed": SEED,
        },
    ),
    "debias.BoostedRanker.fit": (
        lambda **given: debias.BoostedRanker({"position": 5}, curves="trees", rounds=2).fit(**given),
        {
            "features": BOOSTED_MATRIX.but(
                constant=(
                    np.ones((MANY, 3)),
                    "features: expected at least one that varies, got constants only; check the columns",
                )
            ),
            "label": labels(np.tile(LABEL, 100), MANY).but(
                one_class=([1] * MANY, "label: expected both classes for fit, got only 1; use more rows"),
            ),
            "context": setting("a mapping from names", "give ids of each feature", valid=BOOSTED_IDS).but(
                missing=({}, "context: expected ids for 'position', got keys []; add them"),
            ),
            "lists": keys(DEFAULT, MANY).without("None"),
            "weight": weights(n=MANY),
        },
    ),
    **{
        f"debias.BoostedRanker.{name}": (getattr(BOOSTED, name), {"features": BOOSTED_MATRIX})
        for name in ("predict", "predict_proba")
    },
    "debias.BoostedRanker.curves": (BOOSTED.curves, {"kind": choice("bias", "calibration")}),
    "debias.BoostedRanker.save": (BOOSTED.save, {"folder": PATH.at(FOLDER / "ranker")}),
    "debias.BoostedRanker.load": (debias.BoostedRanker.load, {"folder": PATH.at(FOLDER / "ranker")}),
    "debias.evaluate": (
        debias.evaluate,
        {
            "log": setting("a mapping from names", "give columns by name", valid=EVALUATED).but(
                missing=({}, "log: expected a column 'click', got []; add or rename it")
            ),
            "old": keys([0, 1] * 100, 200)
            .without(*keys([]).mistakes)
            .but(
                beyond=(
                    [9] * 200,
                    "old: expected integers from 0 to 4, got 9 in row 0 and 199 more; number them from 0",
                )
            ),
            "new": Param([1, 0] * 100, {"None": (None, NOT_A_COLUMN.replace("{name}", "new") % "None")}),
            "curves": setting(
                "a Curves", "use DualHead.curves, or leave it out to learn them", "None", valid=DUAL.curves()
            ),
            "relevance": setting("a name", "name a column", "text"),
            "label": setting("a name", "name the column of clicks", "text"),
            "session": setting("a name", "name the column of lists", "text"),
            "least_share": setting("a number in [0, 1)", "0.05 is usual", "zero"),
        },
    ),
    "debias.evaluate without curves": (
        debias.evaluate,
        {
            "log": Param({**EVALUATED, "features": np.ones((200, 2))}, {}),
            "old": Param([0, 1] * 100, {}),
            "new": Param([1, 0] * 100, {}),
            "contexts": setting("distinct names", "name columns of the log, 'position' among them"),
            "seed": SEED,
        },
    ),
    "debias.Evaluation.interval": (
        debias.Evaluation(1.0, 1.0, 1.0, 0.1, 9.0, 9, 3).interval,
        {"level": LEVEL},
    ),
    "debias.Naive": (lambda **given: model(debias.Naive, **given), HEADS),
    **{
        f"debias.{kind.__name__}": (
            lambda kind=kind, **given: model(kind, **given),
            {**HEADS, "contexts": SIZES.but(none=({}, NO_CONTEXT)), **more},
        )
        for kind, more in {
            debias.AdditiveTower: {},
            debias.PAL: {},
            debias.TrustAffine: {},
            debias.PositionAsFeature: {"dim": count()},
            debias.PositionDropout: {"dim": count(), "drop": setting("a number in (0, 1)", "the paper's is 0.15")},
            debias.DualLearning: {
                "feature": setting("'position'", "name the one that is the position", "None"),
                "group": setting("a name", "name the key of the context that holds the list of each row", "text"),
                "clip": number("a positive number", "100 is usual", "inf", "fraction"),
            },
        }.items()
    },
    **{
        f"debias.{kind.__name__}": (
            lambda kind=kind, **given: model(kind, **given),
            {
                **HEADS,
                "positions": count(advice="give the length of the lists"),
                "feature": setting("a name", "name the context feature that is the position", "text"),
                "group": setting("a name", "name the key of the context that holds the list of each row", "text"),
                **({"step": MOVES, "norm": NORM} if kind is debias.PairwiseDebiasing else {}),
            }
            if kind is not debias.RegressionEM
            else {
                **HEADS,
                "positions": count(advice="give the length of the lists"),
                "feature": setting("a name", "name the context feature that is the position", "text"),
                "step": MOVES,
            },
        )
        for kind in BY_POSITION
    },
    "debias.GradientReversal": (
        lambda **given: model(debias.GradientReversal, **given),
        {
            **HEADS,
            "contexts": SIZES.but(none=({}, NO_CONTEXT)),
            "eta": number("a number >= 0", "0 leaves the reversal out", "zero", "fraction"),
            "dim": count(),
        },
    ),
    "debias.RegressionEM.forward": (lambda **given: REM(FEATURES, **given), {"context": ids(rows="batch")}),
    "debias.GradientReversal.forward": (lambda **given: REVERSAL(FEATURES, **given), {"context": ids(rows="batch")}),
    "debias.PairwiseDebiasing.forward": (
        lambda **given: PAIRS(FEATURES, **given),
        {
            "context": ids(LISTS, rows="batch").but(
                no_lists=(IDS, "context: expected 'session', the list of each row, got ['position']; add it")
            )
        },
    ),
    **{
        f"debias.{type(one).__name__}.loss": (
            one.loss,
            {
                "outputs": setting("an Outputs", "pass what forward returned", valid=one(FEATURES, LISTS)).but(
                    others=(
                        Outputs.of({}, None),
                        "outputs: expected those of this model, got something else; " + FORWARD,
                    )
                ),
                **TRAINING,
            },
        )
        for one in (REM, PAIRS, REVERSAL)
    },
    "debias.placement_weights": (
        debias.placement_weights,
        {
            "features": TWO_COLUMNS,
            "position": TWO_POSITIONS.without("short"),
            "positions": count(2, advice="with one position there is nothing to weight", valid=2),
            "clip": number("a number >= 1", "10 is usual", "fraction"),
        },
    ),
    "debias.InversePropensity": (
        lambda **given: model(debias.InversePropensity, **given),
        {
            **HEADS,
            "propensity": numbers([1.0, 0.5])
            .without("short")
            .but(zero=([1.0, 0.0], f"propensity: expected positive numbers, got 0.0 in row 1; {ESTIMATE_AGAIN}")),
            "clip": setting("a number in (0, 1]", "0.01 is usual"),
            "feature": setting("a name", "name the context feature that is the position", "text"),
        },
    ),
    "debias.Naive.loss": (NAIVE.loss, {"outputs": OUTPUTS.at(NAIVE(FEATURES, IDS)), **TRAINING}),
    "debias.InversePropensity.forward": (lambda **given: IPS(FEATURES, **given), {"context": ids(rows="batch")}),
    "debias.InversePropensity.loss": (
        IPS.loss,
        {
            "outputs": OUTPUTS.at(IPS(FEATURES, IDS)).but(
                none=({}, NO_OUTPUT % "relevance_logit"), other=(NAIVE(FEATURES, IDS), NO_OUTPUT % "event_cost")
            ),
            **TRAINING,
        },
    ),
    "debias.DualLearning.forward": (
        lambda **given: DLA(FEATURES, **given),
        {
            "context": setting("a mapping from names", "give ids of each feature", valid=LISTS).but(
                missing=(IDS, "context: expected 'session', the list of each row, got ['position']; add it"),
                a_list=(
                    {**IDS, "session": ["a"] * N},
                    "context 'session': expected integer ids, got ['a', 'a', 'a', 'a']; number the values from 0",
                ),
            )
        },
    ),
    "debias.DualLearning.loss": (
        DLA.loss,
        {"outputs": OUTPUTS.at(DLA(FEATURES, LISTS)).but(none=({}, NO_OUTPUT % "relevance_logit")), **TRAINING},
    ),
    "debias.PositionPredictor": (
        debias.PositionPredictor,
        {
            "model": setting("a DualHead", "build a DualHead first", valid=DUAL),
            "tower": MODULE.at(backbone()),
            "width": count(advice="give the width of the tower's output", valid=4),
            "given": choice("features", "relevance"),
            "gamma": number("a positive number", "at 0 the tower would not be trained", "fraction"),
            "pool": choice("probabilities", "embeddings", advice="the paper's is 'embeddings'"),
        },
    ),
    "debias.PositionPredictor.forward": (lambda **given: PAP(FEATURES, **given), {"context": ids()}),
    "debias.PositionPredictor.loss": (
        PAP.loss,
        {"outputs": setting("a PooledHeads", "pass what forward returned", valid=PAP(FEATURES, IDS)), **TRAINING},
    ),
    "debias.Serving": (
        debias.Serving,
        {
            "backbone": MODULE.at(backbone()),
            "relevance": MODULE.at(backbone(4)),
            "tasks": setting("distinct names", "name each label once", valid=("click",)),
            "decreasing": setting("distinct names among ['click']", "name tasks only"),
            "curve": setting("a FrozenCurves", "use FrozenCurves.from_layer", "None"),
            "shares": MODULE.without("None"),
            "shares_given": choice("features", "relevance"),
        },
    ),
    "debias.ShallowHead": (
        debias.ShallowHead,
        {
            "contexts": SIZES.at({"position": 5}),
            "units": count(),
            "hidden": count(),
            "lower": number("a finite number", "-6 and 3 are usual", "minus", "zero", "fraction"),
            "upper": number("a finite number", "-6 and 3 are usual", "minus", "zero", "fraction"),
        },
    ),
    "debias.ShallowHead.forward": (STUDENT.forward, {"logit": LOGIT, "context": ids()}),
    "debias.distill": (
        debias.distill,
        {
            "teacher": setting(
                "a function", "give a ContextIsotonicLayer, or the context_curves of a DualHead", valid=CONTEXT_LAYER
            ).but(
                other=(lambda logit, context: 1, "output of the teacher: expected a tensor, got 1; use torch.as_tensor")
            ),
            "contexts": SIZES.at({"position": 5}),
            "logit": FLOATS.at(torch.linspace(-1, 1, 20).unsqueeze(1)).but(
                tensor=(torch.zeros(3), "logit: expected shape [n, units] with n >= 10, got [3]; use more rows")
            ),
            "context": ids({"position": torch.zeros(20, dtype=torch.int64)}, 20, 20),
            "label": TENSOR.without("None").but(
                tensor=(torch.zeros(3), "label: expected shape [20, 1], got [3]; one column per unit")
            ),
            "hidden": count(),
            "steps": count(valid=2),
            "seed": SEED,
        },
    ),
    "debias.post_hoc": (
        debias.post_hoc,
        {
            "model": setting("a Naive", "train a model of isolayer.debias other than DualHead", valid=NAIVE),
            "features": Param(FEATURES, {}),
            "labels": TARGETS,
            "method": choice("platt", "isotonic", valid="platt"),
            "weight": ROW_WEIGHT,
            "grid": GRID,
        },
    ),
    "debias.export_onnx": (
        debias.export_onnx,
        {
            "serving": MODULE.at(DUAL.serving()),
            "path": PATH.at(FOLDER / "serving.onnx"),
            "columns": setting("a mapping from names", "give width, mean and std", valid=ONNX_COLUMNS).but(
                missing=({}, "columns: expected width, mean and std, got []; add the missing ones"),
                short=(
                    ONNX_COLUMNS | {"mean": [0.0]},
                    "columns 'mean': expected 3 rows like the other columns, got 1; align the columns",
                ),
                width=(
                    ONNX_COLUMNS | {"width": 2.5},
                    "columns 'width': expected a positive integer, got 2.5; give the number of features",
                ),
            ),
        },
    ),
    "debias.em_propensity": (
        debias.em_propensity,
        {
            "features": TWO_COLUMNS,
            "position": TWO_POSITIONS,
            "label": labels([1, 1, 1, 0]).but(
                soft=([0.5] * N, "label: expected 0 or 1, got soft labels; a propensity is estimated from events")
            ),
            "positions": count(valid=2),
            "weight": weights(),
            "rounds": count(advice="100 is usual"),
        },
    ),
    "debias.harvest": (
        debias.harvest,
        {
            "unit": keys(np.array([0, 0, 1, 1])),
            "position": keys(np.array([0, 1, 0, 1])),
            "label": labels([1, 1, 1, 0]),
            "weight": weights(),
            "cluster": CLUSTER,
        },
    ),
    "debias.Harvested.interval": (HARVESTED.interval, {"level": LEVEL}),
    "debias.Harvested.examination": (HARVESTED.examination, {"positions": count(valid=2)}),
    "debias.overlap": (
        debias.overlap,
        {
            "position": keys(np.array([0, 1, 0, 1])),
            "label": labels([1, 1, 1, 0]),
            "item": keys(np.array([0, 0, 1, 1])).but(
                **{
                    "None": (
                        None,
                        "overlap: expected item or features, got both or neither; name one column to compare by",
                    )
                }
            ),
            "features": Param(
                DEFAULT,
                {
                    "both": (
                        FEATURES,
                        "overlap: expected item or features, got both or neither; name one column to compare by",
                    )
                },
            ),
            "cells": count(advice="try 200"),
            "cluster": CLUSTER,
        },
    ),
    "debias.overlap by features": (
        debias.overlap,
        {
            "position": numbers([0, 1, 0, 1]),
            "label": labels([1, 1, 1, 0]),
            "features": matrix(
                np.arange(8.0).reshape(N, 2), N, 2, rule="expected 2 dimensions, got shape (); reshape it"
            ).without("None"),
        },
    ),
    "debias.after_training": (
        debias.after_training,
        {
            "label": labels(LABEL),
            "observed_prob": probs(PROB),
            "relevance_logit": numbers(SCORE),
            "context": setting(
                "a mapping from names", "give columns by name, 'position' among them", valid={"position": POSITION}
            ).but(missing=({}, "context: expected a column 'position', got []; rename or add it")),
            "session": Param(
                DEFAULT,
                {"few": ([0, 0, 1, 1], "session: expected lists of several items, 2 rows share one; use more rows")},
            ),
            "features": matrix(DEFAULT, N, 2, rule="expected 2 dimensions, got shape (); reshape it").without("None"),
            "learned": numbers(DEFAULT).without("None", "short"),
            "buckets": count(advice="5 is usual"),
            "cluster": CLUSTER,
        },
    ),
    "debias.logger_test": (
        debias.logger_test,
        {
            "label": labels(LISTED["label"], 240),
            "observed_prob": probs(LISTED["prob"], 240),
            "relevance_logit": numbers(LISTED["score"], 240),
            "position": numbers(LISTED["position"], 240),
            "session": keys(LISTED["session"], 240),
            "features": matrix(DEFAULT, 240, 2, rule="expected 2 dimensions, got shape (); reshape it").without("None"),
            "cluster": keys(DEFAULT, 240).without("None"),
        },
    ),
    "debias.position_effect": (
        debias.position_effect,
        {
            "curves": setting("a Curves", "use DualHead.curves", valid=DUAL.curves()),
            "event_logit": numbers(SCORE),
            "context": setting(
                "a mapping from names", "give columns by name, 'position' among them", valid={"position": POSITION}
            ).but(missing=({}, "context: expected a column 'position', got []; rename or add it")),
            "task": setting("'click'", "name a task of the model"),
        },
    ),
}


def run(entry: str, name: str) -> list[str]:
    """What is wrong with the answers to the mistakes that can be made with one parameter."""
    call, params = TABLE[entry]
    valid = {other: param.valid for other, param in params.items() if param.valid is not DEFAULT}
    wrong = []
    for what, (bad, message) in params[name].mistakes.items():
        try:
            call(**{**valid, name: bad})
        except InputError as error:
            answer = str(error)
        except Exception as error:  # whatever is raised instead is what this table is about
            answer = f"{type(error).__name__}: {error}"
        else:
            answer = "accepted"
        expected = message.replace("{name}", name)
        fits = re.fullmatch(expected[1:], answer) if expected.startswith("~") else expected == answer
        if not fits:
            wrong.append(f"{what}\n  expected {expected}\n  answered {answer}")
    return wrong


SLOW = {
    *("WatchedScorer", "mlflow.log_model", "mlflow.load_model", "mlflow.save_model", "nn.sharded.data_parallel"),
    "nn.sharded.ShardedContextIsotonicLayer",
    "IsotonicCalibrator.report",
    "debias.export_onnx",
}  # seconds each, or servers and processes; other tests run them


@pytest.mark.filterwarnings("ignore::isolayer.debias.EstimatesDisagree")  # every click is at the first position
@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry not in SLOW])
def test_the_valid_call_is_accepted(entry):
    call, params = TABLE[entry]
    call(**{name: param.valid for name, param in params.items() if param.valid is not DEFAULT})


@pytest.mark.parametrize(("entry", "name"), [(entry, name) for entry, (_, params) in TABLE.items() for name in params])
def test_every_mistake_is_answered_in_words(entry, name):
    wrong = run(entry, name)
    assert not wrong, f"{entry}({name}=...)\n" + "\n".join(wrong)


# The table is complete.

PACKAGES = ("isolayer", "isolayer.debias", "isolayer.metrics", "isolayer.policy", "isolayer.simulate")

# What the package makes and users only read; its methods are in the table.
RECORDS = {
    "Audit",
    "Curves",
    "Histogram",
    *(
        f"debias.{name}"
        for name in ("Diagnosis", "Distilled", "Evaluation", "Harvested", "Heads", "LoggerTest", "Overlap")
    ),
    *(f"metrics.{name}" for name in ("BinSums", "BrierParts", "DailyScores", "MeanSums", "Multicalibration")),
    *(f"metrics.{name}" for name in ("ObservedOverExpected", "SegmentSums", "SegmentedNE", "Sums")),
    *(f"simulate.{name}" for name in ("Behaviour", "Check", "UserMetrics")),
}

# What the package calls with columns and settings that it has checked, in inner loops.
INNER = {
    "Curves.deviation",
    "Curves.evaluate",
    "Curves.refuse_terms",
    "Grid.place",
    "Histogram.cells_where",
    "Histogram.only_cells",
    "Histogram.parents",
    *(f"debias.{model}.observe" for model in ("AdditiveTower", "Naive", "PAL", "RegressionEM", "TrustAffine")),
    *(f"debias.{model}.represent" for model in ("Naive", "PositionAsFeature", "PositionDropout")),
    *(f"simulate.Feed.{name}" for name in ("candidates", "draws", "scores", "show")),
    *(f"simulate.Population.{name}" for name in ("direction", "features_of", "spurious", "visible")),
    *(
        f"simulate.{behaviour}.{name}"
        for behaviour in (
            "Behaviour",
            "Contextual",
            "Mixture",
            "DependentClick",
            "Distortion",
            "DynamicBayesian",
            "PositionBased",
            "Trust",
        )
        for name in ("act", "curve")
    ),
    "simulate.Distortion.map",
    "simulate.Logger.score",
    "simulate.Mixture.kind",
    *(f"simulate.{behaviour}.{name}" for behaviour in ("Contextual", "Mixture") for name in ("act", "curve")),
    "simulate.Trust.rates",
    "RowAdam.step",
    "ContextIsotonicLayer.at_embeddings",
}

# Parameters that only the caller's own backbone reads, or that scikit-learn asks for and nobody reads.
NOT_OURS = {
    *(f"DualHead.{name}: features" for name in ("forward", "refit_served", "served_sums")),
    *(f"debias.{model}.forward: features" for model in ("DualLearning", "InversePropensity", "PositionPredictor")),
    *(f"debias.{model}.forward: features" for model in ("RegressionEM", "PairwiseDebiasing", "GradientReversal")),
    "debias.Naive.forward: features",
    "debias.Naive.forward: context",
    "debias.Serving.forward: features",
    "IsotonicCalibrator.get_feature_names_out: input_features",
}


# Documented, but in modules that no package lists, since they need further dependencies or little of this library.
BESIDE = {
    "Scorer": (Scorer, Scorer.__call__),
    "WatchedScorer": (WatchedScorer,),
    "mlflow.save_model": (isolayer.mlflow.save_model,),
    "mlflow.log_model": (isolayer.mlflow.log_model,),
    "mlflow.load_model": (isolayer.mlflow.load_model,),
    "nn.sharded.ShardedContextIsotonicLayer": (ShardedContextIsotonicLayer,),
    "nn.sharded.data_parallel": (data_parallel,),
    # of every model, since they are inherited
    **{f"DualHead.{name}": (getattr(DualHead, name),) for name in ("refit_served", "served_sums", "fit_served")},
}


def public() -> Iterator[tuple[str, set[str]]]:
    """Every public function, constructor and method, and its parameters."""
    for entry, calls in BESIDE.items():
        yield entry, {name for call in calls for name in inspect.signature(call).parameters} - {"self", "options"}
    seen = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value, entry = getattr(module, name), f"{package}.{name}".removeprefix("isolayer.")
            if id(value) in seen or not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
                continue
            seen.add(id(value))
            if inspect.isfunction(value) or (inspect.isclass(value) and entry not in RECORDS):
                yield entry, set(inspect.signature(value).parameters)
            for method, found in vars(value).items() if inspect.isclass(value) else ():
                function = getattr(found, "__func__", found)
                if not method.startswith("_") and inspect.isfunction(function):
                    parameters = set(inspect.signature(getattr(value, method)).parameters) - {"self"}
                    if parameters:
                        yield f"{entry}.{method}", parameters


def test_every_public_entry_is_in_the_table():
    """A new function, method or parameter needs its rows here, or a reason above."""
    listed = dict[str, set[str]]()
    for entry, (_, params) in TABLE.items():
        listed.setdefault(entry.partition(" ")[0], set()).update(params)
    for row in NOT_OURS:
        entry, _, parameter = row.partition(": ")
        listed.setdefault(entry, set()).add(parameter)
    found = {entry: parameters for entry, parameters in public() if entry not in INNER}
    missing = {f"{entry}: {name}" for entry, names in found.items() for name in names - listed.get(entry, set())}
    assert not missing, f"no rows for {sorted(missing)}"


def test_the_table_has_no_entry_that_is_gone():
    found = dict(public())
    rows = {(entry.partition(" ")[0], name) for entry, (_, params) in TABLE.items() for name in params}
    rows |= {tuple(row.split(": ")) for row in NOT_OURS}
    assert not sorted(f"{entry}: {name}" for entry, name in rows if name not in found.get(entry, set()))
    assert not sorted(INNER - set(found))
    for entry in RECORDS:
        package, _, name = entry.rpartition(".")
        assert hasattr(importlib.import_module(f"isolayer.{package}".rstrip(".")), name), f"{entry} is gone"
