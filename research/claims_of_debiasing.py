"""Claims of the paper about debiasing as such: that the head does it, with which loss and wiring, and what it needs.

Explanations are keyed by the outcome they are written for; what depends on the numbers is told from them.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

_DEPENDS = "The best weight depends on what the logger knew."
DEBIASING = (
    Claim(
        "The isotonic head takes position out of relevance, where dropout does not",
        "section 5",
        "debias-variants",
        ("a joint loss ranks better than naive", "two parallel heads rank better than naive"),
        "Worlds whose true relevance is known, and documents graded by people; with the paper's joint loss at the "
        "weights that it advises, and with its two parallel heads, neither of them searched further. Dropout has its "
        "best setting in the simulated worlds and the paper's rate on documents.",
        {
            HELD: "Position can be told from relevance in these worlds.",
            PARTLY: "With the joint loss it does so only in part, since the loss of the inference head pulls the "
            "shared layers back to the clicks; and the two parallel heads hardly do, since nothing makes the inference "
            "head leave position to the other. What our detached anchor does is under What we add.",
            NOT: "The loss of the inference head pulls the shared layers back to the clicks.",
        },
        also={
            "mslr-clicks": ("the paper's joint loss ranks better than Position Dropout",),
            "debias-benchmark": (),
        },
        compared=compared.papers_debias,
        tells=compared.shares,
    ),
    Claim(
        "Trained jointly by one weighted loss, the inference head is free of position",
        "section 5.2",
        "debias-variants",
        ("a joint loss ranks better than naive",),
        "The same worlds and documents, with alpha .25 and beta .75.",
        {
            HELD: "The head explains position, so that the shared layers need not.",
            PARTLY: "It is nearer to relevance than a model that knows no position, but not free of it: the loss of "
            "the inference head still asks the shared layers to explain clicks.",
        },
        also={
            "mslr-clicks": ("the paper's joint loss ranks better than naive",),
            "offline-debiasing": ("inference head ranks",),
            "debias-benchmark": (),
        },
        compared=compared.joint_closes,
        universal=True,
    ),
    Claim(
        "The best weights of the two losses are .2 to .3 and .7 to .8",
        "section 5.2",
        "advised-alpha",
        ("the paper's alpha of .25 costs",),
        "Loggers that know relevance which the features lack, wholly or in part; the paper's joint weights against the "
        "best of the other weights of the joint loss that were tried, and against a tuned naive model.",
        {
            HELD: "Around the best weight ranking changes little.",
            PARTLY: _DEPENDS,
            NOT: _DEPENDS,
        },
        tells=compared.weights,
        universal=True,
    ),
    Claim(
        "Two parallel heads over a shared representation disentangle relevance from position",
        "sections 5.1 and 5.7, figure 4",
        "debias-variants",
        ("two parallel heads",),
        "The same simulated worlds, whose true relevance is known.",
        {
            HELD: "The gradients of the isotonic head shape what both share.",
            PARTLY: "The gradients of the isotonic head shape what both share, but the inference head is still fitted "
            "to the clicks with whatever tells of position. Where the curves follow the inference head, as in section "
            "3.7, they can take position from it.",
            NOT: "The inference head is fitted to the clicks with whatever tells of position.",
        },
        also={"debias-benchmark": ()},
        compared=compared.parallel_closes,
        universal=True,
    ),
    Claim(
        "No propensities, preprocessing or randomised logging are needed: bias is learned from observational data",
        "abstract and section 1.4",
        "debias-variants",
        ("a joint loss ranks better than naive",),
        "The head with the paper's joint loss, which is given nothing of the kind: against a model that is not "
        "debiased, and against inverse propensities estimated from the same log, in worlds whose true relevance is "
        "known and in daily updates for a year.",
        {
            HELD: "Curves and relevance are learned together from the log alone.",
            PARTLY: "It learns from the log alone and ranks above a model that is not debiased, but below inverse "
            "propensities, which here need no randomised logging either: they are estimated from the same log. The "
            "paper itself fits the curves of section 4.2 to randomised sessions.",
            NOT: "It learns from the log alone, but ranks below inverse propensities, which here need no randomised "
            "logging either: they are estimated from the same log. The paper itself fits the curves of section 4.2 to "
            "randomised sessions.",
        },
        also={
            "incremental": tuple(
                f"bias {moves}: with the joint loss the isotonic head ranks as well as IPS"
                for moves in ("grows", "fades")
            ),
            "debias-benchmark": (),
        },
        compared=compared.joint_above_propensities,
        universal=True,
    ),
    Claim(
        "The served inference head remains well calibrated for the value functions that use it",
        "section 5.2",
        "loss-weights",
        ("ECE at beta 0.7", "ECE at beta"),
        "The joint loss at the paper's weights: ECE on the log, corrected for sample size, which may be .002 above "
        "that of a model that is not debiased (beta 0), paired by seed. The margin is ours; the paper names none.",
        {
            HELD: "The loss of the inference head asks it to be.",
            PARTLY: "The loss of the inference head asks it to be; the map of the study shows ECE at every weight.",
            NOT: "The map of the study shows ECE at every weight; why it is higher is not tested.",
        },
    ),
    Claim(
        "Bypassing the layer at inference ranks by utility, without retraining",
        "sections 1.5 and 3.7",
        "offline-debiasing",
        ("inference head ranks",),
        "The inference head alone, as it is served: its order against true relevance, and what simulated users do.",
        {
            HELD: "Its order is nearer to true relevance than that of the control; that it is free of position is "
            "another claim: that the head, trained jointly, is free of position.",
            PARTLY: "Its order is nearer to true relevance than that of the control in some tasks and metrics.",
        },
        also={"ab-test": ("inference head lifts true relevance",)},
    ),
    Claim(
        "The layer is model-agnostic",
        "conclusion",
        "boosted-trees",
        ("ours, labels alone, ranks above LightGBM position (PBM, spurious)", "ours, labels alone,"),
        "Boosted trees that learn relevance from clicks alone through our curves, against the corrections that "
        "LightGBM and XGBoost have of their own, against no correction, each with the best of six settings, and "
        "against trees through the true curves; in simulated worlds and on graded documents.",
        {
            HELD: "Curves only need a score and its gradient.",
            PARTLY: "Curves only need a score and its gradient, so they work with trees; where trees through them do "
            "not rank above an engine's own correction, we have not tested why.",
            NOT: "Curves only need a score and its gradient, so they work with trees; but here trees through them rank "
            "below an engine's own correction or the true curves, and we have not tested why.",
        },
        also={"mslr-clicks": ("trees, ours, labels alone,",), "tree-tuning": ()},
    ),
)
