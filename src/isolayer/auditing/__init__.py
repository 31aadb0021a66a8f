"""Where is a score wrong? The audit of any model's output, by every column of its log.

audit      the question and its answer
findings   the answer: segments, figures, verdict
rows       rows of a log with the levels of their fields
segments   which segments there are, and their sums
search     the clearest segment, then the clearest one once that is corrected, and so on
testing    the test of one segment
groups     the groups of the multicalibration error
"""

from isolayer.auditing.audit import audit
from isolayer.auditing.findings import Audit, Finding

__all__ = ["Audit", "Finding", "audit"]
