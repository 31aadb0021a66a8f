"""Commands destroy nothing: inputs survive, literal paths win, odd names can be given, mistakes are one line."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.commands import campaign
from test_cli import log, run

from isolayer import Curves
from isolayer.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def day(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(log(), "day.parquet")
    return tmp_path


def isolayer(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "isolayer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("alias", ["day.parquet", "./day.parquet", "link.parquet", "hard.parquet"])
@pytest.mark.parametrize(
    "command",
    [
        ("fit", "day.parquet", "--out"),
        ("fit", "day.parquet", "--out", "curves.parquet", "--sums"),
        ("fit", "da*.parquet", "--out"),
        ("report", "day.parquet", "--out"),
        ("apply", "day.parquet", "--out"),
    ],
    ids=lambda command: " ".join((command[0], command[1], command[-1])),
)
def test_no_command_overwrites_its_log_by_whatever_name(day, command, alias):
    run("fit", "day.parquet", "--out", "curves.parquet")
    Path("link.parquet").symlink_to("day.parquet")
    os.link("day.parquet", "hard.parquet")
    before = Path("day.parquet").read_bytes()
    with pytest.raises(InputError, match=rf"^{command[-1]}: expected another file than"):
        run(*command, alias)
    assert Path("day.parquet").read_bytes() == before


def test_no_command_overwrites_the_curves_it_reads(day):
    run("fit", "day.parquet", "--sums", "sums.parquet")
    for arguments in (
        ("apply", "day.parquet", "--curves", "curves.parquet", "--out", "curves.parquet"),
        ("report", "day.parquet", "--curves", "curves.parquet", "--out", "curves.parquet"),
        ("export", "curves.parquet", "--out", "curves.parquet"),
        ("update", "sums.parquet", "day.parquet", "--curves", "sums.parquet"),
    ):
        before = {path: path.read_bytes() for path in Path().glob("*.parquet")}
        with pytest.raises(InputError, match=r"expected another file than|expected curves, got histogram"):
            run(*arguments)
        assert {path: path.read_bytes() for path in Path().glob("*.parquet")} == before


@pytest.mark.parametrize("name", ["day[1].parquet", "day?.parquet", "da*.parquet", "a b.parquet", "o'clock.parquet"])
def test_a_path_that_exists_is_read_literally(day, name):
    shutil.copy("day.parquet", "day1.parquet")
    pq.write_table(log(seed=5, rows=700), name)
    result = run("fit", name, "--json")
    assert '"rows": 700' in result.stdout
    run("apply", name, "--out", "out.parquet")
    assert pq.read_metadata("out.parquet").num_rows == 700


@pytest.mark.parametrize("asked", ["surface", "SURFACE", "SURFACE_1"])
def test_columns_of_a_file_that_differ_in_case_only_are_refused(day, asked):
    rows = log()
    twins = {"surface": ["a", "b"] * (len(rows) // 2), "SURFACE": ["b", "a"] * (len(rows) // 2)}
    pq.write_table(pa.table({name: rows[name] for name in ("prob", "click")} | twins), "twins.parquet")
    with pytest.raises(InputError, match="which duckdb ignores, got 'surface' and 'SURFACE'; rename one"):
        run("fit", "twins.parquet", "--contexts", asked)


def test_a_pipe_is_a_log(day):
    os.mkfifo("pipe.csv")
    text = "prob,click\n" + "".join(f"{p:.3f},{int(p > 0.5)}\n" for p in np.linspace(0.01, 0.99, 300))
    writer = threading.Thread(target=lambda: Path("pipe.csv").write_text(text))
    writer.start()
    result = run("fit", "pipe.csv", "--json")
    writer.join()
    assert '"rows": 300' in result.stdout


def device(path):
    """A device that swallows everything, made here so that no test can harm the real one."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make a device")


def test_a_device_is_no_log(day):
    device("null")
    with pytest.raises(InputError, match=r"^log: expected a file, a folder or a pipe, got the device 'null'"):
        run("fit", "null")


@pytest.mark.parametrize(("out", "make"), [("null", device), ("pipe", os.mkfifo), ("folder", os.mkdir)])
def test_an_output_that_is_no_file_is_refused(day, out, make):
    make(out)
    kind = Path(out).stat().st_mode
    with pytest.raises(InputError, match=r"^--out: expected a file, got"):
        run("fit", "day.parquet", "--out", out)
    assert Path(out).stat().st_mode == kind


@pytest.mark.parametrize("names", [["a,b", "c d"], ["[x]", '"q"'], ["platform", "a,b"]])
def test_columns_of_any_name_can_be_given(day, names):
    table = pq.read_table("day.parquet")
    for place, name in enumerate(names):
        table = table.append_column(name, table["device"] if place == 0 else table["day"])
    pq.write_table(table, "odd.parquet")
    repeated = [word for name in names for word in ("--contexts", name)]
    run("fit", "odd.parquet", *repeated)
    assert Curves.load("curves.parquet").contexts == tuple(names)
    listed = "[" + ", ".join('"' + name.replace('"', '\\"') + '"' for name in names) + "]"
    run("fit", "odd.parquet", "--contexts", listed, "--out", "again.parquet")
    assert Curves.load("again.parquet").contexts == tuple(names)
    run("fit", "odd.parquet", "--contexts", "device,day", "--out", "plain.parquet")
    assert Curves.load("plain.parquet").contexts == ("device", "day")


def test_control_characters_in_values_are_printed_visibly(day):
    rows = log()
    evil = pa.array([f"\x1b]0;owned\x07{device}\nnext" for device in rows["device"].to_pylist()])
    pq.write_table(rows.append_column("name", evil), "evil.parquet")
    run("fit", "evil.parquet", "--contexts", "name")
    printed = run("check", "evil.parquet").output
    assert "\x1b" not in printed
    assert "\\x1b]0;owned\\x07app\\nnext" in printed
    result = isolayer("fit", "evil.parquet", "--label", "\x1b[2J")
    assert result.returncode == 2
    assert "\x1b" not in result.stderr
    assert (
        result.stderr.strip().splitlines()[-1].startswith("isolayer: --label: expected a column of the log, got '\\x1b")
    )


def test_low_memory_ends_in_one_line(day):
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (8_000_000_000, 8_000_000_000))

    result = isolayer("simulate", "--sessions", 900_000_000, "--out", "log.parquet", preexec_fn=limited)
    assert result.returncode == 2
    assert result.stderr.startswith("isolayer: Unable to allocate")
    assert len(result.stderr.splitlines()) == 1
    assert not Path("log.parquet").exists()


def test_no_odd_command_ends_in_a_traceback():
    counts, faults = campaign(sample=80)
    assert not faults, faults[0]
    assert counts["ok"] > 0
    assert counts["mistake"] > 40


def test_a_command_leaves_without_a_word_about_reference_counts(day):
    fitted = isolayer("fit", "day.parquet", "--contexts", "device")
    applied = isolayer("apply", "day.parquet", "--out", "out.parquet")
    assert (fitted.returncode, applied.returncode) == (0, 0)
    assert "leaked" not in fitted.stderr + applied.stderr


def test_missing_contexts_are_refused_unless_they_are_to_have_a_curve(day):
    rows = log()
    holes = pa.array([None if place % 7 == 0 else name for place, name in enumerate(rows["device"].to_pylist())])
    pq.write_table(rows.set_column(2, "device", holes), "holes.parquet")
    with pytest.raises(InputError, match=r"no missing contexts, got 858 .* by --missing own, or leave them out"):
        run("fit", "holes.parquet", "--contexts", "device")
    run("fit", "holes.parquet", "--contexts", "device", "--missing", "own", "--sums", "sums.parquet")
    assert None in Curves.load("curves.parquet").keys[1][0].tolist()
    pq.write_table(pq.read_table("holes.parquet").slice(7), "day2.parquet")
    run("update", "sums.parquet", "day2.parquet")  # what the fit was told of missing contexts still holds
    with pytest.raises(InputError, match=r"^--missing: expected error or own, got 'nan'"):
        run("fit", "holes.parquet", "--contexts", "device", "--missing", "nan")
