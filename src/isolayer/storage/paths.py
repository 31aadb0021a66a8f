"""Paths: which can be written, which are the same file, and how files and folders are synced to disk."""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from hashlib import sha256
from os import PathLike
from pathlib import Path

from isolayer.errors import InputError
from isolayer.settings import path as checked_path

AnyPath = str | PathLike[str]

BINARY = getattr(os, "O_BINARY", 0)  # only Windows distinguishes text and binary files

_LONGEST_NAME = 200  # in bytes; filesystems allow 255, and names of temporary files are longer than that of the target
_WINDOWS_PATIENCE = 2.0  # in seconds; Windows cannot replace a file while a reader has it open


def writable(path: AnyPath, name: str = "path") -> Path:
    """The file that writing to a path would replace, links followed; an InputError unless a file can be written there.

    Args:
        path: The path.
        name: What to call it in the error, such as ``"--out"``.

    >>> writable("nowhere/log.parquet", "--out")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --out: expected a folder that exists, got 'nowhere'; create it
    """
    checked_path(name, path)
    try:
        target, kind = Path(path).resolve(), kind_at(path)
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a name with NUL or too long
        raise InputError(f"{name}: expected a usable path, got {str(path)!r} ({error}); choose another") from error
    if not target.parent.is_dir():
        raise InputError(f"{name}: expected a folder that exists, got {str(Path(path).parent)!r}; create it")
    if kind is not None and kind != "a file":
        raise InputError(f"{name}: expected a file, got {kind} at {str(path)!r}; name a file")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"{name}: expected a writable file, got {str(path)!r}, which is not; check its permissions")
    return target


def refuse_same_file(out: AnyPath, *inputs: AnyPath, name: str = "--out") -> None:
    """Raise if a command would overwrite a file that it reads, even under another name: files are compared by inode.

    Args:
        out: The file to write.
        inputs: The files to read; those that do not exist are ignored.
        name: What to call the output in the error.

    >>> refuse_same_file("log.parquet", "day.parquet", "./log.parquet")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --out: expected another file than the input, got 'log.parquet' for both; rename it
    """
    for one in inputs:
        same = Path(out).absolute() == Path(one).absolute()
        with suppress(OSError, ValueError):
            same = same or Path(out).samefile(one)
        if same:
            raise InputError(f"{name}: expected another file than the input, got {str(out)!r} for both; rename it")


def files_of(log: str) -> list[Path]:
    """The files that the name of a log stands for, on this machine: a path, a folder's contents, or a glob's matches.

    >>> files_of("s3://bucket/day.parquet")
    []
    """
    if log == "-" or "://" in log:
        return []
    path = Path(log)
    if path.is_dir():
        return sorted(path.rglob("*"))
    return [path] if path.exists() else sorted(Path(path.anchor or ".").glob(log.removeprefix(path.anchor)))


def kind_at(path: AnyPath) -> str | None:
    """What is at a path, links followed: ``"a file"``, ``"a folder"`` and so on; None if there is nothing.

    >>> kind_at("/"), kind_at("nothing here")
    ('a folder', None)
    """
    try:
        return kind_of(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def kind_of(mode: int) -> str:
    """What a mode of :func:`os.stat` describes."""
    tests = {
        "a file": stat.S_ISREG,
        "a folder": stat.S_ISDIR,
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
    }
    return next((kind for kind, test in tests.items() if test(mode)), "a device")


def beside(target: Path, suffix: str) -> Path:
    """A hidden path in the folder of a target, named after it.

    >>> beside(Path("a/curves.parquet"), ".lock").as_posix()
    'a/.curves.parquet.lock'
    """
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}{suffix}")


def relative(path: Path, folder: Path) -> str:
    """A path relative to a folder, so that it stays valid when both are moved; absolute on another Windows drive."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(path)


def replace(part: Path, target: Path) -> None:
    """Rename a file over another. Windows refuses this while a reader has the target open, so wait a little there."""
    deadline = time.monotonic() + _WINDOWS_PATIENCE
    while True:
        try:
            part.replace(target)
        except PermissionError:
            if os.name != "nt" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def sync(path: Path) -> None:
    """Sync the content of a file to disk. The file is opened by its name, so any code may have written it."""
    descriptor = os.open(path, (os.O_RDWR if sys.platform == "win32" else os.O_RDONLY) | BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk; only then is a rename durable. Windows cannot do this."""
    if sys.platform != "win32":
        sync(folder)
