"""Storage: whole files, sets with one commit point, locks, reading once."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isolayer.errors import InputError
from isolayer.storage import (
    commit,
    finish_interrupted,
    locked,
    open_once,
    paths,
    read_once,
    read_set,
    refuse_same_file,
    whole_file,
    whole_files,
    writable,
)

root_only = pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root may make devices and give files")


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def write(path, text):
    with whole_file(path) as part:
        part.write_text(text)


def killed(code, *arguments):
    """Run Python code that kills itself."""
    result = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr


KILL = """
import os, signal, sys
from pathlib import Path
from isolayer.storage import commit, locked, paths, whole_file, whole_files

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.raises(TypeError), whole_file(tmp_path / "a") as part:
        part.write_text("ne") + "w"
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_readers_see_nothing_before_the_end_of_the_block(tmp_path):
    write(tmp_path / "a", "old")
    with whole_file(tmp_path / "a") as part:
        part.write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "a").read_text() == "new"


def test_the_part_has_the_name_of_the_target_so_that_writers_see_its_suffix(tmp_path):
    with whole_file(tmp_path / "model.onnx") as part:
        part.write_text("m")
        assert part.name == "model.onnx"
        assert part.parent != tmp_path


def test_what_is_synced_is_what_is_at_the_path(tmp_path, monkeypatch):
    """A writer that writes another file and renames it, as DuckDB does, is synced all the same."""
    synced = set()
    really = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.add(os.fstat(descriptor).st_ino), really(descriptor)))
    with whole_file(tmp_path / "a") as part:
        part.write_text("")
        other = part.with_name("tmp_a")
        other.write_text("content")
        other.replace(part)
    assert (tmp_path / "a").stat().st_ino in synced
    assert tmp_path.stat().st_ino in synced


def test_modes_are_kept_and_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    with whole_file(tmp_path / "new") as part:
        part.write_text("y")
        part.chmod(0o600)  # as some writers leave it
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


@root_only
def test_owners_are_kept(tmp_path):
    write(tmp_path / "a", "x")
    os.chown(tmp_path / "a", 4242, 4243)
    write(tmp_path / "a", "y")
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid) == (4242, 4243)


def test_links_stay_links_and_their_targets_are_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    for target in (tmp_path / "there" / "a", tmp_path / "there" / "not yet"):
        link = tmp_path / f"link to {target.name}"
        link.symlink_to(target)
        write(link, "new")
        assert link.is_symlink()
        assert target.read_text() == "new"
    assert names(tmp_path / "there") == ["a", "not yet"]


def test_only_files_can_be_written(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path: r"--out: expected a file, got a folder at .*; name a file",
        tmp_path / "fifo": "--out: expected a file, got a FIFO at",
        "/dev/null": "--out: expected a file, got a device at '/dev/null'",
        tmp_path / "loop": "--out: expected a usable path, got .*; choose another",
        tmp_path / "file" / "a": "--out: expected a folder that exists, got .*; create it",
        tmp_path / "no" / "a": "--out: expected a folder that exists, got .*; create it",
        "a\0b": "--out: expected a usable path, got",
        tmp_path / ("x" * 300): "--out: expected a usable path, got .*",
    }
    for path, message in cases.items():
        with pytest.raises(InputError, match=message), whole_file(path, name="--out") as part:
            part.write_text("")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert names(tmp_path) == ["fifo", "file", "loop"]


def test_a_name_of_any_length_that_the_disk_allows(tmp_path):
    for name in ("x" * 255, "ü" * 127):
        write(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    assert len(names(tmp_path)) == 2


def test_what_may_not_be_written_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "a", "x")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "a")  # root may write anything
    with pytest.raises(InputError, match=r"path: expected a writable file, got .*; check its permissions"):
        writable(tmp_path / "a")
    assert writable(tmp_path / "b") == tmp_path / "b"


@pytest.mark.parametrize("moment", ["die()", "commit.Part.prepare = die", "commit.sync = die", "commit.replace = die"])
def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path, moment):
    code = f"{KILL}\nwith whole_file(sys.argv[1]) as part:\n    part.write_text('new')\n    {moment}"
    write(tmp_path / "a", "old")
    killed(code, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    assert len(names(tmp_path)) == 3
    write(tmp_path / "b", "another file of the folder")
    assert names(tmp_path) == ["a", "b"]


def test_what_a_living_writer_prepares_is_left_alone(tmp_path):
    with whole_file(tmp_path / "a") as part:
        part.write_text("new")
        code = (
            "import sys; from isolayer.storage import whole_file\nwith whole_file(sys.argv[1]) as p: p.write_text('b')"
        )
        subprocess.run([sys.executable, "-c", code, tmp_path / "b"], check=True)
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "new"


# ------------------------------------------------------------------------------------------------------------- sets


def write_set(paths, text, **options):
    with whole_files(*paths, **options) as parts:
        for part in parts:
            part.write_text(text)


def set_of(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return [tmp_path / "curves", tmp_path / "elsewhere" / "sums", tmp_path / "third"]


MOVES = range(4)


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("moved", MOVES)
def test_a_set_is_old_or_new_wherever_its_writer_is_killed(tmp_path, moved, existed):
    """Killed before the record: all old. Killed after any number of moves: whoever opens any of the files finishes."""
    files = set_of(tmp_path)
    if existed:
        write_set(files, "old")
    code = f"""{KILL}
moves = [0]
def counted(part, target, really=commit.replace):
    if "new" in part.parts and moves[0] == {moved}:
        die()
    moves[0] += "new" in part.parts
    really(part, target)
    if moves[0] == 3:
        die()
commit.replace = counted
with whole_files(*sys.argv[1:]) as parts:
    for part in parts: part.write_text("new")
"""
    killed(code, *files)
    assert read_once(files[moved % 3]) == b"new"
    assert [file.read_text() for file in files] == ["new"] * 3
    for file in files:
        finish_interrupted(file)
    assert names(tmp_path) == ["curves", "elsewhere", "third"]
    assert names(tmp_path / "elsewhere") == ["sums"]


EVERY_CALL = """
import os, signal, sys
from pathlib import Path
from isolayer.storage import finish_interrupted, whole_files

def killed_at(call, files):
    child = os.fork()
    if not child:
        calls = 0
        def count(frame, event, function):
            nonlocal calls
            calls += event == "c_call" and getattr(function, "__module__", "") == os.open.__module__
            if event == "c_call" and calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(count)
        with whole_files(*files) as parts:
            for part in parts:
                part.write_text("new")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0

folder, seen = Path(sys.argv[1]), set()
files = [folder / "curves", folder / "elsewhere" / "sums"]
call = 1
while killed_at(call, files):
    for file in files:
        finish_interrupted(file)
    found = [path for path in folder.rglob("*") if path.is_file() or ".isolayer" in path.name]
    left = sorted(str(path.relative_to(folder)) for path in found)
    assert left == ["curves", "elsewhere/sums"], (call, left)
    contents = {file.read_text() for file in files}
    assert len(contents) == 1, (call, contents)
    seen |= contents
    for file in files:
        file.write_text("old")
    call += 1
print(call, *sorted(seen))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork")
def test_a_writer_may_be_killed_before_any_of_its_system_calls(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name in ("curves", "elsewhere/sums"):
        (tmp_path / name).write_text("old")
    result = subprocess.run([sys.executable, "-c", EVERY_CALL, tmp_path], capture_output=True, text=True)
    calls, *seen = result.stdout.split() or ["0"]
    assert result.returncode == 0, result.stderr
    assert seen == ["new", "old"]
    assert int(calls) > 60


@pytest.mark.parametrize("existed", [True, False])
def test_a_set_that_was_not_committed_is_old(tmp_path, existed):
    files = set_of(tmp_path)
    if existed:
        write_set(files, "old")
    code = f"{KILL}\ncommit._write_record = die\nwith whole_files(*sys.argv[1:]) as parts:\n"
    killed(f"{code}    for part in parts: part.write_text('new')", *files)
    for file in files:
        finish_interrupted(file)
        assert (file.read_text() == "old") if existed else not file.exists()
    assert names(tmp_path / "elsewhere") == (["sums"] if existed else [])


@pytest.mark.parametrize("existed", [True, False])
def test_a_target_that_cannot_be_replaced_puts_the_others_back(tmp_path, monkeypatch, existed):
    """As a file that is mounted into a container cannot."""
    files = set_of(tmp_path)
    if existed:
        write_set(files, "old")

    def busy(part, target, really=paths.replace):
        if target.name == "third":
            raise OSError("device or resource busy")
        really(part, target)

    monkeypatch.setattr(commit, "replace", busy)
    with pytest.raises(OSError, match="busy"):
        write_set(files, "new")
    assert [file.exists() and file.read_text() for file in files] == ["old" if existed else False] * 3
    assert names(tmp_path) == (["curves", "elsewhere", "third"] if existed else ["elsewhere"])


def test_a_set_without_hard_links(tmp_path, monkeypatch):
    files = set_of(tmp_path)
    write_set(files, "old")

    def no_links(*_):
        raise OSError("operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    write_set(files, "new")
    assert {file.read_text() for file in files} == {"new"}


def test_a_set_names_each_file_once(tmp_path):
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="path: expected different files, got"):
        write_set([tmp_path / "a", tmp_path / "b"], "x")


def test_a_manifest_tells_files_that_were_not_written_together(tmp_path):
    manifest, files = tmp_path / "manifest.json", [tmp_path / "weights", tmp_path / "serving.onnx"]
    write_set(files, "one", manifest=manifest)
    old = files[0].read_bytes()
    write_set(files, "two", manifest=manifest)
    assert read_set(manifest) == {"weights": b"two", "serving.onnx": b"two"}
    assert read_set(manifest, "serving.onnx") == {"serving.onnx": b"two"}
    files[0].write_bytes(old)
    with pytest.raises(InputError, match=r"weights: expected the file that was written together with .*, got another"):
        read_set(manifest)
    assert read_set(manifest, "serving.onnx") == {"serving.onnx": b"two"}
    with pytest.raises(InputError, match=r"manifest.json: expected it to list 'curves', got \['serving.onnx', 'weig"):
        read_set(manifest, "curves")
    for text in ("", "[]", "{}", '{"sha256": 3}', '{"sha256": {"../weights": "0"}}', '{"sha256": {"weights": 0}}'):
        manifest.write_text(text)
        with pytest.raises(InputError, match="manifest: expected names and digests, got something else in"):
            read_set(manifest)
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="manifest: expected files of its own folder"):
        write_set([tmp_path / "other" / "weights"], "x", manifest=manifest)


def test_a_reader_of_a_set_gets_one_writing_of_it(tmp_path):
    manifest, files = tmp_path / "manifest.json", [tmp_path / "a", tmp_path / "b"]
    write_set(files, "0", manifest=manifest)
    stop = threading.Event()

    def rewrite():
        number = 0
        while not stop.is_set():
            write_set(files, str(number := number + 1), manifest=manifest)

    writer, seen = threading.Thread(target=rewrite), set()
    writer.start()
    try:
        while len(seen) < 10:
            seen.add(tuple(read_set(manifest).values()))
    finally:
        stop.set()
        writer.join()
    assert all(first == second for first, second in seen)


# ------------------------------------------------------------------------------------------------------------ locks

COUNT = """
import sys
from pathlib import Path
from isolayer.storage import locked, whole_file
path = Path(sys.argv[1])
for _ in range(40):
    with locked(path):
        number = int(path.read_text())
        with whole_file(path) as part:
            part.write_text(str(number + 1))
"""


def test_no_write_is_lost_between_processes(tmp_path):
    (tmp_path / "n").write_text("0")
    running = [subprocess.Popen([sys.executable, "-c", COUNT, tmp_path / "n"]) for _ in range(3)]
    assert [one.wait() for one in running] == [0, 0, 0]
    assert (tmp_path / "n").read_text() == "120"
    assert names(tmp_path) == ["n"]


def test_the_holder_is_named_and_a_dead_holder_is_not_waited_for(tmp_path):
    code = f"{KILL}\nwith locked(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "sums"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        message = (
            rf"sums: expected no other writer, got process {holder.pid} on .* since .*; wait until it ends, or stop"
        )
        with pytest.raises(InputError, match=message), locked(tmp_path / "sums", wait=0.05):
            pass
        with pytest.raises(InputError, match=message), whole_file(tmp_path / "sums", wait=0) as part:
            part.write_text("")
        holder.kill()
    started = time.monotonic()
    with locked(tmp_path / "sums"):
        pass
    assert time.monotonic() - started < 30
    assert names(tmp_path) == []


def test_two_threads_wait_for_each_other_and_one_does_not_wait_for_itself(tmp_path):
    (tmp_path / "n").write_text("0")

    def count():
        for _ in range(50):
            with locked(tmp_path / "n"), locked(tmp_path / "n"):
                number = int((tmp_path / "n").read_text())
                write(tmp_path / "n", str(number + 1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "n").read_text() == "150"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_ends_with_its_holder_even_if_a_forked_child_lives_on(tmp_path):
    code = (
        "import os, sys, time\nfrom isolayer.storage import locked\n"
        "with locked(sys.argv[1]):\n    child = os.fork()\n    if child == 0:\n        time.sleep(60)\n"
        "print(child, flush=True)\nos._exit(0)"
    )
    result = subprocess.Popen([sys.executable, "-c", code, tmp_path / "a"], stdout=subprocess.PIPE, text=True)
    child = int(result.stdout.readline())
    try:
        with locked(tmp_path / "a", wait=1):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        result.wait()
        result.stdout.close()


def test_without_locks_files_are_still_whole_and_read_modify_write_is_refused(tmp_path, monkeypatch):
    import fcntl

    def none(*_):
        raise OSError(38, "function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with (
        pytest.raises(InputError, match="path: expected a filesystem with file locks, got that of"),
        locked(tmp_path / "a"),
    ):
        pass
    write(tmp_path / "a", "old")
    write(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]


# ---------------------------------------------------------------------------------------------------------- reading


def test_a_handle_reads_on_when_the_file_is_replaced(tmp_path):
    write(tmp_path / "a", "old")
    with open_once(tmp_path / "a") as file:
        write(tmp_path / "a", "new")
        assert file.read() == b"old"
    assert read_once(tmp_path / "a") == b"new"


def test_only_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        tmp_path: "--curves: expected curves at .*, got a folder; check the path",
        tmp_path / "fifo": "--curves: expected curves at .*, got a FIFO; check the path",
        "/dev/zero": "--curves: expected curves at '/dev/zero', got a device; check the path",
        tmp_path / "none": "--curves: expected curves at .*, got no file; check the path",
        tmp_path / "loop": "--curves: expected curves at .*, got an error .*; check the path",
        "a\0b": "--curves: expected curves at .*, got an error .*; check the path",
    }
    for path, message in cases.items():
        with pytest.raises(InputError, match=message):
            read_once(path, "curves", name="--curves")


def test_the_same_file_under_another_name(tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    (tmp_path / "soft").symlink_to(log)
    (tmp_path / "hard").hardlink_to(log)
    for out in (log, tmp_path / "soft", tmp_path / "hard", tmp_path / "x" / ".." / "log", tmp_path / "." / "log"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(
            InputError, match=r"--sums: expected another file than the input, got .* for both; rename it"
        ):
            refuse_same_file(out, tmp_path / "none", log, name="--sums")
    refuse_same_file(tmp_path / "new", log, tmp_path, tmp_path / "none")
