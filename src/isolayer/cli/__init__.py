"""The command line: parse, call, print. Everything a command does is a function of the package; none of it is here."""

from __future__ import annotations

import os
import sys

from isolayer.errors import InputError, MissingExtra, need


def main() -> None:
    """Run the command line; a user's mistake ends it with one line and code 2."""
    try:
        need("typer", "cli")
        from isolayer.cli.app import app

        app()
    except (InputError, MissingExtra) as error:
        print(f"isolayer: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as end:
        if "duckdb" in sys.modules and isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> None:
    """End at once: DuckDB 2 otherwise prints, at the interpreter's end, a page about its own reference counts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
