"""The command line parses options, calls functions of the package, and prints. All work is done by those functions."""

from __future__ import annotations

import io
import os
import sys

from isolayer.errors import InputError, MissingExtra, need

# Errors of other packages that are about the user's files or machine, by module and name, and what to try.
_OF_OTHERS = {
    ("builtins", "OSError"): "check the path and its permissions",
    ("builtins", "MemoryError"): "use a machine with more memory, fewer contexts or a coarser grid",
    ("duckdb", "Error"): "check the log: its path, its format and its columns",
    ("ibis.common.exceptions", "IbisError"): "check the log: its path, its format and its columns",
    ("pyarrow", "ArrowException"): "check that the file is complete and has the format that its name says",
}

_FAULTS = ("InternalException", "FatalException")  # faults of DuckDB itself, independent of its input


_AS_OPTIONS = (  # arguments that messages advise, which commands have as options
    ("on_bad_rows", "drop"),
    ("missing", "own"),
    ("weight_kind", "importance"),
    ("scale", "prob"),
    ("scale", "logit"),
)


def main() -> None:
    """Run the command line, and end the process."""
    raise SystemExit(run())


def run() -> int:
    """Run the command and return its exit code. A user's mistake is one line and code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # do not fail on a name that the terminal cannot show
    try:
        need("typer")
        from isolayer.cli.app import app

        app()
    except _mistakes() as error:
        if type(error).__name__ in _FAULTS:
            raise
        first = os.environ.get("RANK", "0") == "0"  # under torchrun every process meets the same mistake
        if getattr(error, "reported_here", first):  # or one alone does, which says so: see `training.mistakes`
            print(f"isolayer: {line(error)}", file=sys.stderr, flush=True)
        if mistakes := sys.modules.get("isolayer.training.mistakes"):
            mistakes.part(error)
        return 2
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def line(error: Exception) -> str:
    """The one line that is printed for a mistake: our own errors in full, or the first line of others and what to try.

    >>> line(FileNotFoundError(2, "No such file or directory", "no/x.sql"))
    "[Errno 2] No such file or directory: 'no/x.sql'; check the path and its permissions"
    """
    if isinstance(error, InputError | MissingExtra):
        return visible(as_typed(" ".join(str(error).split("\n"))))
    first = next((text.strip() for text in str(error).splitlines() if text.strip()), type(error).__name__)
    hint = next(hint for kind, hint in _of_others().items() if isinstance(error, kind))
    return visible(f"{first.rstrip('.;')}; {hint}")


def as_typed(message: str) -> str:
    """A message with the names of options instead of those of arguments.

    >>> as_typed('leave them out by on_bad_rows="drop"')
    'leave them out by --on-bad-rows drop'
    """
    for argument, value in _AS_OPTIONS:
        message = message.replace(f'{argument}="{value}"', f"--{argument.replace('_', '-')} {value}")
    return message


def visible(words: str) -> str:
    r"""Text with control characters and line breaks escaped, since they could control the terminal.

    >>> visible("\x1b[2Jgone"), visible("tab\there"), visible("naïve 日本 🙂")
    ('\\x1b[2Jgone', 'tab\\there', 'naïve 日本 🙂')
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in words)


def _mistakes() -> tuple[type[Exception], ...]:
    return (InputError, MissingExtra, *_of_others())


def _of_others() -> dict[type[Exception], str]:
    """What to try, for each error of the modules that are loaded; others cannot have been raised."""
    loaded = {(module, name): sys.modules.get(module) for module, name in _OF_OTHERS}
    return {getattr(module, name): _OF_OTHERS[key, name] for (key, name), module in loaded.items() if module}
