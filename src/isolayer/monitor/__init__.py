"""Does a calibrator still hold on a new log? The statistics behind the verdicts; nothing is refitted.

checking     the question and its answer
groups       the rows of a log, by context and by each depth of the hierarchy
judging      the tests of one depth: number of events, slope
uncertainty  how uncertain fitted curves are, one by one and summed over the hierarchy
term_errors  the uncertainty that the corrections of fields add
release      is a new calibrator better on a log
"""

from isolayer.curves.field_log import FieldLog, PairedLog
from isolayer.monitor.checking import Check, check, log_losses
from isolayer.monitor.release import Release, compare_on_log

__all__ = ["Check", "FieldLog", "PairedLog", "Release", "check", "compare_on_log", "log_losses"]
