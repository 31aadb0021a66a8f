"""Files as newcomers have them: columns are recognised by name, and what cannot be read is named with a remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_cli import folder, run

from isolayer import InputError
from isolayer.cli import line

__all__ = ["folder"]
SPREAD = ("2025-11-30", "2025-12-24", "2026-01-02", "2026-02-01")  # other days are the latest by the day of the month
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def write(name, score="prob", label="click", *, spelled="{:.2f}", day="2026-01-{:02d}"):
    random = np.random.default_rng(0)
    prob, place = random.random(600), np.arange(600)
    event = random.random(600) < prob
    rows = [f"{day.format(1 + k % 28)},{spelled.format(prob[k])},{int(event[k])}" for k in place]
    Path(name).write_text(f"day,{score},{label}\n" + "\n".join(rows))


def test_usual_names_are_known_in_capitals_and_at_the_end_of_a_name(folder):
    write("capitals.csv", "Model_Prob", "Click")
    told = run("fit", "capitals.csv").stderr
    assert "guessed: --score Model_Prob" in told
    assert "guessed: --label Click" in told
    assert "guessed: --scale prob" in told
    write("first.csv", "prob_of_rain", "rained")
    assert "guessed: --scale prob" in run("fit", "first.csv", "--score", "prob_of_rain", "--label", "rained").stderr


@pytest.mark.parametrize(
    "name", ["logit_to_prob_v2", "prob_rank", "logit_prob", "log_prob", "prob_logit", "prob_click"]
)
def test_a_name_that_does_not_say_the_scale_is_asked_about(folder, name):
    write("log.csv", name)
    with pytest.raises(InputError, match=f"^--scale: expected logit or prob for the column '{name}', got nothing; add"):
        run("fit", "log.csv", "--score", name)


@pytest.mark.parametrize("command", ["fit", "audit"])
def test_percentages_are_told_from_text_and_from_probabilities(folder, command):
    write("sign.csv", spelled="{:.0%}")
    with pytest.raises(InputError, match=r"--score: .* got text in 'prob', such as '\d+%'; write 35% as 0\.35$"):
        run(command, "sign.csv")
    write("hundred.csv")
    Path("hundred.csv").write_text(re.sub(r",0\.0?(\d)", r",\1", Path("hundred.csv").read_text()))
    with pytest.raises(InputError, match=r"divide them by 100 if they are percentages, or leave them out by [^:]*$"):
        run(command, "hundred.csv")


@pytest.mark.parametrize(
    "day", ["{:02d}. January 2026", "{:d} Jan 2026", "January {:d} 2026", "day {:d}", "Mon {:02d}/01/2026"]
)
def test_days_that_do_not_sort_as_text_are_refused(folder, day):
    write("days.csv", day=day)
    with pytest.raises(InputError, match=r"days: expected text .* got '.*'; write days as 2026-09-25"):
        run("fit", "days.csv", "--holdout", "0.2", "--date", "day")


def test_the_latest_days_are_left_out_however_dates_are_written(folder):
    write("iso.csv")
    text = Path("iso.csv").read_text()
    Path("spread.csv").write_text(re.sub(r"2026-01-(\d\d)", lambda day: SPREAD[int(day[1]) % 4], text))
    Path("slashes.csv").write_text(re.sub(r"(\d{4})-(\d\d)-(\d\d)", r"\3/\2/\1", Path("spread.csv").read_text()))
    found = [
        run("fit", name, "--holdout", "0.2", "--date", "day", "--json").stdout for name in ("spread.csv", "slashes.csv")
    ]
    figures = [json.loads(one)["figures"] for one in found]
    assert figures[0] == figures[1]


def refused(*arguments):
    """The line that a command prints for a mistake."""
    with pytest.raises(InputError) as found:
        run(*arguments)
    return line(found.value)


def test_what_strangers_meet_is_said_in_the_words_of_the_command_line(folder):
    write("ads.csv", "pctr")
    told = run("fit", "ads.csv").stderr
    assert "guessed: --scale prob" in told
    assert "percentages" not in told
    rows = ["score,click", *(f"{k % 100},{int(k % 100 > 3 * (k // 100))}" for k in range(1, 3000))]
    Path("percent.csv").write_text("\n".join(rows))
    assert "divide percentages by 100" in refused("fit", "percent.csv")
    assert "if they are percentages, divide them by 100" in run("fit", "percent.csv", "--scale", "logit").stderr
    assert "--on-bad-rows drop" in refused("audit", "percent.csv", "--scale", "prob")
    Path("comma.csv").write_text("score;click\n0,25;1\n0,5;0\n")
    assert "decimal=','" in refused("fit", "comma.csv", "--scale", "prob")
    Path("one.csv").write_text("prob,click\n0.25,0\n")
    assert "got only 0 in 1 row;" in refused("fit", "one.csv")
