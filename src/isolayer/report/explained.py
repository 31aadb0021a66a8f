"""What each figure of the page shows, in one sentence, behind a question mark beside it."""

from __future__ import annotations

from html import escape

SENTENCES = {
    "Log loss": "The average penalty for the probability given to what actually happened: lower is better, and on "
    "average the true probabilities have the lowest log loss.",
    "Normalised entropy": "Log loss divided by the log loss of predicting the overall rate for every row: 1 is no "
    "better than that rate, lower is better.",
    "ECE": "Expected calibration error: rows are put into 15 bins by predicted probability; this is the average gap "
    "between the observed rate and the mean prediction of a bin.",
    "Observed / expected": "Events that happened, divided by the sum of their probabilities: above 1 the predictions "
    "are too low, below 1 too high.",
    "Worst group": "The largest calibration error among all values of all contexts. A good average cannot hide it.",
    "reliability": "Each point is a bin of rows with similar predictions; on the dashed line the observed rate is "
    "exactly what was predicted.",
    "density": "How many rows have which score. Calibration shifts and stretches this distribution, but keeps the "
    "order of the rows within a context.",
    "explorer-curves": "Find a raw probability on the horizontal axis: the line shows the probability that is served "
    "instead, and the band shows how certain it is.",
    "explorer-mass": "Scores of the rows that each curve was fitted to. Far from these scores the curve is a guess and "
    "its band is wide.",
    "heat": "Each cell is one combination of two contexts, coloured by observed over expected.",
    "daily": "On days when the mean score is outside the band of the observed rate, the curves are out of date.",
    "bias": "The same item gets more or fewer clicks depending on where it is shown; each line is for one such place.",
    "bias-relative": "How the probability of each label changes with the place alone, for items of medium relevance.",
    "history-ratio": "Observed over expected at each check. It is off beyond chance if its bar does not cross the "
    "dashed line at 1.",
    "history-loss": "Log loss at each check. The distance between the lines is the improvement by calibration.",
}


def why(name: str) -> str:
    """A question mark that opens the sentence about a figure; ``heat-1`` has the sentence of ``heat``.

    >>> why("heat-1").startswith('<details class="why"><summary aria-label="What does this show?">?</summary>')
    True
    """
    kind = name if name in SENTENCES else name.rpartition("-")[0]
    sentence = escape(SENTENCES[kind])
    return f'<details class="why"><summary aria-label="What does this show?">?</summary><p>{sentence}</p></details>'
