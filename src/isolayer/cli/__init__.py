"""The command line: parse, call, print. Everything a command does is a function of the package; none of it is here."""

from __future__ import annotations

import os
import sys

from isolayer.errors import InputError, MissingExtra, need

# Errors that speak of the user's files, by the module that has them, and what to try.
_OF_OTHERS = {
    ("builtins", "OSError"): "check the path, and that you may use it",
    ("duckdb", "Error"): "check the log: its path, its format and its columns",
    ("ibis.common.exceptions", "IbisError"): "check the log: its path, its format and its columns",
    ("pyarrow", "ArrowException"): "check the file: whether it is whole, and in the format its name says",
}

_FAULTS = ("InternalException", "FatalException")  # of DuckDB: it failed itself, whatever it was given


def main() -> None:
    """Run the command line, and end the process."""
    code = run()
    if "duckdb" in sys.modules:
        # DuckDB 2 otherwise prints, at the interpreter's end, a page about its own reference counts.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def run() -> int:
    """Run the command that was typed, and give its exit code; a user's mistake is one line and code 2."""
    try:
        need("typer")
        from isolayer.cli.app import app

        app()
    except _mistakes() as error:
        if type(error).__name__ in _FAULTS:
            raise
        print(f"isolayer: {line(error)}", file=sys.stderr)
        return 2
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def line(error: Exception) -> str:
    """What to print of a mistake: our own errors whole, of others the first line and what to try.

    >>> line(FileNotFoundError(2, "No such file or directory", "no/x.sql"))
    "[Errno 2] No such file or directory: 'no/x.sql'; check the path, and that you may use it"
    """
    if isinstance(error, InputError | MissingExtra):
        return " ".join(str(error).split("\n"))
    first = next((text.strip() for text in str(error).splitlines() if text.strip()), type(error).__name__)
    hint = next(hint for kind, hint in _of_others().items() if isinstance(error, kind))
    return f"{first.rstrip('.;')}; {hint}"


def _mistakes() -> tuple[type[Exception], ...]:
    return (InputError, MissingExtra, *_of_others())


def _of_others() -> dict[type[Exception], str]:
    """Errors of those modules that are loaded, hence may have raised, with what to try."""
    loaded = {(module, name): sys.modules.get(module) for module, name in _OF_OTHERS}
    return {getattr(module, name): _OF_OTHERS[key, name] for (key, name), module in loaded.items() if module}
