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
        ("isotonic regression's steps cost AUC (10,000", "isotonic regression", "as scikit-learn", "layer"),
        "Scores with a smooth distortion, 1,000 to 100,000 rows to fit; ties and AUC of isotonic regression and of the "
        "layer.",
        {
            HELD: "All scores of a step tie. The more rows, the finer the steps and the less it costs. The paper's own "
            "layer ties some too where rows are few, since ReLU can leave a slope at exactly zero.",
            PARTLY: "All scores of a step tie. The more rows, the finer the steps and the less it costs. The paper's "
            "own layer can tie too, where ReLU leaves a slope at exactly zero.",
        },
    ),
    Claim(
        "Estimated propensities have high variance",
        "section 2",
        "off-policy",
        ("they err less than weights by position alone (position bias",),
        "Where position bias is what propensities assume: the value of new rankings by weights per position against "
        "our curves; and how much nDCG of rankers learned with propensities varies over seeds.",
        {
            HELD: "A propensity of a rare position divides by little.",
            PARTLY: "Weights by estimated propensities err more than our curves do (bias included), and rankings "
            "learned with them vary more over seeds than those of the dual head with our detached anchor; but less "
            "than those of a model that does nothing about bias, so their variance is no reason to leave bias in.",
        },
        compared=compared.propensities_vary,
        also={"debias-benchmark": ()},
    ),
    Claim(
        "Position as a feature suffers from the shift at serving, where the position is not known",
        "section 2",
        "debias-benchmark",
        ("above position as feature",),
        "Position 0 is given at serving; judged by how the head ranks against it, with our detached anchor and with "
        "the paper's joint loss.",
        {
            HELD: "A network may mix position with other features, and then one position serves for all.",
            PARTLY: "It ranks below the head with our detached anchor, but above the head with the paper's joint loss: "
            "what the shift costs here is less than what that loss leaves in.",
        },
        compared=compared.joint_above_position_as_feature,
        tells=compared.position_as_feature_closes,
        also={"debias-variants": ()},
    ),
    Claim(
        "A static propensity, Platt scaling or isotonic regression per task cannot fit the surface of task, position, "
        "platform and score",
        "section 5.6, appendix B",
        "per-task-isotonic",
        _ONE_PER_TASK,
        "Twelve tasks whose curves differ by position and device; learned curves against the true ones; the value of "
        "new rankings by weights per position.",
        {
            HELD: "One curve per task averages over positions and devices, and a weight per position is right only "
            "where bias multiplies all chances alike. But Platt scaling with a model per task and context does fit "
            "it, and better than the head (the row on one layer for every task and context). And the O/E above 1 at "
            "the top and below 1 at position 6, which the paper takes as proof against static propensities, is none: "
            "the feed of [observed-over-expected](studies/observed-over-expected.md) has exactly one propensity per "
            "position.",
        },
        also={
            "learned-curves": ("curves of every combination",),
            "off-policy": ("they err less than weights by position alone",),
        },
    ),
    Claim(
        "Platt scaling and a calibrator per task leave ranking flat",
        "section 5.3, which says so of live metrics",
        "per-task-isotonic",
        ("isotonic, one per task is flat", "Platt, one per task is flat"),
        "Offline only: twelve tasks of a feed, ranked by a value function over all of them.",
        {
            HELD: "A monotone map of a task's score changes no order within the task, only how tasks trade off; and "
            "the raw scores were nearly calibrated per task, so that there was little to change."
        },
    ),
    Claim(
        "A dropout rate of .15 is the best offline",
        "section 5.3",
        "offline-debiasing",
        (),
        "A feed with position and device bias, AUC on the log at every rate of the paper's grid.",
        {
            PARTLY: "On this log AUC rises with the rate up to the largest of the grid: the more often position is "
            "hidden, the nearer the model is to one that does not know it, and a log rewards whoever predicts its "
            "positions. By true relevance it is the other way round.",
            NOT: "On this log AUC rises with the rate up to the largest of the grid.",
        },
        compared=compared.best_rate,
        tells=compared.rates,
    ),
    Claim(
        "Position Dropout fails by the mismatch of training and serving",
        "section 5.6",
        "offline-debiasing",
        (),
        "The same feed. Hiding the position more often makes serving more like training: if that mismatch is the "
        "reason, it must help.",
        {
            PARTLY: "On the log it does help, but by true relevance it harms. What else decides it is not tested.",
            NOT: "It does not help. What else decides it is not tested.",
        },
        compared=compared.rarely_hidden,
    ),
)
