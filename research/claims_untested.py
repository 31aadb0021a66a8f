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
        Untested(
            "Weights of an ordinary network (MLP) act locally, those of the layer globally",
            "sections 1.1 and 3.5",
            "Every weight of a hidden unit acts wherever that unit is active, which is no small place. That the output "
            "of the layer at a score depends on all slopes below it is true by construction.",
        ),
        Untested(
            "Position as a feature reweights samples to simulate randomised exposure",
            "section 2",
            "Inverse propensities do; a model that is told the position has an input more, and all its weights are 1.",
        ),
        Untested(
            "An O/E of .848 is an over-prediction by 15.2%, and one of .952 by 4.8%",
            "appendix A",
            "The observed rate is 15.2% below the expected one; the expected one is 1/.848 - 1 = 17.9% too high, and "
            "5.0% for .952.",
        ),
        Untested(
            "The debiased model is consistently closer to an O/E of 1 across all positions",
            "appendix A",
            "Not in the paper's own table: at position 3 it goes from .942 to .941. The row on table 5 has our world.",
        ),
        Untested(
            "No randomised logging is needed",
            "abstract and section 1.4",
            "Section 4.2 itself learns the curves from randomised session data. The row on propensities has what is "
            "learned without any.",
        ),
    ),
    "About live traffic, users or one company's operations": (
        Untested(
            "A click depends far more on position than a purchase",
            "section 1.2",
            "A statement about users, which a simulator can only assume.",
        ),
        Untested(
            "Skip is less sensitive to position than Click",
            "caption of figure 5",
            "A statement about users. In our feeds what is not seen is skipped, so that Skip moves more by "
            "construction; the study of learned curves has the figures.",
        ),
        Untested(
            "Platt scaling and a calibrator per task leave offline ranking flat",
            "section 5.3, which says so of live metrics",
            "The scores of our twelve tasks are calibrated per task already, so that there is nothing to change. The "
            "row on live metrics judges both on simulated users.",
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
            "A new segment takes an embedding lookup, no new model and no new pipeline",
            "abstract, section 1.4 and conclusion",
            "A matter of operations: here it is one more name in `contexts`. What it gains is in the rows on segments.",
        ),
        Untested(
            "Uncalibrated multi-task models typically over-predict",
            "section 4.3",
            "A statement about other models. Ours over-predicts since a positive has the weight of three.",
        ),
        Untested(
            "Curves differ in shape between contexts and not merely in scale",
            "appendix B",
            "A statement about the paper's traffic. Our worlds are drawn so, and the row on figures 5 and 6 says "
            "whether the head learns it.",
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
            "No study judges it; as printed it does not parse. `make bench` times our reading of it against this "
            "package, and the row on CPU is of its cost.",
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
            "Only their order by utility is judged. Counterfactual values are judged by estimators of their own.",
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
        Untested(
            "Rankings are free of device bias",
            "sections 3.1 and 5",
            "Position and device are contexts together in every study of debiasing, and relevance is judged as a "
            "whole; no part takes the device apart.",
        ),
        Untested(
            "The layer repairs presentation bias and selection bias",
            "section 1",
            "Our simulated feeds have bias by position, device and trust. Which items are shown at all is up to the "
            "logger, and nothing corrects for it.",
        ),
        Untested(
            "Distilling is the way where latency is binding",
            "section 5.7",
            "Not judged, but measured: the study of CPU has the time of the head distilled beside that of the head "
            "kept as a table.",
        ),
        Untested(
            "Systematic deviations of O/E from 1 across positions are a direct signature of position bias",
            "appendix A",
            "That bias gives such deviations is in the rows on table 5. Whether they could have other causes, such as "
            "who is shown what, is not tested.",
        ),
        Untested(
            "Advertisements must be left out since they would confound O/E",
            "appendix A",
            "They are left out of our table as well; what they would do in it is not measured.",
        ),
        Untested(
            "A model of sparse labels is sensitive to shifts of the data",
            "section 4.1",
            "It is retrained daily in a world that moves; how much of its swings is due to the move is not taken "
            "apart.",
        ),
        Untested(
            "A model that is not told the position learns to predict clicks given the position",
            "section 5.6",
            "Its ranking against true relevance, with and without debiasing, is in the rows on debiasing; that "
            "what it gets wrong is position alone is not tested.",
        ),
        Untested(
            "Layers without the constraint bring noise of one task into the order of another",
            "section 1.2",
            "The constraint is tested with one task: the rows on regularising.",
        ),
        Untested(
            "Most methods assume one mechanism of calibration for all tasks",
            "section 2",
            "A statement about the literature. One calibrator for every task is among the rivals of twelve tasks.",
        ),
    ),
}
