"""Claims of the paper about what other methods cannot do: isotonic regression, Platt, propensities, dropout.

Explanations are keyed by the outcome they are written for; what depends on the numbers is told from them.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

_ONE_PER_TASK = tuple(
    f"the {layer} has lower {what} than {other}, one per task"
    for layer in ("layer, isotonic head", "layer, exact")
    for other in ("Platt", "isotonic")
    for what in ("NE", "O/E error")
)
_AVERAGES = (
    "One curve per task averages over positions and devices, and a weight per position is right only where bias "
    "multiplies all chances alike. How near Platt scaling with a model per task and context comes is in the row on one "
    "layer for every task and context. And the O/E above 1 at the top and below 1 at position 6, which the paper takes "
    "as proof against static propensities, is none: the feed of "
    "[observed-over-expected](studies/observed-over-expected.md) has exactly one propensity per position."
)

ALTERNATIVES = (
    Claim(
        "A model without the constraint makes inversion errors, such as a higher quality level with a lower score",
        "section 1.1",
        "lattice",
        (),
        "Inputs in which the true chance rises, 500 to 20,000 rows.",
        {
            HELD: "Noise in the data is followed wherever nothing forbids it.",
            PARTLY: "Noise in the data is followed wherever nothing forbids it; how much depends on rows and learner.",
        },
        compared=compared.unconstrained_invert,
    ),
    Claim(
        "The steps of isotonic regression (PAVA) degrade ranking resolution",
        "section 2",
        "ranking-ties",
        (
            "isotonic regression's steps cost more than 0.1% of AUC (10,000",
            "isotonic regression's steps",
            "as scikit-learn predicts, isotonic regression costs",
        ),
        "Scores with a smooth distortion, 1,000 to 100,000 rows to fit: whether more than 0.1% of pairs tie, and "
        "whether that costs more than 0.1% of AUC.",
        {
            HELD: "All scores of a step tie.",
            PARTLY: "All scores of a step tie. The more rows, the finer the steps and the less it costs.",
        },
    ),
    Claim(
        "The layer keeps the resolution of the ranking, which steps lose",
        "section 2, as we read it",
        "ranking-ties",
        ("layer, ReLU by gradient, ties fewer than 0.1% of pairs (10,000", "layer, ReLU"),
        "The same scores, and the paper's layer, learned by gradient.",
        {
            HELD: "Its slopes are above zero where there are rows.",
            PARTLY: "It ties some pairs too where rows are few, since ReLU can leave a slope at exactly zero.",
        },
    ),
    Claim(
        "The head ranks above position as a feature, which suffers from the shift at serving",
        "section 2, as we read it",
        "debias-variants",
        (),
        "Position 0 is given at serving; judged by how the head with the paper's joint loss ranks against it. Position "
        "as a feature has its best of six settings, the joint loss the paper's weights.",
        {
            HELD: "A network may mix position with other features, and then one position serves for all.",
            PARTLY: "What the shift costs here is in some worlds less than what the joint loss leaves in.",
            NOT: "What the shift costs here is less than what the joint loss leaves in. The head with our detached "
            "anchor ranks above it (What we add).",
        },
        compared=compared.joint_above_position_as_feature,
        tells=compared.position_as_feature_closes,
        also={"debias-benchmark": ()},
    ),
    Claim(
        "Platt scaling is too restrictive for non-linear distortions",
        "sections 1.2 and 2",
        "per-task-isotonic",
        (
            "too restrictive: Platt, one per task and context has higher NE than isotonic, one per task and context",
            "too restrictive:",
            "the layer, exact has lower NE than Platt, one per task and context",
        ),
        "Twelve tasks with a curved distortion for every position and device: Platt scaling against isotonic "
        "regression and the exact layer, given the same contexts, by NE on held-out rows.",
        {
            HELD: "Two parameters per context do not fit these curves.",
            PARTLY: "It depends on what it is compared with (the parts in the table): a freer curve also follows the "
            "noise of the rows it is fitted to. How much of the differences is noise and how much shape is not tested.",
            NOT: "At equal context neither isotonic regression nor the exact layer has a lower NE.",
        },
    ),
    Claim(
        "A static propensity, Platt scaling or isotonic regression per task cannot fit the surface of task, position, "
        "platform and score",
        "section 5.6, appendix B",
        "per-task-isotonic",
        (*_ONE_PER_TASK, "a curve per combination has lower"),
        "Twelve tasks whose curves differ by position and device; learned curves against the true ones; the value of "
        "new rankings by weights per position where bias does not multiply all chances alike (trust).",
        {
            HELD: _AVERAGES,
            PARTLY: _AVERAGES,
        },
        also={
            "learned-curves": ("curves of every combination",),
            "off-policy": ("they err less than weights by position alone (trust",),
        },
    ),
    Claim(
        "A dropout rate of .15 is the best offline",
        "section 5.3",
        "offline-debiasing",
        ("click AUC at a dropout rate of .15", "like AUC at a dropout rate of .15"),
        "A feed with position and device bias, AUC on the log at every rate of the paper's grid, paired by seed with "
        "the best of the other rates.",
        {
            HELD: "We have one kind of log; whether it is so on others is not tested.",
            PARTLY: "We have one kind of log; why tasks differ is not tested.",
            NOT: "We have one kind of log. The more often position is hidden, the nearer the model is to one that does "
            "not know it, which is perhaps why; we have not tested why.",
        },
        tells=compared.rates,
        universal=True,
    ),
    Claim(
        "Position Dropout fails by the mismatch of training and serving",
        "section 5.6",
        "offline-debiasing",
        ("dropout has a higher click AUC", "dropout ranks", "dropout has a higher"),
        "The same feed. Hiding the position more often makes serving more like training: if that mismatch were the "
        "whole reason, it must help. The paper names a second one, that high rates degrade calibration by position.",
        {
            HELD: "It helps by AUC and by true relevance, as it must if the mismatch is the reason; that there is no "
            "other is not tested.",
            PARTLY: "It helps by some measures and not by others (the parts in the table), so the mismatch is not the "
            "whole reason. Which other one it is, is not tested.",
            NOT: "It does not help, so the mismatch is not the whole reason. Which other one it is, is not tested.",
        },
    ),
)
