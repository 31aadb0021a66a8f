"""Locks: one writer of a file at a time. What a dead writer left behind is finished or removed.

The lock is one of the operating system, on a file next to the target, so it is free as soon as its holder dies. The
text of that file says who the holder is, where it prepares the new content, and the record of the set it is committing.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from isolayer.errors import InputError
from isolayer.storage.commit import settle
from isolayer.storage.paths import BINARY, AnyPath, beside, relative, writable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

WAIT = 60.0  # seconds to wait for another writer of the same file
LOCK, PART = ".isolayer-lock", ".isolayer-part"

_BUSY = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_held = threading.local()  # the locks of this thread, so that a write inside `locked` does not wait for itself


@contextmanager
def locked(*paths: AnyPath, wait: float = WAIT) -> Iterator[None]:
    """Hold the locks of files, so that no other process writes them between our reading and our writing.

    Every function of this package that writes takes the lock of its target, so code that only reads needs no lock. The
    lock of a process that died is free.

    Args:
        paths: The files; they need not exist yet.
        wait: Seconds to wait for another holder; after that, an error names the holder.

    >>> import tempfile
    >>> from isolayer.storage import whole_file
    >>> with tempfile.TemporaryDirectory() as folder, locked(f"{folder}/sums.parquet"):
    ...     with whole_file(f"{folder}/sums.parquet") as part:
    ...         _ = part.write_text("old and new")
    """
    with ExitStack() as stack:
        for target in sorted({writable(path) for path in paths}):  # one order avoids deadlocks
            if not stack.enter_context(hold(target, wait)).real:
                raise InputError(f"path: expected a filesystem with file locks, got that of {str(target)!r}; move it")
        yield


def finish_interrupted(path: AnyPath) -> None:
    """Complete a write of this file that a dead process had committed, or remove what it had not committed.

    The functions of this package do this themselves; call it before opening a file in another way.
    """
    with suppress(OSError, RuntimeError, ValueError):
        take_over(beside(Path(path).resolve(), LOCK))


def take_over(lock: Path) -> None:
    """The same for the file of a lock. If this user may not do it, such as on a read-only disk, nothing is done."""
    with suppress(OSError):
        if lock not in _locks() and lock.exists():
            left = Lock(lock)
            if left.taken():
                left.release()


class Lock:
    """The lock of a target.

    Args:
        path: The lock's file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path.parent
        self.descriptor, self.real = -1, False  # real: the filesystem has locks

    def taken(self) -> bool:
        """Take the lock if it is free, and finish or remove what a dead holder left behind."""
        while True:
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
            try:
                self.real = _lock(self.descriptor)
                if os.path.samestat(os.fstat(self.descriptor), self.path.stat()):
                    break
            except BlockingIOError:
                os.close(self.descriptor)
                return False
            except FileNotFoundError:
                pass  # its holder removed it between our opening and our locking it
            os.close(self.descriptor)
        try:
            if self.real:
                self._clear()
            self.say()
        except OSError:
            os.close(self.descriptor)
            raise
        return True

    def text(self) -> dict[str, Any]:
        """The content of the lock's file; empty while it is being written."""
        with suppress(OSError, ValueError):
            said = json.loads(self.path.read_bytes())
            return said if isinstance(said, dict) else {}
        return {}

    def say(self, part: Path | None = None, record: Path | None = None) -> None:
        """Write who holds the lock, where new content is prepared, and which set it belongs to."""
        said = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "part": part and relative(part, self.folder),
            "record": record and relative(record, self.folder),
        }
        # One call writes the whole text, padded to cover the old one, so that a kill cannot leave half a text.
        content = json.dumps(said).encode().ljust(os.fstat(self.descriptor).st_size)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        os.write(self.descriptor, content)
        if record is not None:
            os.fsync(self.descriptor)  # it must be on the disk before the record is

    def committed(self) -> bool:
        """Whether a set is committed and not yet settled."""
        record = self.text().get("record")
        return record is not None and (self.folder / record).exists()

    def release(self) -> None:
        """Free the lock. Its file goes first, except on Windows, where an open file cannot be removed."""
        if not self.committed():
            if sys.platform == "win32":
                os.ftruncate(self.descriptor, 0)
            else:
                self.path.unlink(missing_ok=True)
        if sys.platform != "win32" and self.real:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # for copies of the descriptor in forked processes as well
        os.close(self.descriptor)

    def _clear(self) -> None:
        left = self.text()
        if left.get("record"):
            settle(self.folder / left["record"])
        if str(left.get("part")).endswith(PART):
            shutil.rmtree(self.folder / left["part"], ignore_errors=True)


@contextmanager
def hold(target: Path, wait: float) -> Iterator[Lock]:
    """The lock of a target: a new one, or the one that this thread already holds."""
    locks, path = _locks(), beside(target, LOCK)
    if path in locks:
        yield locks[path]
        return
    lock, deadline = Lock(path), time.monotonic() + wait
    while not lock.taken():
        if time.monotonic() >= deadline:
            raise InputError(_in_use(target, lock.text()))
        time.sleep(0.01)
    locks[path] = lock
    try:
        yield lock
    finally:
        del locks[path]
        lock.release()


def _in_use(target: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
    return f"{target.name}: expected no other writer, got {who}; wait until it ends, or stop it"


def _locks() -> dict[Path, Lock]:
    """The locks that this thread of this process holds; a forked child holds none."""
    if getattr(_held, "pid", None) != os.getpid():
        _held.pid, _held.locks = os.getpid(), {}
    locks: dict[Path, Lock] = _held.locks
    return locks


def _lock(descriptor: int) -> bool:
    """Lock an open file, or raise BlockingIOError; False on a filesystem without locks."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # beyond the text, which other processes read
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            raise BlockingIOError(*error.args) from error
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
