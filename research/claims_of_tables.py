"""Claims of the paper that its tables, figures and sections 3 to 5 make, in their order.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research.claim import HELD, NOT, PARTLY, Claim

TABLES = (
    Claim(
        "The layer can represent any monotone curve, and finds the best monotone fit of one that is not",
        "section 3.4, figure 2",
        "expressiveness",
        ("square that falls", "square is"),
        "Two targets, as in the paper.",
        {HELD: "A piecewise-linear curve with enough buckets does; nothing is left to chance here."},
    ),
    Claim(
        "The output never falls as the input rises",
        "section 3.3",
        "expressiveness",
        ("no fitted curve falls",),
        "The same two targets, one of which falls.",
        {HELD: "Slopes are never negative, whatever the weights; the tests try arbitrary ones."},
    ),
    Claim(
        "Without the constraint the layer fits any continuous shape",
        "section 3.3",
        "expressiveness",
        ("without the constraint",),
        "The target that falls.",
        {HELD: "Slopes of either sign follow it up and down."},
    ),
    Claim(
        "Beyond logits of -17 and 8, probability and gradient change by less than 1e-4 per unit",
        "section 3.2, footnote",
        "stated-numbers",
        ("above 8", "below -17"),
        "Arithmetic.",
        {
            PARTLY: "True at the lower end, not at the upper: the footnote itself gives a derivative of 3.35e-4 at 8. "
            "Clipping there still costs no probability more than that.",
        },
    ),
    Claim(
        "The layer has about 125 buckets",
        "section 5.7",
        "stated-numbers",
        ("buckets of width 0.2", "buckets of width"),
        "Arithmetic, with the formula of section 3.2.",
        {
            PARTLY: "That is so for the width of .2 in the listing of appendix C; the default that section 3.2 states, "
            ".05, makes four times as many.",
        },
    ),
    Claim(
        "The constraint regularises: it prevents local over-fitting where data are sparse",
        "section 3.5",
        "lattice",
        (
            "lower log loss than an unconstrained lattice (simulated, 500",
            "lower log loss than an unconstrained lattice",
        ),
        "The same lattice with and without it, on 500 to 20,000 rows, simulated and real.",
        {
            HELD: "The fewer the rows, the more of what a free lattice follows is noise.",
            PARTLY: "Where rows are few it keeps noise out; with many there is little noise left to keep out.",
            NOT: "With settings tuned on held-out rows, a free lattice can choose few vertices, which regularises too.",
        },
    ),
    Claim(
        "Learning the layer on a separate holdout makes it more robust under shift than joint training",
        "section 3.2",
        "separate-layer",
        ("over-fitted, rates move, new rows", "over-fitted", "well fitted"),
        "A network that over-fits and one that does not; rates or features move, held-out rows are of before or after.",
        {
            PARTLY: "It is where the meaning of a score moves and the held-out rows are from after the move. Where "
            "features move, joint training is better: it has more rows, and its network learns what each device does.",
            NOT: "Joint training has more rows for everything it learns.",
        },
    ),
    Claim(
        "Calibrating sparse downstream tasks with the layer raises the AUC of Share and Comment, and keeps that of "
        "Like",
        "table 1",
        "downstream",
        ("Share AUC", "Comment AUC", "Like AUC"),
        "A multi-task model over-fitted to sparse labels, retrained daily, blind to the platform.",
        {
            HELD: "A monotone curve changes no order within a platform: all that it can gain is in telling "
            "platforms apart, which this model cannot. The setting in which the model sees the platform is "
            "in the same table.",
            PARTLY: "A monotone curve changes no order within a platform, so it can only gain by telling platforms "
            "apart; with few positives that is not beyond chance for every task.",
            NOT: "A monotone curve changes no order within a platform; telling platforms apart was not enough.",
        },
    ),
    Claim(
        "The daily mean score varies less and is nearer to the label mean",
        "figure 3",
        "downstream",
        ("the daily mean score",),
        "The same model and days.",
        {
            HELD: "The curves are fitted to two weeks of randomised rows, which average out what a day's model makes "
            "of its own day, and know nothing of the weight of positives.",
            PARTLY: "That it is nearer to the label mean is true by construction; that it swings less is not.",
        },
    ),
    Claim(
        "It is the layer that steadies and corrects the scores",
        "section 4.2, as we read it",
        "downstream",
        ("the daily mean varies less than", "the daily mean is", "Share and Comment rank better", "the layer's daily"),
        "The same, against baselines that are given the same randomised rows.",
        {
            HELD: "A baseline that is given the same rows, even with its known inflation taken back, swings more.",
            PARTLY: "Rows from randomised sessions, and a correction that is known beforehand, steady and correct "
            "scores by themselves; the same table has baselines that are given them.",
            NOT: "Rows from randomised sessions steady scores by themselves: the baselines here are given them too.",
        },
    ),
    Claim(
        "Calibrated downstream scores lift engagement, quality and the health of the ecosystem on live traffic",
        "table 2",
        "notifications",
        ("for the same budget, the layer lifts", "sending what is worth it, the layer lifts"),
        "Notifications sent by predicted value or within a budget, from the model of table 1.",
        {
            HELD: "Calibration changes what is sent: the order between tasks and platforms, and how much.",
            PARTLY: "An inflated control sends nearly everything, so calibration must lose sessions where it sends "
            "what is worth it, and gains value there; within a budget it can only change the order between tasks and "
            "platforms.",
            NOT: "What is sent hardly changes: within a task and a platform the order is the same.",
        },
    ),
    Claim(
        "The isotonic head predicts the log better: AUC rises, NE falls",
        "table 3",
        "offline-debiasing",
        ("isotonic head's click", "isotonic head's like"),
        "A feed with position and device bias.",
        {HELD: "It is told the position, which explains part of every label."},
    ),
    Claim(
        "The inference head keeps AUC on the log at a slight cost in NE",
        "table 3",
        "offline-debiasing",
        (
            "inference head's click AUC",
            "inference head's like AUC",
            "inference head's click NE",
            "inference head's like NE",
        ),
        "The same feed.",
        {
            PARTLY: "A log rewards whoever predicts its positions, and leaving position out can cost AUC there. The "
            "ranking by true relevance, which the paper could not see, is judged apart.",
        },
    ),
    Claim(
        "Position Dropout is no substitute: it loses AUC on Like, gains on Click, and NE rises",
        "table 3",
        "offline-debiasing",
        ("Position Dropout at .15",),
        "The same feed, at the paper's rate.",
        {
            HELD: "A dropped position is a guess over all positions.",
            PARTLY: "Signs of changes this small depend on the log.",
            NOT: "Signs of changes this small depend on the log.",
        },
    ),
    Claim(
        "The NE of the inference head rises because it is nearer to relevance, not because it is worse",
        "section 5.6",
        "offline-debiasing",
        ("inference head ranks click", "inference head ranks like", "inference head's click NE rises"),
        "The same feed, judged by true relevance.",
        {
            HELD: "The head explains position by curves, so that the backbone need not; NE on the log is the price.",
            PARTLY: "Being nearer to relevance and predicting the log worse are two things: neither need come with "
            "the other.",
        },
    ),
    Claim(
        "The inference head lifts live metrics",
        "table 4",
        "ab-test",
        ("inference head lifts clicks", "inference head lifts"),
        "Simulated users who answer every ranking; a two-sided t-test, and dropout at its best rate.",
        {
            HELD: "The control has learned position as relevance. The size of a lift depends on how much of it the "
            "control has learned.",
            PARTLY: "Lifting over the control is one question, lifting more than dropout at its best rate, chosen "
            "after the fact, another.",
        },
    ),
    Claim(
        "Position Dropout lifts no live metric at any rate",
        "table 4",
        "ab-test",
        (
            "Position Dropout 0.15 does not lift clicks",
            "Position Dropout 0.15 has",
            "Position Dropout 0.05 does",
            "Position Dropout 0.05",
            "Position Dropout",
        ),
        "The same users, at every rate of the paper's grid: tests one by one, as the paper has them, which see "
        "little, and the lift over all seeds together.",
        {
            HELD: "At no rate is the lift beyond what a test of this size can see.",
            PARTLY: "Most single tests show no lift, since none of this size could see one so small; over all seeds "
            "together low rates do lift. Position as a feature takes bias with it, and masking it when serving "
            "does little harm in a world whose users differ in little else.",
            NOT: "Position as a feature takes much of the bias with it, and masking it when serving does little harm "
            "in a world whose users differ in little else.",
        },
    ),
    Claim(
        "The baseline under-predicts at the top and over-predicts below",
        "section 5.6, table 5",
        "observed-over-expected",
        ("baseline's O/E is below 1 at position 6", "baseline's O/E is above 1 at position 0", "baseline's O/E"),
        "A feed with ad slots at positions 4 and 5 that are governed by an auction and left out.",
        {
            HELD: "A model without position predicts the mean over positions.",
            PARTLY: "A model without position predicts the mean over positions, so it is too low where users look more "
            "and too high where they look less; where it changes over depends on the list. The paper's own table is "
            "not in order of position either: below 1 at position 1, above 1 at position 2.",
        },
    ),
    Claim(
        "The debiased model is nearer to O/E of 1 at every position, most of all at position 6",
        "table 5",
        "observed-over-expected",
        ("the served, debiased model is nearer to 1 at position 6", "the served, debiased", "it gains most"),
        "The same feed.",
        {
            PARTLY: "A model that is not told the position cannot have O/E of 1 at each: what gains at one position "
            "is lost at another. The isotonic head, which is told, is judged in the same table.",
            NOT: "A model that is not told the position cannot have O/E of 1 at each. The isotonic head, which is "
            "told, is judged in the same table.",
        },
    ),
    Claim(
        "Click falls with depth, Skip rises, and platform and position interact",
        "figures 5 and 6",
        "learned-curves",
        ("Click falls", "Skip rises", "the gap from", "curves of every", "learned curves take"),
        "A feed whose true curves are known.",
        {HELD: "Curves of every combination come nearer to the true ones than sums of a curve per feature."},
    ),
    Claim(
        "A weight of .7 to .8 on the isotonic head debiases best",
        "section 5.2",
        "loss-weights",
        ("ranking at beta .7-.8 is better than at beta 0.9", "ranking at beta", "the detached anchor", "and is calib"),
        "A map of beta, anchor and overlap of the logging policy.",
        {
            HELD: "More weight on the inference head pulls relevance to the clicks, less leaves it without a level.",
            PARTLY: "The inference head of the joint loss pulls the shared layers to the clicks: its weight trades "
            "ranking for calibration. The detached anchor does not make that trade.",
            NOT: "The inference head of the joint loss pulls the shared layers to the clicks, so that ranking "
            "asks for less of it.",
        },
    ),
    Claim(
        "Some weight on the inference head is needed to keep served scores calibrated and steady",
        "section 5.2",
        "loss-weights",
        ("without alpha",),
        "The same map, with the joint anchor.",
        {
            HELD: "Nothing else fixes the level of the inference head.",
            PARTLY: "Nothing else fixes the level of the inference head; steadiness is another matter, since the "
            "inference loss also follows what is particular to each log.",
        },
    ),
    Claim(
        "One layer calibrates every task and context at least as well as a calibrator for each",
        "sections 1.4 and 5.3",
        "per-task-isotonic",
        ("the layer, isotonic head has lower NE than isotonic, one per task and context", "the layer,"),
        "The same tasks, by position and device: the exact layer, and the head that is learned inside the model.",
        {
            HELD: "Both forms of the layer share what positions and tasks have in common.",
            PARTLY: "The exact layer shares what contexts have in common. The head that is learned by gradient sums "
            "the effects of position and device and serves the ranking too, so that calibrators fitted to "
            "each context afterwards can be nearer.",
        },
    ),
    Claim(
        "Keeping the head at serving costs about 5% of CPU",
        "section 5.7",
        "overhead",
        ("the head as the paper lists it costs about 5% of CPU (medium", "the head as the paper lists it"),
        "Rankers of three sizes on one core.",
        {
            PARTLY: "It depends on the ranker: the listing builds a vector of all buckets per row, which a large "
            "network hides and a small one does not. Kept as a table, the head costs a small part of that.",
            NOT: "The listing builds a vector of all buckets per row, which none of these rankers hides. Kept as a "
            "table, the head costs a small part of that.",
        },
    ),
    Claim(
        "Distilled into a shallow network it loses less than 0.1% of AUC",
        "section 5.7",
        "overhead",
        ("distilling loses less than 0.1% AUC on average", "distilling"),
        "The same rankers.",
        {
            HELD: "A shallow network has room for a curve per context.",
        },
    ),
    Claim(
        "The layer adapts as data arrive; inverse propensities need estimating again",
        "conclusion",
        "incremental",
        ("bias grows: isotonic ranks better than IPS", "bias grows", "bias fades"),
        "A year of daily updates during which position bias grows or fades.",
        {
            HELD: "Curves learn from every day's log like everything else.",
            PARTLY: "With the joint loss the inference head keeps learning from clicks whose bias moves. The "
            "detached anchor, our remedy, is judged in the same table.",
        },
    ),
)
