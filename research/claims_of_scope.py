"""Claims of the paper about the scope of calibration: real traffic, many segments, future work.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

SCOPE = (
    Claim(
        "Calibrating every segment by itself is impossible with classical methods",
        "section 1.5",
        "kuairand-tasks",
        ("layer, exact has lower NE than Platt, one per task and tab",),
        "Real tasks and segments: Platt scaling of every segment, alone or with a ridge towards all segments "
        "(hierarchical Platt), against the exact layer.",
        {
            HELD: "They can be calibrated by classical methods too, but not as well.",
            PARTLY: "It is possible, and some of these methods are hard to beat.",
            NOT: "It is possible, and some of these methods are hard to beat.",
            "held in direction": "It is possible, and some of these methods are hard to beat.",
            "undecided": "It is possible, and some of these methods are hard to beat.",
        },
        also={
            "real-tasks": (
                "isolayer ranks before hierarchical Platt by log loss",
                "isolayer ranks before Platt per segment by log loss",
            )
        },
        universal=True,
    ),
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
            HELD: "Perhaps since values share what they have in common, so that few rows of their own are enough; we "
            "have not tested why.",
            PARTLY: "It is fitted for log loss, and shares between values what they have in common. Where another "
            "calibrator is nearer by ECE or F-RCE is in the table; why is not tested.",
            NOT: "Perhaps since calibrators fitted to each value match its rate directly; we have not tested why.",
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
            HELD: "Curves of small tabs borrow from the others, which separate calibrators cannot; that this is what "
            "helps is not tested.",
            PARTLY: "Curves of small tabs borrow from the others, which perhaps lowers log loss and the error within "
            "tabs; calibrators of one tab alone match its rate on the rows they are fitted to, which perhaps helps "
            "their O/E. We have not tested why.",
            NOT: "Separate calibrators are nearer here; we have not tested why.",
        },
    ),
    Claim(
        "One layer calibrates every task and surface of real traffic at once",
        "sections 1.4 and 4",
        "kuairand-tasks",
        ("layer, exact has lower NE than Platt, one per task and tab", "layer, exact", "layer, by gradient"),
        "Eight tasks of KuaiRand by tab, defaults of the layer having been chosen on six of them; the layer fitted "
        "exactly, and learned by gradient as in the paper.",
        {
            HELD: "Perhaps since tasks and tabs share what they have in common; we have not tested why.",
            PARTLY: "Platt per task and tab is hard to beat, perhaps since on rare events a line per tab is nearly all "
            "that the data can tell; we have not tested why. The page has the two tasks apart that no default was "
            "chosen on.",
            NOT: "Calibrators per task and tab are nearer here; we have not tested why.",
        },
        universal=True,
    ),
    Claim(
        "Context-conditioned curves calibrate fine segments of a high-dimensional space",
        "section 1.5",
        "kuairand-fields",
        ("curves with all fields have lower log loss than curves by tab", "curves with all fields"),
        "All fields of KuaiRand, against trees from the score, a monotone network and MCGrad (its defaults) over the "
        "same fields: log loss, ECE and error by field.",
        {
            HELD: "Corrections by field are shrunk by their evidence, so that many fields perhaps do little harm; we "
            "have not tested why.",
            PARTLY: "It depends on what is measured: of log loss, ECE (the published metric) and the error by field, "
            "some parts did not hold (the table); we have not tested why.",
            NOT: "Trees and networks see more of how fields interact, perhaps; we have not tested why.",
        },
    ),
    Claim(
        "The layer replaces the calibrators of segments, whatever the task",
        "section 1.4",
        "real-tasks",
        ("isolayer ranks before Platt per segment by log loss", "isolayer ranks before"),
        "Real tasks that no setting was chosen on, though their test rows were used, with other labels or segments; by "
        "the mean rank of each source, with intervals over the sources.",
        {
            HELD: "It is between one curve and one per segment, as far towards either as the rows say, which perhaps "
            "is why; that is not tested.",
            PARTLY: "Which peers are ahead or level, and by which metric, is in the table; hierarchical Platt is "
            "between one line and one per segment too. We have not tested why.",
            NOT: "Other calibrators rank before it; we have not tested why.",
        },
        universal=True,
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
            PARTLY: "The order is kept by construction. In log loss a booster, monotone or not, or another lattice is "
            "level or better in some of these worlds (the parts in the table); we have not tested why.",
        },
    ),
    Claim(
        "Curves for millions of sub-segments can be learned within one model",
        "section 6, future work",
        "segments",
        (
            "exact curves: lower log loss",
            "layer, rank 4: lower log loss",
            "the layer of rank 4 is as good as",
            "the layer of rank 4 beats one curve",
            "exact curves beat one curve",
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
        {
            PARTLY: "So few clicks decide little; simulated logs, which have more, are in the row on propensities "
            "for off-policy evaluation.",
            NOT: "So few clicks decide nothing; simulated logs, which have more, are in the row on propensities "
            "for off-policy evaluation.",
        },
        tells=compared.events,
    ),
)
