"""The two errors this package raises on purpose, and how an optional dependency is imported.

    ValueError
      InputError      what the caller gave cannot be used; the text says the rule, the value and what to do
    ImportError
      MissingExtra    an optional dependency is absent; the text is the pip command that adds it

Nothing else belongs here.
"""

from importlib import import_module
from typing import Any


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

    >>> from isolayer.errors import need
    >>> need("a_module_nobody_has", "data")
    Traceback (most recent call last):
        ...
    isolayer.errors.MissingExtra: this needs a_module_nobody_has: pip install 'isolayer[data]'
    """


def need(module: str, extra: str) -> Any:
    """Import ``module``, or say which extra of this package brings it.

    >>> need("math", "data").pi
    3.141592653589793
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(f"this needs {module}: pip install 'isolayer[{extra}]'") from error
