"""The two errors this package raises on purpose, and the two ways in which a name is imported on demand.

    ValueError
      InputError      what the caller gave cannot be used; the text says the rule, the value and what to do
    ImportError
      MissingExtra    an optional dependency is absent; the text is the pip command that adds it

    need(module)      imports a module; if an optional package is missing, directly or indirectly, raises MissingExtra
    offered(name)     imports a function of a higher package that a lower one offers as a method (``Curves.to_layer``)

Nothing else belongs here.
"""

from importlib import import_module
from typing import Any

# The extra that brings each optional package, by the name it is imported under.
EXTRA_OF = {
    "torch": "torch",
    "ibis": "data",
    "duckdb": "data",
    "sqlglot": "data",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "altair": "report",
    "vl_convert": "report",
    "lightning": "train",
    "lightgbm": "boosting",
    "xgboost": "boosting",
    "safetensors": "torch",
    "torchrec": "torchrec",
    "fbgemm_gpu": "torchrec",
    "typer": "cli",
    "rich": "cli",
    "mlflow": "integrations",
}

# Functions of higher packages that lower packages offer as methods. Nothing else may import from a higher package.
_OFFERED = {
    "apply_table": "isolayer.tables.apply",
    "bin_sums_of": "isolayer.tables.metrics_query",
    "field_log_of": "isolayer.tables.field_log",
    "from_layer": "isolayer.nn.convert",
    "histogram_from_table": "isolayer.tables.histogram_query",
    "load_histogram": "isolayer.curves.parquet_io",
    "paired_log_of": "isolayer.tables.field_log",
    "plot_curves": "isolayer.report",
    "save_histogram": "isolayer.curves.parquet_io",
    "segment_sums_of": "isolayer.tables.metrics_query",
    "sums_of": "isolayer.tables.metrics_query",
    "to_layer": "isolayer.nn.convert",
    "write_fitted": "isolayer.report",
}


class InputError(ValueError):
    """What the caller gave cannot be used.

    The text always reads *what must hold: expected <rule>, got <value>; what to do*.

    >>> from isolayer import Grid
    >>> Grid(lower=1, upper=0)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: grid bounds: expected lower < upper, got lower=1.0 and upper=0.0; swap them
    """


class MissingExtra(ImportError):
    """An optional dependency is not installed.

    >>> raise MissingExtra(_command("ibis"))
    Traceback (most recent call last):
        ...
    isolayer.errors.MissingExtra: this needs ibis: in a clone of isolayer, pip install '.[data]'
    """


def need(module: str) -> Any:
    """Import a module; if an optional package is missing, in it or below it, say which extra brings that package.

    >>> need("math").pi
    3.141592653589793
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise MissingExtra(_command(package)) from error


def offered(name: str) -> Any:
    """A function of a higher package that a lower package offers as a method; it is imported at the first call.

    >>> offered("to_layer").__module__
    'isolayer.nn.convert'
    """
    return getattr(need(_OFFERED[name]), name)


def install(extra: str) -> str:
    """The command that installs an extra, as long as there is no release on PyPI.

    >>> install("onnx")
    "in a clone of isolayer, pip install '.[onnx]'"
    """
    return f"in a clone of isolayer, pip install '.[{extra}]'"


def _command(package: str) -> str:
    return f"this needs {package}: {install(EXTRA_OF[package])}"
