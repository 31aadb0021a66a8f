"""The report: evidence (frozen numbers), then charts, then one self-contained page.

rows       a log, or a fitted histogram, scored by curves
evidence   every number the page shows, with its interval
bias       what the curves of a debiased model say of each task and position
advice     what to do next, in sentences
audit      segments where a score is off
theme      colours and axes
charts     the Altair charts of the page
plots      Altair charts for notebooks
words      values of the log as text that can be read
sections   the words of the page
pack       large columns made small
page       all of it in one HTML file
"""

from isolayer.errors import need

need("altair")

from isolayer.report.page import write, write_audit, write_fitted
from isolayer.report.plots import plot_curves, plot_observed_over_expected, plot_reliability

__all__ = ["plot_curves", "plot_observed_over_expected", "plot_reliability", "write", "write_audit", "write_fitted"]
