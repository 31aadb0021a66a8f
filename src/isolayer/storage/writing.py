"""Writing: one file, or several that change together, prepared next to their targets and committed at one point."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import file_digest
from pathlib import Path

from isolayer.errors import InputError
from isolayer.storage.commit import Part, commit_all, commit_one
from isolayer.storage.lock import LOCK, PART, WAIT, Lock, hold, take_over
from isolayer.storage.paths import AnyPath, beside, writable


@contextmanager
def whole_file(path: AnyPath, *, name: str = "path", wait: float = WAIT) -> Iterator[Path]:
    """A path to write to; when the block ends without an error, what was written there replaces the target.

    The new content is synced to disk before it appears. The target keeps its mode and, where the system allows it, its
    owner; a new file has the mode that the umask gives. A symbolic link stays, and the file it points to is replaced.

    Args:
        path: The target, in a folder that exists; anything but a file is refused.
        name: What to call the path in an error, such as ``"--out"``.
        wait: Seconds to wait while another process writes the same target.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(f"{folder}/a.txt") as part:
    ...         _ = part.write_text("all of it")
    ...     Path(f"{folder}/a.txt").read_text()
    'all of it'
    """
    with whole_files(path, name=name, wait=wait) as (part,):
        yield part


@contextmanager
def whole_files(
    *paths: AnyPath, manifest: AnyPath | None = None, name: str = "path", wait: float = WAIT
) -> Iterator[tuple[Path, ...]]:
    """Paths to write to; when the block ends without an error, all that was written replaces its targets together.

    Args:
        paths: The targets, in any folders.
        manifest: A file that is written as well, as part of the set: the digests of the others, for
            :func:`isolayer.storage.read_set` to verify. The targets must then be in its folder.
        name: What to call a path in an error.
        wait: Seconds to wait while another process writes one of the targets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = Path(folder, "one"), Path(folder, "two")
    ...     with whole_files(one, two) as (first, second):
    ...         _ = first.write_text("1"), second.write_text("2")
    ...     one.read_text(), two.read_text()
    ('1', '2')
    """
    targets = [writable(path, name) for path in (*paths, *([] if manifest is None else [manifest]))]
    if len(set(targets)) < len(targets):
        raise InputError(f"{name}: expected different files, got {', '.join(map(str, paths))}; rename one")
    with ExitStack() as stack:
        locks = {target: stack.enter_context(hold(target, wait)) for target in sorted(targets)}
        _sweep(targets)
        parts = [stack.enter_context(_part(target, locks[target])) for target in targets]
        yield tuple(part.new for part in parts[: len(paths)])
        if manifest is not None:
            _write_manifest(parts)
        for part in parts:
            part.prepare()
        if len(parts) == 1:
            commit_one(parts[0])
        else:
            for part in parts:
                locks[part.target].say(part.folder, parts[0].record)
            commit_all(parts, parts[0].record)


@contextmanager
def _part(target: Path, lock: Lock) -> Iterator[Part]:
    part = Part(beside(target, f".{secrets.token_hex(4)}{PART}"), target)
    lock.say(part.folder)
    part.make()
    try:
        yield part
    finally:
        if not lock.committed():  # otherwise the next process needs it to finish the set
            shutil.rmtree(part.folder, ignore_errors=True)
            lock.say()


def _write_manifest(parts: Sequence[Part]) -> None:
    manifest, files, digests = parts[-1], parts[:-1], {}
    for part in files:
        if part.target.parent != manifest.target.parent:
            raise InputError(f"manifest: expected files of its own folder, got {str(part.target)!r}; move one of them")
        with part.new.open("rb") as file:
            digests[part.target.name] = file_digest(file, "sha256").hexdigest()
    manifest.new.write_text(json.dumps({"sha256": digests}, indent=1) + "\n")


def _sweep(targets: Sequence[Path]) -> None:
    """Finish or remove what dead writers of other files left in the folders of these targets."""
    for folder in {target.parent for target in targets}:
        for lock in folder.glob(f".*{LOCK}"):
            take_over(lock)
