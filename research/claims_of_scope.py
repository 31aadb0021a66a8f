"""Claims of the paper about the scope of calibration: real traffic, many segments, future work; and those untested.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

SCOPE = (
    Claim(
        "Swapping in another embedding, such as the advertiser's, calibrates each of its values",
        "sections 1.4 and 6",
        "ads-calibration",
        (
            "kuairand by author: the layer has lower F-RCE than raw model",
            "kuairand by author: the layer has lower F-RCE",
            "kuairand by author: the layer",
            "kuairand by tab: the layer",
        ),
        "KuaiRand's clicks by author, who plays the advertiser and whom the model does not know, and by tab: log loss, "
        "ECE, and F-RCE, which is the calibration error per value.",
        {
            HELD: "Values share what they have in common, so that each is calibrated from few rows of its own.",
            PARTLY: "It is fitted for log loss, and shares between values what they have in common. Where another "
            "calibrator is nearer by ECE or F-RCE is in the table; why is not tested.",
            NOT: "Calibrators fitted to each value match its rate directly.",
        },
    ),
    Claim(
        "One set of curves does what calibrators of each surface do",
        "section 4",
        "kuairand",
        (
            "log loss no worse than platt by tab",
            "log loss no worse",
            "ECE by tab no worse",
            "mean abs(O/E - 1) no worse",
        ),
        "KuaiRand's clicks by tab: log loss, ECE within tabs, and O/E of each tab.",
        {
            HELD: "Curves of small tabs borrow from the others, which separate calibrators cannot.",
            PARTLY: "Curves of small tabs borrow from the others, which lowers log loss and the error within tabs. "
            "Calibrators of one tab alone match its rate on the rows they are fitted to, which is what O/E measures.",
        },
    ),
    Claim(
        "One layer calibrates every task and surface of real traffic at once",
        "sections 1.4 and 4",
        "kuairand-tasks",
        ("layer, exact has lower NE than Platt, one per task and tab", "layer, exact", "layer, by gradient"),
        "Eight tasks of KuaiRand by tab; the layer fitted exactly, and learned by gradient as in the paper.",
        {
            PARTLY: "On rare events a line per tab is nearly all that the data can tell, so that Platt per task and "
            "tab is hard to beat.",
        },
    ),
    Claim(
        "Context-conditioned curves calibrate fine segments of a high-dimensional space",
        "section 1.5",
        "kuairand-fields",
        ("curves with all fields have lower log loss than curves by tab", "curves with all fields"),
        "All fields of KuaiRand, against trees from the score and a monotone network over the same fields.",
        {
            HELD: "Corrections by field are shrunk by their evidence, so that many fields do little harm.",
            PARTLY: "All fields lower the log loss, but not the error by field below that of curves by tab; we have "
            "not tested why.",
            NOT: "Trees and networks see more of how fields interact.",
        },
    ),
    Claim(
        "The layer replaces the calibrators of segments, whatever the task",
        "section 1.4",
        "real-tasks",
        ("isolayer ranks before Platt per segment by log loss", "isolayer ranks before"),
        "Real tasks that no setting was chosen on, though their test rows were used, with other labels or segments; by "
        "mean rank over tasks.",
        {
            HELD: "It is between one curve and one per segment, as far towards either as the rows say.",
            PARTLY: "Hierarchical Platt, which is between one line and one per segment too, is level with it by log "
            "loss; by calibration error several are. With so few tasks of one source little is beyond chance.",
        },
    ),
    Claim(
        "Constraints on several dimensions ensure joint monotonicity",
        "section 6, future work",
        "lattice",
        ("the lattice never falls", "log loss no higher than", "lower log loss than an unconstrained b"),
        "Two monotone inputs and a free one, simulated and real, against boosters with and without the constraint and "
        "pytorch-lattice.",
        {
            HELD: "The order is kept by construction, at no cost where it is true.",
            PARTLY: "The order is kept by construction; in log loss a monotone booster, which places its cuts where "
            "the data are, and another lattice can be level or better.",
        },
    ),
    Claim(
        "Curves for millions of sub-segments can be learned within one model",
        "section 6, future work",
        "segments",
        (
            "exact curves: lower log loss",
            "layer, rank 4: lower log loss",
            "the layer of rank",
            "exact curves:",
            "layer,",
        ),
        "A million advertisers by Zipf's law, 20 million impressions.",
        {
            HELD: "Large advertisers get curves of their own, small ones stay near to that of all.",
            PARTLY: "The layer is behind the exact fit at every size of advertiser, and behind one curve for those "
            "that the log does not have; hashed, so that ten share a curve, also for small ones. Why is not tested.",
        },
    ),
    Claim(
        "Predicting the position bridges the gap between training and serving",
        "section 6, future work",
        "position-prediction",
        ("the paper's pooling has a lower log loss", "the paper's pooling is closer"),
        "Simulated feeds, pooling over embeddings of positions or over probabilities: log loss, and error by the "
        "feature that the logger ranked by.",
        {
            HELD: "Where an item will be shown tells how often it is clicked.",
            PARTLY: "As the paper writes it, by positions predicted from relevance alone, it comes out differently by "
            "log loss and by error over the logger's feature (the parts in the table).",
            NOT: "As the paper writes it, by positions predicted from relevance alone, it gains neither.",
        },
        tells=compared.pooled,
    ),
    Claim(
        "Utility and position bias give propensities for off-policy evaluation",
        "section 6, future work",
        "off-policy",
        ("learned curves value the new ranking within 5%", "their 95% intervals", "they err less"),
        "A hundred simulated logs per click model, two new rankings, against what users do.",
        {
            HELD: "Curves of utility and position are the right propensities under both click models.",
            PARTLY: "Curves of utility and position are the right form under both click models, but they are learned, "
            "and intervals count what was learned as given.",
        },
        tells=compared.missed,
    ),
    Claim(
        "The same on real logs",
        "section 6, future work",
        "open-bandit",
        ("DRos with the isotonic reward", "DM with", "DRos errs", "DR errs", "DM errs", "switch DR"),
        "Open Bandit's sample of real logs.",
        {NOT: "The sample has 42 clicks, which decide nothing; simulated logs are the row above."},
    ),
)

UNTESTED = (  # claims without a study: says, where, why not
    (
        "Distilling the head preserves the full benefit of debiasing",
        "section 5.7",
        "Only the AUC on the log is compared; the ranking by relevance does not pass through what is distilled.",
    ),
    (
        "No post-hoc fitting is needed",
        "section 1.4",
        "A matter of design; section 4.2 itself fits a post-hoc module over a frozen model.",
    ),
    (
        "Estimated propensities have high variance",
        "section 2",
        "Only their error is measured, in the study of off-policy values, and much of it is bias.",
    ),
    (
        "Position as a feature suffers from the shift at serving",
        "section 2",
        "What it ranks like is in the rows on other methods; how much of that is due to the shift is not taken apart.",
    ),
    (
        "A click depends far more on position than a purchase",
        "section 1.2",
        "A statement about users, which a simulator can only assume.",
    ),
    (
        "A higher quality level has a strictly higher score",
        "section 1.1",
        "The layer's curves do not fall, but ReLU lets them be level: the row on the steps of isotonic regression.",
    ),
    (
        "A weight of .7 to .8 is the best on live traffic",
        "section 5.6",
        "Only one weight serves simulated users; the row on section 5.2 judges the others by true relevance.",
    ),
    (
        "Bypassing the layer makes rankings fair",
        "section 3.7",
        "Only their order by utility is judged.",
    ),
    (
        "A calibrator per task means a pipeline, versions and serving for each",
        "section 5.3",
        "A matter of operations: the study of twelve tasks counts 12, or 360 by context, against one layer.",
    ),
    (
        "Clipping the logits makes training more stable and calibration more robust",
        "section 3.2, footnote",
        "Only what clipping costs is worked out.",
    ),
    (
        "Teams retired dozens of calibration models and improved business metrics",
        "conclusion",
        "A statement about one company's systems.",
    ),
    (
        "The lifts of tables 2 and 4 and the O/E of table 5 are those of live traffic",
        "sections 4 and 5, appendix A",
        "We have no live traffic. The rows above judge each of them on simulated users.",
    ),
    (
        "Disentangled representations, adversarial learning and AutoDebias do not handle tasks with unlike bias",
        "section 2",
        "Only adversarial learning (gradient reversal) is in our benchmark, and with one task.",
    ),
    (
        "Single-function predecessors (LiRank, DIPN, unconstrained monotone networks) are limited to one global curve",
        "section 2",
        "A matter of what those papers describe. A monotone network with a context is in the studies on KuaiRand.",
    ),
)
