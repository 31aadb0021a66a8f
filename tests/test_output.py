"""Progress: a bar on a terminal, and lines where there is none, so that a log of a long run says how far it is."""

from __future__ import annotations

import pytest

from isolayer.cli.output import progress_bar


def test_without_a_terminal_progress_is_written_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("reproduce", every=0) as advance:
        advance(1, 40, "downstream", 7200.4)
        advance(2, 40, "ab-test")
    assert capsys.readouterr().err.splitlines() == [
        "reproduce downstream: 1 of 40, about 2:00:00 left",
        "reproduce ab-test: 2 of 40",
    ]


def test_a_short_command_writes_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("trials") as advance:
        for done in range(5):
            advance(done, 5, seconds_left=1.0)
    assert capsys.readouterr().err == ""
