"""What this project adds to the paper and claims itself: the detached anchor, the diagnosis, the exact calibrator.

These rows have a table of their own on the page of claims, so that nothing of ours is counted for the paper or against
it. Explanations are keyed by the outcome they are written for; what depends on the numbers is told from them.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

_METHODS = (
    "position as feature",
    "PAL",
    "additive tower",
    "trust affine",
    "DLA",
    "IPS",
    "regression EM",
    "pairwise debiasing",
    "cascade model",
    "DCM",
    "DBN",
    "UBM",
    "gradient reversal",
)
OURS = (
    Claim(
        "With a detached anchor the head takes position out of relevance, where dropout does not",
        "the default of `DualHead`",
        "debias-benchmark",
        ("the dual head closes", "above position dropout", "the dual head ranks no worse than naive"),
        "Worlds whose true relevance is known, and documents graded by people. It has its defaults; dropout has its "
        "best setting in the simulated worlds and the paper's rate on documents.",
        {
            HELD: "The loss of the inference head cannot reach the shared layers.",
            PARTLY: "It does so wherever position can be told from relevance.",
        },
        also={
            "mslr-clicks": ("the detached anchor ranks better",),
            "debias-tuning": (),
        },
        tells=compared.graded_and_informed,
    ),
    Claim(
        "The paper's joint loss ranks as well as a detached anchor, and is calibrated as well",
        "what would make it needless",
        "debias-variants",
        ("a joint loss ranks as well as",),
        "The same worlds, and the map of loss weights.",
        {
            NOT: "The anchor's loss trains one monotone curve over relevance that is held fixed, so it cannot change "
            "the ranking, and need not be traded for it.",
            PARTLY: "Something is gained in some worlds: its loss trains one monotone curve over relevance that is "
            "held fixed, so it cannot change the ranking.",
        },
        also={"loss-weights": ("the detached anchor", "and is calib")},
    ),
    Claim(
        "With a detached anchor no propensities are needed",
        "the same",
        "debias-benchmark",
        ("above IPS, harvested", "above IPS, EM"),
        "The same worlds, daily updates for a year, and the value of new rankings.",
        {
            HELD: "Curves and relevance are learned together from the log alone.",
            PARTLY: "Curves and relevance are learned together from the log alone; where a logger ranks by relevance "
            "that the features lack, they cannot be told apart.",
        },
        also={
            "incremental": ("bias grows: with the detached anchor", "bias fades: with the detached anchor"),
            "off-policy": ("learned curves value the new ranking", "they err less than weights by position"),
        },
    ),
    Claim(
        "What it serves is calibrated like a model that is not debiased",
        "`refit_served`",
        "debias-benchmark",
        ("what is served is calibrated like naive",),
        "The same worlds: ECE on the traffic that was logged, as a ratio to that of a model that is not debiased; at "
        "most 1.2 is asked.",
        {
            HELD: "The anchor fits the level of what is served to the log without touching the ranking.",
            PARTLY: "The anchor fits the level of what is served to the log without touching the ranking. What "
            "position explained is left out, and seeds differ by more than the ratio asks.",
        },
    ),
    Claim(
        "One layer does what methods made for debiasing do",
        "and the paper's abstract, which claims no state of the art",
        "debias-benchmark",
        ("it is at most", *(f"above {method}" for method in _METHODS)),
        "The same worlds, with the detached anchor, against the best of all other methods and each of them.",
        {
            HELD: "One curve per position can be any of the forms that these methods assume.",
            PARTLY: "One curve per position can be any of the forms that these methods assume. Where one of them "
            "assumes the right form, it can be level with the layer or a little above it.",
        },
    ),
    Claim(
        "The diagnosis of a log advises a weight that costs little",
        "`isolayer diagnose`",
        "advised-alpha",
        ("the advice costs",),
        "Loggers that know relevance which the features lack, in worlds that the advice was not set on.",
        {
            HELD: "The diagnosis finds loggers that know more than the features.",
            PARTLY: "How much relevance may be taken for position depends on what the logger knew, which no fixed "
            "weight can tell; and users who stop reading hide an informed logger from the diagnosis.",
        },
        also={"debias-benchmark": ("the advised alpha costs",)},
    ),
    Claim(
        "The control against itself shows no lift",
        "an A/A test of the simulated users",
        "ab-test",
        ("the control against itself",),
        "The users of the A/B test, one more arm with the same ranker.",
        {
            HELD: "Both arms rank alike.",
            PARTLY: "A rise is seen by chance one time in forty, and the four metrics of a seed err together; over "
            "all seeds the arms are alike.",
        },
    ),
    Claim(
        "Where the truth falls, the constraint costs log loss",
        "when to do without it",
        "regularisation",
        (
            "same training: layer, ReLU, costs",
            "each tuned: layer, ReLU, costs",
            "same training: layer, softplus, costs",
            "each tuned: layer, softplus, costs",
        ),
        "10,000 rows of a truth that falls over more than a third of the scores.",
        {HELD: "No monotone curve follows a fall."},
    ),
    Claim(
        "Gradient steps every day predict the log better than the exact calibrator, fitted every week",
        "the other learner",
        "incremental",
        ("bias grows: isotonic predicts the log", "bias fades: isotonic predicts the log"),
        "A year of daily updates during which position bias grows or fades; the head with the paper's joint loss.",
        {
            PARTLY: "The exact calibrator forgets by a half-life and needs no rate.",
            NOT: "The exact calibrator forgets by a half-life and needs no rate; it sits on a model without position.",
        },
    ),
)
