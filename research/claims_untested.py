"""Claims of the paper that no study tests, with what can be said of each."""

from __future__ import annotations

from typing import NamedTuple


class Untested(NamedTuple):
    """A claim without a study."""

    says: str
    where: str
    why: str


UNTESTED = {  # claims without a study, by why there is none: says, where, what can be said
    "True or false by definition, or by construction": (
        Untested(
            "The layer preserves the ranking integrity of the model below it",
            "section 1.3, abstract and conclusion",
            "Within a context it does by construction; between contexts it changes the order, which gains AUC in "
            "table 1.",
        ),
        Untested(
            "The inference head sees no shift of its inputs at serving",
            "section 5.7",
            "True by construction, since it is never told the position.",
        ),
        Untested(
            "Isotonic regression cannot be differentiated and resists end-to-end training",
            "section 2",
            "A matter of definition.",
        ),
        Untested(
            "A higher quality level has a strictly higher score",
            "section 1.1",
            "The layer's curves do not fall, but ReLU lets them be level: the row on the steps of isotonic regression.",
        ),
        Untested(
            "No post-hoc fitting is needed",
            "section 1.4",
            "A matter of design; section 4.2 itself fits a post-hoc module over a frozen model.",
        ),
        Untested(
            "Single-function predecessors (LiRank, DIPN, unconstrained monotone networks) are limited to one global "
            "curve",
            "section 2",
            "A matter of what those papers describe. A monotone network with a context is in the studies on KuaiRand.",
        ),
    ),
    "About live traffic, users or one company's operations": (
        Untested(
            "A click depends far more on position than a purchase",
            "section 1.2",
            "A statement about users, which a simulator can only assume.",
        ),
        Untested(
            "A weight of .7 to .8 is the best on live traffic",
            "section 5.6",
            "Only one weight serves simulated users; the row on section 5.2 judges the others by true relevance.",
        ),
        Untested(
            "A calibrator per task means a pipeline, versions and serving for each",
            "section 5.3",
            "A matter of operations: the study of twelve tasks counts 12, or 360 by context, against one layer.",
        ),
        Untested(
            "Teams retired dozens of calibration models and improved business metrics",
            "conclusion",
            "A statement about one company's systems.",
        ),
        Untested(
            "The lifts of tables 2 and 4 and the O/E of table 5 are those of live traffic",
            "sections 4 and 5, appendix A",
            "We have no live traffic. The rows above judge each of them on simulated users.",
        ),
    ),
    "Could be tested, and was not": (
        Untested(
            "Distilling the head preserves the full benefit of debiasing",
            "section 5.7",
            "Only the AUC on the log is compared; the ranking by relevance does not pass through what is distilled.",
        ),
        Untested(
            "A low rate of dropout over-fits positions, and a high one degrades calibration by position",
            "section 5.6",
            "The study of table 3 gives NE and AUC at every rate; calibration by position is not judged.",
        ),
        Untested(
            "The layer does not compromise the expressivity of the model",
            "conclusion",
            "The first row says which curves it can express; that the network below it loses nothing is not tested "
            "apart.",
        ),
        Untested(
            "The listing leverages optimized tensor operations for efficiency",
            "appendix C",
            "No study judges it. `make bench` times the listing against this package, and the row on CPU is of its "
            "cost.",
        ),
        Untested(
            "Estimated propensities have high variance",
            "section 2",
            "Only their error is measured, in the study of off-policy values, and much of it is bias.",
        ),
        Untested(
            "Position as a feature suffers from the shift at serving",
            "section 2",
            "What it ranks like is in the rows on other methods; how much of that is due to the shift is not taken "
            "apart.",
        ),
        Untested(
            "Bypassing the layer makes rankings fair",
            "section 3.7",
            "Only their order by utility is judged.",
        ),
        Untested(
            "Clipping the logits makes training more stable and calibration more robust",
            "section 3.2, footnote",
            "Only what clipping costs is worked out.",
        ),
        Untested(
            "Disentangled representations, adversarial learning and AutoDebias do not handle tasks with unlike bias",
            "section 2",
            "Only adversarial learning (gradient reversal) is in our benchmark, and with one task.",
        ),
    ),
}
