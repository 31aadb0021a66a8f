"""Tasks with many fields: the tables of :mod:`benchmarks.real`, with every column that was known at the time.

Text and codes are categorical fields, numbers numeric ones; missing values stay missing. KuaiRand's test rows are also
judged on users that no row to fit has: what is learned about a user by name helps nobody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.real import flights, surveys
from benchmarks.real.tasks import MOST_ROWS, Rows, folder, write

UNSEEN = ", unseen users"
CONTEXTS = {  # what somebody would choose by hand, coarse to fine
    "flights late good": ("origin", "carrier"),
    "flights cancelled good": ("origin", "carrier"),
    "census good": ("occupation", "education"),
    "census poor": ("occupation", "education"),
    "income good": ("occupation", "education"),
    "income poor": ("occupation", "education"),
    "employment": ("SCHL", "MAR"),
    "kuairand is_click": ("tab", "user_active_degree"),
    "kuairand is_like": ("tab", "user_active_degree"),
}
NAMES = (*CONTEXTS, *(f"{name}{UNSEEN}" for name in CONTEXTS if name.startswith("kuairand")))
_KEPT = ("score", "label", "cluster", "part")
_FLIGHT = (
    *("origin", "carrier", "dest", "hour", "weekday", "month", "distance", "built", "seats"),
    *("temp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"),
)
_USER = (
    *("user_active_degree", "is_live_streamer", "is_video_author", "follow_user_num", "fans_user_num"),
    *("friend_user_num", "register_days", *(f"onehot_feat{i}" for i in range(18))),
)
_VIDEO = ("video_type", "upload_type", "tag", "music_type", "video_duration")


@dataclass(frozen=True)
class Part:
    """Rows with their fields: ``rows`` as the judge takes them, ``frame`` with a column per field."""

    rows: Rows
    frame: pd.DataFrame

    def __getitem__(self, index: NDArray[np.int64]) -> Part:
        return Part(self.rows[index], self.frame.iloc[index].reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class FieldTask:
    """Rows to fit and rows to test; ``contexts`` are the fields that somebody would choose by hand."""

    name: str
    fit: Part
    test: Part
    contexts: tuple[str, ...]


def load(name: str) -> FieldTask:
    """The task of this name, built first if its table is not there."""
    base = name.removesuffix(UNSEEN)
    path = table_of(base)
    if not path.exists():
        build = next(make for start, make in _BUILDERS.items() if base.startswith(start))
        for made, table in build():
            write(table, table_of(made))
    table = pd.read_parquet(path)
    if name.endswith(UNSEEN):
        fitted = set(table.loc[table["part"] == "fit", "cluster"])
        table = table[(table["part"] == "fit") | ~table["cluster"].isin(fitted)].reset_index(drop=True)
    return _task(name, table, CONTEXTS[base])


def table_of(name: str) -> Path:
    """Where the table of a task is kept."""
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    return folder() / f"fields_{name.replace(' ', '_')}-{version}.parquet"


def categorical(frame: pd.DataFrame) -> list[str]:
    """Names of the categorical fields."""
    return [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]


def _task(name: str, table: pd.DataFrame, contexts: tuple[str, ...]) -> FieldTask:
    frame = table.drop(columns=list(_KEPT))
    codes = {column: pd.factorize(frame[column], use_na_sentinel=False)[0].astype(np.int64) for column in contexts}
    segment = pd.factorize(pd.MultiIndex.from_arrays(list(codes.values())))[0].astype(np.int64)
    rows = Rows(table["score"].to_numpy(), table["label"].to_numpy(), codes, segment, table["cluster"].to_numpy())
    whole, part = Part(rows, frame), table["part"].to_numpy()
    return FieldTask(name, whole[np.flatnonzero(part == "fit")], whole[np.flatnonzero(part == "test")], contexts)


def _wide(
    frame: pd.DataFrame,
    score: NDArray[np.float64],
    label: Sequence[int],
    cluster: Sequence[int],
    part: NDArray[np.str_],
) -> pd.DataFrame:
    text = {name: frame[name].astype("string") for name in categorical(frame)}
    table = frame.assign(**text, score=score, label=np.asarray(label, np.int64), part=part)
    table["cluster"] = pd.factorize(np.asarray(cluster))[0]
    kept = [table[table["part"] == one].sample(frac=1, random_state=0).head(MOST_ROWS) for one in ("fit", "test")]
    return pd.concat(kept, ignore_index=True)


def _flights() -> Iterator[tuple[str, pd.DataFrame]]:
    table = flights.read()
    table["weekday"] = pd.to_datetime(table[["year", "month", "day"]]).dt.weekday
    day = (table["month"] * 31 + table["day"]).to_numpy()
    third = np.random.default_rng(13).integers(0, 3, day.max() + 1)[day]
    half = np.random.default_rng(14).integers(1, 3, len(table))
    part = np.array(["base", "fit", "test"])[np.where(third == 0, 0, half)]
    for name, rows, label in (
        ("late", table["arr_delay"].notna().to_numpy(), table["arr_delay"].to_numpy() > 15),
        ("cancelled", np.ones(len(table), bool), table["dep_time"].isna().to_numpy()),
    ):
        own = table[rows].reset_index(drop=True)
        score = flights.scores(own, label[rows], "good", train=part[rows] == "base")
        yield f"flights {name} good", _wide(own[list(_FLIGHT)], score, label[rows], day[rows], part[rows])


def _surveys() -> Iterator[tuple[str, pd.DataFrame]]:
    for name, table, hidden, poor in (
        ("census", surveys.census(), ("education", "occupation", "sex"), ("age", "weeks")),
        ("income", surveys.income(), ("education", "years", "occupation"), ("age", "hours")),
    ):
        frame = table.drop(columns="label")
        part = np.array(["base", "fit", "test"])[np.random.default_rng(2).integers(0, 3, len(table))]
        for base, columns in (("good", [c for c in frame if c not in hidden]), ("poor", list(poor))):
            score = surveys.boosted(table, table["label"], part == "base", columns)
            yield f"{name} {base}", _wide(frame, score, table["label"], range(len(table)), part)
    table = surveys.employment()
    prob = table["predicted_probability"].clip(1e-6, 1 - 1e-6).to_numpy()
    part = np.where(table["year"] == 2016, "fit", np.where(table["year"] > 2016, "test", "base"))
    frame = table.drop(columns=["id", "employed", "year", "prediction", "predicted_probability"])
    frame = frame.assign(**{name: frame[name].astype("string") for name in frame if name != "AGEP"})
    score = np.log(prob / (1 - prob))
    yield "employment", _wide(frame, score, table["employed"], range(len(table)), part)


def _kuairand() -> Iterator[tuple[str, pd.DataFrame]]:
    import torch

    from research.data import kuairand_path
    from research.datasets import kuairand
    from research.kuairand_calibration import FITTED_FROM, TESTED_FROM, features
    from research.kuairand_tasks import TASKS, task_logits

    torch.manual_seed(0)
    columns = kuairand(kuairand_path())
    day = columns["date"]
    label = np.stack([columns[task] for task in TASKS], axis=1).astype(np.int64)
    logit = task_logits(features(columns), label, day < FITTED_FROM, seed=0, epochs=8)
    frame = pd.DataFrame({name: columns[name] for name in ("tab", *_USER, *_VIDEO)})
    codes = ["tab", "tag", "music_type", *(f"onehot_feat{i}" for i in range(18))]
    frame = frame.assign(**{name: frame[name].astype("string") for name in codes}, hour=columns["hourmin"] // 100)
    part = np.where(day < FITTED_FROM, "base", np.where(day < TESTED_FROM, "fit", "test"))
    for task in ("is_click", "is_like"):
        i = TASKS.index(task)
        yield f"kuairand {task}", _wide(frame, logit[:, i], label[:, i], columns["user_id"], part)


_BUILDERS = {"flights": _flights, "census": _surveys, "income": _surveys, "employment": _surveys, "kuairand": _kuairand}
