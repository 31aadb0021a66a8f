"""How anything is stored: whole files, files that change together, locks, and reading a file once.

    with whole_file(path) as part: ...               one file: readers see the old one or the new one
    with whole_files(curves, sums) as (a, b): ...    several files with one commit point: all old or all new
    with whole_files(*paths, manifest=path): ...     the same, with a manifest of digests for read_set
    with locked(path): ...                           read, modify and write without losing another process's write
    with open_once(path) as file: ...                everything a reader needs comes from one handle
    read_once(path), read_set(manifest)              the content of one file, or of files that belong together
    content_id(path)                                 a short identity of a file's content, independent of its name
    writable(path), refuse_same_file(out, log)       checks to make before any work is done

A process that is killed at any moment leaves the old files or the new ones, never a mixture. While a file ``name`` is
being written there are two more beside it: ``.name.isolayer-lock``, an operating system lock whose text says who holds
it, and ``.name.<token>.isolayer-part``, a folder in which the new content is prepared. The system frees the lock when
its holder dies, and the next process that opens or writes the file finishes what the dead process had committed and
removes the rest. Nothing in this package depends on what the files contain.
"""

from isolayer.storage.identity import content_id
from isolayer.storage.lock import finish_interrupted, locked
from isolayer.storage.paths import files_of, refuse_same_file, writable
from isolayer.storage.reading import open_once, read_once, read_set
from isolayer.storage.writing import whole_file, whole_files

__all__ = [
    "content_id",
    "files_of",
    "finish_interrupted",
    "locked",
    "open_once",
    "read_once",
    "read_set",
    "refuse_same_file",
    "whole_file",
    "whole_files",
    "writable",
]
