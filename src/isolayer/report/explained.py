"""What each figure of the page shows, in one sentence, behind a question mark beside it."""

from __future__ import annotations

from html import escape

SENTENCES = {
    "Log loss": "How surprised the probabilities are by what happened, on average: lower is better, and only the true "
    "probabilities reach the lowest.",
    "Normalised entropy": "Log loss as a share of what predicting the overall rate for every row would give: 1 is no "
    "better than that rate, lower is better.",
    "ECE": "Rows are put into 15 bins by probability; this is how far, on average, the rate of events in a bin is from "
    "what was predicted.",
    "Observed / expected": "Events that happened, divided by the sum of their probabilities: above 1 the predictions "
    "are too low, below 1 too high.",
    "Worst group": "The largest error among all values of all contexts, so that no good average hides a bad group.",
    "reliability": "Each point is a bin of rows with similar predictions; on the dashed line the observed rate is "
    "exactly what was predicted.",
    "density": "How the rows are spread over the scores; calibration moves and stretches this shape without changing "
    "the order of rows in a context.",
    "explorer-curves": "Read a raw probability on the horizontal axis; the line says which probability is served "
    "instead, and the band how certain that is.",
    "explorer-mass": "Where the rows were that each curve was fitted to: far from them the curve is a guess and its "
    "band is wide.",
    "heat": "Each cell is one combination of two contexts, coloured by observed over expected.",
    "daily": "If the mean score leaves the band of the observed rate on some days, the curves are out of date there.",
    "bias": "The same item gets different clicks at different places; each line is what the log shows at one place.",
    "bias-relative": "How the probability of each label changes with the place alone, for items of medium relevance.",
    "history-ratio": "Observed over expected at each check: bars that miss the dashed line of 1 are off beyond chance.",
    "history-loss": "Log loss at each check: the distance between the lines is what calibration gains.",
}


def why(name: str) -> str:
    """A question mark that opens the sentence about a figure; ``bias-0`` and ``heat-1`` are explained as their kind.

    >>> why("heat-1").startswith('<details class="why"><summary aria-label="What does this show?">?</summary>')
    True
    """
    kind = name if name in SENTENCES else name.rpartition("-")[0]
    sentence = escape(SENTENCES[kind])
    return f'<details class="why"><summary aria-label="What does this show?">?</summary><p>{sentence}</p></details>'
