"""A short identity of a file's content."""

from __future__ import annotations

from hashlib import blake2b, file_digest
from pathlib import Path

from isolayer.storage.paths import AnyPath


def content_id(path: AnyPath) -> str:
    """A short identity of a file's content, independent of its name: its size and a digest of all its bytes.

    A digest of some parts would be quicker for a large file, but two logs that differ in a few labels can have the same
    size and the same parts: booleans take as much space whatever they are.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = Path(folder, "one"), Path(folder, "two")
    ...     _ = one.write_text("rows"), two.write_text("rows")
    ...     content_id(one) == content_id(two), content_id(one)[:2]
    (True, '4-')
    """
    with Path(path).open("rb") as file:
        digest = file_digest(file, lambda: blake2b(digest_size=12))
        return f"{file.tell()}-{digest.hexdigest()}"
