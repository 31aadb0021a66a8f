"""Reading: a file is opened only once, and files that belong together are verified."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from isolayer.errors import InputError
from isolayer.settings import path as checked_path
from isolayer.storage.lock import LOCK, finish_interrupted
from isolayer.storage.paths import BINARY, AnyPath, beside, kind_of

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would otherwise wait for a writer
_PATIENCE = 5.0  # seconds to wait for a writer that is moving a set to its targets


@contextmanager
def open_once(path: AnyPath, what: str = "a file", *, name: str = "file") -> Iterator[BinaryIO]:
    """A file opened for reading. If the file is replaced meanwhile, this handle still reads the old content.

    Args:
        path: The file; folders, devices and FIFOs are refused.
        what: What it should contain, for the error.
        name: What to call the path in the error.

    >>> with open_once("nothing here", "curves", name="--curves") as file:
    ...     pass
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --curves: expected curves at 'nothing here', got no file; check the path
    """
    finish_interrupted(checked_path(name, path))
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | BINARY)
    except (OSError, ValueError) as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise InputError(_unreadable(path, what, name, "no file" if absent else f"an error ({error})")) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InputError(_unreadable(path, what, name, kind_of(mode)))
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_once(path: AnyPath, what: str = "a file", *, name: str = "file") -> bytes:
    """The content of a file, read as by :func:`open_once`."""
    with open_once(path, what, name=name) as file:
        return file.read()


def read_set(manifest: AnyPath, *names: str) -> dict[str, bytes]:
    """Contents of files that :func:`isolayer.storage.whole_files` wrote with a manifest, all of the same write.

    Args:
        manifest: The manifest.
        names: Which files of its folder to read; by default all that it lists.

    >>> import tempfile
    >>> from isolayer.storage import whole_files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = Path(folder, "manifest.json")
    ...     with whole_files(Path(folder, "weights"), manifest=manifest) as (part,):
    ...         _ = part.write_text("w")
    ...     read_set(manifest)
    {'weights': b'w'}
    """
    path, deadline = Path(manifest), time.monotonic() + _PATIENCE
    while True:
        digests = _digests(path)
        for name in names:
            if name not in digests:
                raise InputError(f"{path.name}: expected it to list {name!r}, got {sorted(digests)}; write it again")
        files = {name: read_once(path.parent / name) for name in names or digests}
        wrong = [name for name, content in files.items() if sha256(content).hexdigest() != digests[name]]
        if not wrong:
            return files
        being_written = beside(path.resolve(), LOCK).exists() and time.monotonic() < deadline
        if not being_written and _digests(path) == digests:
            raise InputError(
                f"{wrong[0]}: expected the file that was written together with {str(path)!r}, got another; "
                "write the set again, or copy all of it"
            )
        time.sleep(0.01)


def _digests(manifest: Path) -> dict[str, str]:
    """Digest of each file that a manifest lists."""
    try:
        digests = json.loads(read_once(manifest, "a manifest", name="manifest"))["sha256"]
        if all(Path(name).name == name and isinstance(digest, str) for name, digest in digests.items()):
            return dict(digests)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"manifest: expected names and digests, got something else in {str(manifest)!r}; write it again")


def _unreadable(path: AnyPath, what: str, name: str, got: str) -> str:
    return f"{name}: expected {what} at {str(path)!r}, got {got}; check the path"
