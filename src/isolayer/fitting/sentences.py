"""Sentences about segments, the same in audits, fits and reports."""

from __future__ import annotations


def percents(*rates: float) -> list[str]:
    """Rates in percent, with as many digits as are needed to distinguish them, up to four.

    >>> percents(0.041, 0.0563), percents(0.00041, 0.00042), percents(0.5, 0.5)
    (['4.1%', '5.6%'], ['0.041%', '0.042%'], ['50%', '50%'])
    """
    found = list[str]()
    for digits in (2, 3, 4):
        found = [f"{100 * rate:.{digits}g}%" for rate in rates]
        if len(set(found)) == len(set(rates)):
            break
    return [f"{100 * rate:.0f}%" if "e+" in words else words for rate, words in zip(rates, found, strict=True)]


def sentence(where: str, predicted: float, observed: float, rows: float, after: float | None = None) -> str:
    """The sentence about a segment.

    Args:
        where: The segment in words.
        predicted: Rate that the score predicts.
        observed: Rate that was observed.
        rows: Weight of its rows.
        after: Rate that is expected after the earlier segments are corrected, if it differs.

    >>> sentence("hour 22-23 and device phone", 0.041, 0.056, 12300.0)
    'hour 22-23 and device phone: predicted 4.1%, observed 5.6%, 12,300 rows'
    """
    told = percents(predicted, observed, *([] if after is None else [after]))
    middle = "" if after is None else f"{told[2]} once the others are corrected, "
    return f"{where}: predicted {told[0]}, {middle}observed {told[1]}, {rows:,.0f} rows"
