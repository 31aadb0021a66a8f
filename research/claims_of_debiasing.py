"""Claims of the paper about debiasing as such: that the head does it, with which loss and wiring, and what it needs.

Explanations are keyed by the outcome they are written for; what depends on the numbers is told from them.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

_DEPENDS = (
    "How much relevance may be taken for position depends on what the logger knew, which no fixed weight can tell."
)
DEBIASING = (
    Claim(
        "The isotonic head takes position out of relevance, where dropout does not",
        "section 5",
        "debias-benchmark",
        ("the dual head closes", "above position dropout", "the dual head ranks no worse than naive"),
        "Worlds whose true relevance is known, and documents graded by people; with our detached anchor, with the "
        "paper's joint loss, and with its two parallel heads. Settings of all other methods were searched.",
        {
            HELD: "Position can be told from relevance in these worlds.",
            PARTLY: "With our detached anchor, which the paper does not have, the head does so wherever position can "
            "be told from relevance. With the paper's own joint loss it does so only in part, since the loss of the "
            "inference head pulls the shared layers back to the clicks; and its two parallel heads hardly do, since "
            "nothing makes the inference head leave position to the other.",
        },
        also={
            "debias-variants": (),
            "mslr-clicks": (
                "the dual head ranks better than Position Dropout",
                "the dual head, detached anchor ranks better than Position Dropout",
            ),
            "debias-tuning": (),
        },
        compared=compared.papers_debias,
        tells=compared.debiasing,
    ),
    Claim(
        "Trained jointly by one weighted loss, the inference head is free of position",
        "section 5.2",
        "debias-variants",
        ("a joint loss ranks better than naive", "a joint loss ranks as well as"),
        "The same worlds and documents, with alpha .25 and beta .75.",
        {
            HELD: "The head explains position, so that the shared layers need not.",
            PARTLY: "It is nearer to relevance than a model that knows no position, and further from it than with a "
            "detached anchor: the loss of the inference head still asks the shared layers to explain clicks.",
        },
        also={
            "mslr-clicks": ("the dual head ranks better",),
            "offline-debiasing": ("inference head ranks",),
            "debias-benchmark": (),
        },
        compared=compared.joint_closes,
    ),
    Claim(
        "The best weights of the two losses are .2 to .3 and .7 to .8",
        "section 5.2",
        "advised-alpha",
        ("the paper's alpha of .25 costs", "the advice costs"),
        "Loggers that know relevance which the features lack, wholly or in part; the paper's joint "
        "weights in all of these worlds, and our diagnosis of the log, which advises them or the detached anchor, in "
        "those that it was not set on.",
        {
            HELD: "Around the best weight ranking changes little.",
            PARTLY: _DEPENDS,
            NOT: _DEPENDS,
        },
    ),
    Claim(
        "Two parallel heads over a shared representation disentangle relevance from position",
        "sections 5.1 and 5.7, figure 4",
        "debias-variants",
        ("two parallel heads",),
        "The same worlds.",
        {
            HELD: "The gradients of the isotonic head shape what both share.",
            PARTLY: "The gradients of the isotonic head shape what both share, but the inference head is still fitted "
            "to the clicks with whatever tells of position. Where the curves follow the inference head, as in section "
            "3.7, they can take position from it.",
            NOT: "The inference head is fitted to the clicks with whatever tells of position.",
        },
        also={"debias-benchmark": ()},
        compared=compared.parallel_closes,
    ),
    Claim(
        "No propensities, preprocessing or randomised logging are needed: bias is learned from observational data",
        "abstract and section 1.4",
        "debias-benchmark",
        (
            "the dual head closes",
            "above IPS, harvested",
            "above IPS, EM",
            "the dual head ranks no worse than naive",
        ),
        "Worlds whose true relevance is known: the head, which is given nothing of the kind, against inverse "
        "propensities estimated from the same log; daily updates; and the value of new rankings.",
        {
            HELD: "Curves and relevance are learned together from the log alone.",
            PARTLY: "The head needs none of these, and with our detached anchor it ranks above inverse propensities. "
            "With the paper's joint loss it ranks below them, and they need no randomised logging here either: they "
            "are estimated from the same log. The paper itself fits the curves of section 4.2 to randomised sessions.",
        },
        also={
            "incremental": (
                "bias grows: isotonic ranks as well as IPS",
                "bias fades: isotonic ranks as well as IPS",
                "bias grows: with the detached anchor",
                "bias fades: with the detached anchor",
            ),
            "off-policy": ("learned curves value the new ranking", "they err less than weights by position"),
            "debias-variants": (),
        },
        compared=compared.joint_above_propensities,
        tells=compared.informed,
    ),
    Claim(
        "The served inference head remains well calibrated for the value functions that use it",
        "section 5.2",
        "debias-benchmark",
        ("what is served is calibrated like naive",),
        "The same worlds: ECE on the traffic that was logged, as a ratio to that of a model that is not debiased; at "
        "most 1.2 is asked. With our detached anchor, fitted once more after training.",
        {
            HELD: "The anchor fits the level of what is served to the log without touching the ranking.",
            PARTLY: "The anchor fits the level of what is served to the log without touching the ranking. What "
            "position explained is left out, and seeds differ by more than the ratio asks.",
        },
    ),
    Claim(
        "One layer does what methods made for debiasing do; the state of the art everywhere is not claimed",
        "abstract, as we read it",
        "debias-benchmark",
        (
            "it is within its interval of the best method",
            "above PAL",
            "above additive tower",
            "above trust affine",
            "above DLA",
            "above IPS",
            "above regression EM",
            "above pairwise debiasing",
            "above cascade model",
            "above DCM",
            "above DBN",
            "above UBM",
            "above gradient reversal",
        ),
        "The same worlds, with our detached anchor, against the best of all other methods and each of them.",
        {
            HELD: "One curve per position can be any of the forms that these methods assume.",
            PARTLY: "One curve per position can be any of the forms that these methods assume. Where one of them "
            "assumes the right form, it can be level with the layer or a little above it.",
        },
    ),
    Claim(
        "The layer is model-agnostic",
        "conclusion",
        "boosted-trees",
        ("ours ranks above LightGBM position (PBM, spurious)", "ours"),
        "Boosted trees that learn relevance through our curves, in simulated worlds and on graded documents.",
        {
            HELD: "Curves only need a score and its gradient.",
            PARTLY: "Curves only need a score and its gradient. Where the logger is a weak ranker of relevance itself, "
            "what they take out is in part relevance.",
        },
        also={"mslr-clicks": ("trees through our curves",)},
    ),
)
