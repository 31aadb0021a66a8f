"""The commit of prepared files: a single file by a rename, several files by a record that says where each goes.

A set is committed when its record exists. From then on anyone may call :func:`settle`, any number of times and in
several processes at once: every prepared file has its own name, so moves that are already done are skipped. If a target
turns out not to be replaceable, the record is replaced by one that undoes the moves; the old files are kept until then.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from isolayer.storage.paths import relative, replace, sync, sync_folder


class Part:
    """The folder beside a target in which its new content is prepared.

    Args:
        folder: The folder; it holds ``new/<name of the target>``, and for a set ``old`` and ``record``.
        target: What is to be replaced.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target
        self.new, self.old, self.record = folder / "new" / target.name, folder / "old", folder / "record"

    def make(self) -> None:
        """Create the folder, which only this user can read."""
        self.folder.mkdir(0o700)
        self.new.parent.mkdir()

    def prepare(self) -> None:
        """Give the new content the mode and owner it should have, and sync it to disk."""
        probe = self.folder / "mode"
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))  # the only way to see the umask without changing it
        kept = self.target.stat() if self.target.exists() else probe.stat()
        if sys.platform != "win32":
            _keep_owner(self.new, kept.st_uid, kept.st_gid)
        self.new.chmod(stat.S_IMODE(kept.st_mode))
        sync(self.new)

    def keep_old(self) -> None:
        """Keep the content that will be replaced, for :func:`settle` to put back."""
        if self.target.exists():
            try:
                os.link(self.target, self.old)
            except OSError:  # a filesystem without hard links
                shutil.copy2(self.target, self.old)
                sync(self.old)


def commit_one(part: Part) -> None:
    """Move one prepared file to its target."""
    replace(part.new, part.target)
    sync_folder(part.target.parent)


def commit_all(parts: Sequence[Part], record: Path) -> None:
    """Move prepared files to their targets: all of them, or none if one target cannot be replaced."""
    for part in parts:
        part.keep_old()
        for folder in (part.new.parent, part.folder, part.target.parent):
            sync_folder(folder)
    folder = record.parent
    moves = [
        {
            "new": relative(part.new, folder),
            "old": relative(part.old, folder) if part.old.exists() else None,
            "target": relative(part.target, folder),
        }
        for part in parts
    ]
    _write_record(record, {"undo": False, "moves": moves})  # the commit point
    try:
        settle(record)
    except OSError:
        _write_record(record, {"undo": True, "moves": moves})
        settle(record)
        raise


def settle(record: Path) -> None:
    """Finish the set of a record, if the record exists, and remove the record."""
    try:
        facts = json.loads(record.read_bytes())
    except FileNotFoundError:
        return
    folder, folders = record.parent, set[Path]()
    for move in facts["moves"]:
        new, target = folder / move["new"], folder / move["target"]
        folders.add(target.parent)
        with suppress(FileNotFoundError):
            if not facts["undo"]:
                replace(new, target)
            elif not new.exists():
                _put_back(move["old"] and folder / move["old"], target)
    for one in folders:
        sync_folder(one)
    record.unlink(missing_ok=True)


def _put_back(old: Path | None, target: Path) -> None:
    if old is None:
        target.unlink()
    else:
        replace(old, target)


def _write_record(record: Path, facts: dict[str, Any]) -> None:
    draft = record.with_name(f"{record.name}.{'undo' if facts['undo'] else 'do'}")
    draft.write_text(json.dumps(facts))
    sync(draft)
    replace(draft, record)
    sync_folder(record.parent)


def _keep_owner(path: Path, user: int, group: int) -> None:
    if sys.platform != "win32":
        for owner in ((user, group), (-1, group)):  # if this user may not change the owner, at least set the group
            try:
                os.chown(path, *owner)
            except PermissionError:
                continue
            return
