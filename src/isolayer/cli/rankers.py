"""What `train` and `tune` share: logs as Parquet, the columns that options name, and the ranker that they describe."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import distinct, matching, names
from isolayer.cli.logs import read
from isolayer.errors import InputError, need

Logs = Annotated[list[Path], typer.Argument(help="Parquet files, folders of them, or CSV or NDJSON files.")]
Tasks = Annotated[str, typer.Option(help="Label columns, comma-separated.")]
Decreasing = Annotated[
    str | None, typer.Option(help="The tasks that are less likely the more relevant an item is, such as skip.")
]
Contexts = Annotated[
    str,
    typer.Option(
        help="Columns that bias labels, comma-separated. Values of any type get ids; position:20 says that a column "
        "holds the ids 0 to 19."
    ),
]
Categories = Annotated[
    str | None, typer.Option(help="Numeric feature columns to treat as categories; text columns always are.")
]
ListId = Annotated[
    str | None,
    typer.Option(
        "--list",
        help="Column of the list each row belongs to; batches and held-out rows then consist of whole lists.",
    ),
]
Hidden = Annotated[str, typer.Option(help="Widths of the backbone's layers, comma-separated.")]
Mode = Annotated[
    str,
    typer.Option(
        help="sum adds the effects of the contexts; cross gives every combination of them a curve of its own."
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        help="Loss of the observed labels: pointwise, or one that compares the rows of a list: listwise, pairwise, "
        "lambdarank, jrc. Those need --list."
    ),
]


def first_process() -> bool:
    """Whether this process prints: it is the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def use_cores(most: int | None = None) -> int:
    """Use as many threads as there are cores for this process, unless OMP_NUM_THREADS says how many.

    More threads than cores wait for one another: eight threads on two cores took three times as long as two. If other
    processes use the cores too, even two threads of a small model took three times as long as one.

    Args:
        most: Largest number of threads.
    """
    some = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    threads = int(os.environ.get("OMP_NUM_THREADS") or min(some, most or some))
    need("torch").set_num_threads(threads)
    return threads


def cores() -> int:
    """Number of cores that this process may use: those of its affinity, and no more than its container's quota.

    >>> cores() >= 1
    True
    """
    some = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(some, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no quota, or no container
        return some


@contextmanager
def as_parquet(logs: list[Path]) -> Iterator[list[Path]]:
    """The logs as Parquet files and folders; others are converted into a folder that is deleted at the end."""
    for path in logs:
        if not path.exists():
            raise InputError(
                f"logs: expected a file, or a folder of Parquet files, at {str(path)!r}, got none; check it"
            )
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:
        yield [path if _is_parquet(path) else _converted(path, Path(folder), i) for i, path in enumerate(logs)]


def _is_parquet(path: Path) -> bool:
    if path.is_dir():
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix.lower() == ".parquet"


def _converted(path: Path, folder: Path, number: int) -> Path:
    found = folder / f"{number}.parquet"
    read([str(path)]).to_parquet(found)
    return found


@dataclass(frozen=True)
class Ranker:
    """The columns of a ranker, and how it is built.

    Args:
        features: Feature columns.
        tasks: Label columns.
        decreasing: Those of them that fall with relevance.
        contexts: Number of ids of each context column.
        vocabularies: Values of the columns that are not ids.
        hidden: Widths of the backbone's layers.
        mode: How contexts are combined.
        anchor: What the alpha loss trains.
        loss: Loss of the observed labels.
        all_columns: Columns of the log.
    """

    features: list[str]
    tasks: tuple[str, ...]
    decreasing: tuple[str, ...]
    contexts: dict[str, int]
    vocabularies: Mapping[str, Any]
    hidden: list[int]
    mode: str
    anchor: str
    loss: str
    all_columns: list[str]

    def columns(self) -> dict[str, Any]:
        """Columns as `isolayer.training.train.train` takes them."""
        return {
            "features": self.features,
            "tasks": list(self.tasks),
            "contexts": list(self.contexts),
            "vocabularies": self.vocabularies,
        }

    def setup(self) -> dict[str, Any]:
        """What the model depends on besides the columns and the settings of a trial."""
        names = ("hidden", "mode", "anchor", "loss", "decreasing")
        return {name: getattr(self, name) for name in names} | {"context sizes": self.contexts}

    def model(self, *, alpha: Any, beta: Any, dropout: float, seed: int) -> Any:
        """The model, untrained."""
        need("torch").manual_seed(seed)
        sizes = {self.features.index(name): len(v) for name, v in self.vocabularies.items() if name in self.features}
        backbone = need("isolayer.training.backbone").TableBackbone(
            len(self.features), self.hidden, sizes, dropout=dropout
        )
        return need("isolayer.debias.heads").DualHead(
            backbone,
            width=self.hidden[-1],
            tasks=self.tasks,
            decreasing=self.decreasing,
            contexts=self.contexts,
            alpha=alpha,
            beta=beta,
            mode=self.mode,
            anchor=self.anchor,
            loss=self.loss,
        )


def ranker(
    logs: list[Path],
    *,
    features: str,
    tasks: str,
    decreasing: str | None,
    contexts: str,
    categories: str | None,
    hidden: str,
    mode: str = "sum",
    anchor: str = "detached",
    loss: str = "pointwise",
    list_id: str | None = None,
    known: Mapping[str, Any] | None = None,
) -> Ranker:
    """The ranker that options describe; values of columns that hold no ids are read from the log.

    Args:
        logs: Parquet files and folders.
        features: Feature columns; these and the following are written as in the options.
        tasks: Label columns.
        decreasing: Decreasing tasks.
        contexts: Context columns, some with their number of ids.
        categories: Feature columns of ids.
        hidden: Widths.
        mode: How contexts are combined.
        anchor: What the alpha loss trains.
        loss: Loss of the observed labels.
        list_id: Column of the lists, which most losses need.
        known: Vocabularies of an earlier day, to be used again.
    """
    if loss != "pointwise" and list_id is None:
        raise InputError(f"--list: expected a column of lists, since --loss {loss} compares lists, got none; name it")
    sizes, labels, widths = context_sizes(contexts), distinct(names(tasks), "--tasks"), layer_widths(hidden)
    schema = _schema(logs)
    columns = matching(features, list(schema.names))
    text = [name for name in columns if _is_text(schema.field(name).type)]
    ids = [] if categories is None else matching(categories, columns, "--categories")
    wanted = [*dict.fromkeys([*text, *ids]), *(name for name, size in sizes.items() if size is None)]
    _refuse_missing(wanted, schema.names)
    vocabularies = {name: known[name] for name in wanted if known and name in known}
    vocabularies |= _read_vocabularies(logs, [name for name in wanted if name not in vocabularies])
    counted = {name: len(vocabularies[name]) if size is None else size for name, size in sizes.items()}
    falling = distinct(names(decreasing), "--decreasing")
    return Ranker(columns, labels, falling, counted, vocabularies, widths, mode, anchor, loss, list(schema.names))


def _read_vocabularies(logs: list[Path], wanted: list[str]) -> Mapping[str, Any]:
    if not wanted:
        return {}
    batches = need("isolayer.training.parquet_batches")
    columns = need("isolayer.training.columns").Columns([], [], wanted)
    log = batches.ParquetLogs(logs, columns)
    found: Mapping[str, Any] = need("isolayer.vocabularies").vocabularies(map(log.read, log.row_groups), wanted)
    return found


def _refuse_missing(wanted: list[str], columns: list[str]) -> None:
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise InputError(f"--contexts: expected columns of the log, got {missing[0]!r}; it has {', '.join(columns)}")


def _is_text(kind: Any) -> bool:
    types = need("pyarrow").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner))


def _schema(logs: list[Path]) -> Any:
    """The schema of the first of the files."""
    files = [file for path in logs for file in (sorted(path.glob("**/*.parquet")) if path.is_dir() else [path])]
    if not files:
        raise InputError(f"logs: expected Parquet files in {str(logs[0])!r}, got none; check the path")
    return need("pyarrow.parquet").read_schema(files[0])


def context_sizes(contexts: str) -> dict[str, int | None]:
    """Names of context columns, with the number of ids of those that hold ids.

    >>> context_sizes("position:20, device")
    {'position': 20, 'device': None}
    """
    parts = [
        part.rpartition(":") if part.rpartition(":")[2].isdecimal() else (part, "", "") for part in names(contexts)
    ]
    for name, sign, size in parts:
        if not name or name.endswith(":") or (sign and int(size) < 1):
            raise InputError(
                f"--contexts: expected names, or name:ids such as position:20, got {name + sign + size!r}; count its "
                "values, or leave the number out"
            )
    distinct([name for name, _, _ in parts], "--contexts")
    return {name: int(size) if sign else None for name, sign, size in parts}


def per_task(given: str, option: str) -> float | dict[str, float]:
    """A number for all tasks, or one for each.

    >>> per_task("0.25", "--alpha"), per_task("click:0.25, skip:0.5", "--alpha")
    (0.25, {'click': 0.25, 'skip': 0.5})
    """
    parts = [part.rpartition(":") for part in names(given)]
    try:
        if len(parts) == 1 and not parts[0][1]:
            return float(given)
        if parts and all(sign for _, sign, _ in parts):
            return {task: float(number) for task, _, number in parts}
    except ValueError:
        pass
    raise InputError(
        f"{option}: expected a number, or task:number for each task, got {given!r}; try 0.25, or name every task as in "
        "click:0.25,skip:0.5"
    )


def layer_widths(hidden: str) -> list[int]:
    """Widths of layers.

    >>> layer_widths("64,32")
    [64, 32]
    """
    widths = [int(one) if one.isdecimal() else 0 for one in names(hidden)]
    if not widths or min(widths) < 1:
        raise InputError(f"--hidden: expected widths such as 64,32, got {hidden!r}; give at least one")
    return widths


def earlier_vocabularies(start: str | None, out: Path) -> Mapping[str, Any]:
    """Vocabularies of the run that is continued, so that ids keep their meaning; none for a new run."""
    path = out / "last.ckpt" if start == "resume" else None if start is None else Path(start)
    if path is None or not path.is_file():
        return {}
    checkpoints: Callable[[Path], dict[str, Any]] = need("isolayer.training.checkpoints").read_checkpoint
    found = checkpoints(path).get(need("isolayer.training.lightning_module").COLUMNS, {})
    vocabularies: Mapping[str, Any] = need("isolayer.vocabularies").from_json(found.get("vocabularies", {}))
    return vocabularies
