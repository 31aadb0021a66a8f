"""Claims of the paper that its tables, figures and sections 4 and 5 make, in their order.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research.claim import HELD, NOT, PARTLY, Claim

DIRECTION_ONLY = "held in direction"
_ELSEWHERE = (
    "With ample labels, too, the layer gains, so that over-fitting to sparse ones is not the whole reason: the same "
    "study shows that telling platforms apart is much of it. Only the number of labels is varied here; the constraint "
    "itself is in the row on regularising."
)
_FLAT = (
    "No lift of either is above 0 beyond chance, and no single test shows one; but six seeds cannot tell that from a "
    "small lift. A monotone map of a task's score changes no order within the task, only how tasks trade off."
)
TABLES = (
    Claim(
        "Calibrating sparse downstream tasks with the layer raises the AUC of Share and Comment, and keeps that of "
        "Like",
        "table 1",
        "downstream",
        ("Share AUC", "Comment AUC", "Like AUC"),
        "A multi-task model over-fitted to sparse labels, retrained daily, blind to the platform.",
        {
            HELD: "A monotone curve changes no order within a platform: all that it gains is between platforms.",
            PARTLY: "A monotone curve changes no order within a platform: all that it gains is between platforms. In "
            "our world Like gains as much as the others. A model that sees the platform leaves little to gain.",
            NOT: "A monotone curve changes no order within a platform; what it gains between them was not enough.",
        },
    ),
    Claim(
        "These gains come from monotonicity, which mitigates over-fitting where labels are sparse",
        "section 4.3",
        "downstream",
        ("Share and Comment gain more AUC by the layer where labels are sparse",),
        "The same model with sparse and with ample labels: if over-fitting is the reason, ample labels must leave less "
        "to gain.",
        {HELD: _ELSEWHERE, DIRECTION_ONLY: _ELSEWHERE, NOT: _ELSEWHERE},
    ),
    Claim(
        "The daily mean score varies less and is nearer to the label mean",
        "figure 3",
        "downstream",
        ("the daily mean score",),
        "The same model and days.",
        {
            HELD: "The curves are fitted to two weeks of randomised rows, which average out what a day's model makes "
            "of its own day, and know nothing of the weight of positives: that they are nearer to the label mean is "
            "true by construction, that they swing less is not.",
            PARTLY: "That it is nearer to the label mean is true by construction; that it swings less is not.",
        },
    ),
    Claim(
        "Scores of the multi-task model vary most in the tails of their distribution",
        "section 4.1",
        "downstream",
        ("scores of the baseline vary more over days in the",),
        "The same model and days: the variance over days of the 5% and the 95% quantile of a day's scores, against "
        "that of the median.",
        {
            HELD: "A model that is over-fitted to few positives puts some rows far out, and other rows every day.",
            PARTLY: "It is so at the top of the distribution and not at the bottom; why is not tested. Calibrated "
            "scores vary more at the bottom too.",
            NOT: "The whole distribution moves with the day's model, not its tails alone.",
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
        "Notifications sent by predicted value or within a budget, from the model of table 1. Sessions stand for "
        "engagement, those after a share or comment for quality, and value for the health of the ecosystem.",
        {
            HELD: "Calibration changes what is sent: the order between tasks and platforms, and how much.",
            PARTLY: "An inflated control sends far more, so that calibration cannot but lose sessions where it sends "
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
        "The NE of the inference head rises while its ranking is nearer to relevance",
        "section 5.6",
        "offline-debiasing",
        ("inference head ranks click", "inference head ranks like", "inference head's click NE rises"),
        "The same feed, judged by true relevance.",
        {
            HELD: "Both are so. That the one is the reason of the other, as the paper says, is not tested: part of the "
            "rise can be miscalibration, which the study of loss weights finds at the same nDCG.",
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
            "Position Dropout 0.15 shows no lift of clicks",
            "Position Dropout 0.15 has",
            "Position Dropout 0.05 shows",
            "Position Dropout 0.05",
            "Position Dropout",
        ),
        "The same users, at every rate of the paper's grid: tests one by one, as the paper has them, which see "
        "little, and the lift over all seeds together.",
        {
            HELD: "At no rate is the lift beyond what a test of this size can see.",
            PARTLY: "Over all seeds together some rates do lift, the lowest all metrics, and single tests see some of "
            "it. A part that held says that no lift was seen, which is less than that there is none: the study gives "
            "the power of its tests, and what the control shows against itself.",
            NOT: "Lifts are seen at every rate.",
        },
    ),
    Claim(
        "Platt scaling and isotonic regression of each task are negative to flat on live metrics",
        "section 5.3",
        "ab-test",
        ("isotonic per task shows no lift of clicks", "isotonic per task", "Platt per task"),
        "The same users; three tasks instead of twelve, calibrated on a log that the model has not seen.",
        {
            HELD: _FLAT,
            DIRECTION_ONLY: _FLAT,
            PARTLY: "A monotone map of a task's score changes how tasks trade off in the value that ranks, which can "
            "lift one metric and not another.",
            NOT: "A monotone map of a task's score changes how tasks trade off in the value that ranks.",
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
            PARTLY: "Its O/E does not fall in order of position, here or in the paper's own table, which is below 1 at "
            "position 1 and above 1 at position 2. So how much users look at a position is not all that decides it: "
            "the ranker also chooses what is shown where.",
        },
    ),
    Claim(
        "The debiased model is nearer to O/E of 1 at every position, most of all at position 6",
        "table 5",
        "observed-over-expected",
        (
            "the served, debiased model is nearer to 1 at position 6",
            "the served, debiased",
            "under strong bias the served",
            "it gains most",
        ),
        "The same feed, and one with stronger bias.",
        {
            PARTLY: "Under mild bias differences are small. The isotonic head, which is told the position, is judged "
            "in the same table.",
            NOT: "Under mild bias differences are small either way; under strong bias the served model is further from "
            "1. The isotonic head, which is told the position, is judged in the same table.",
        },
    ),
    Claim(
        "The inference head under-predicts at top positions and over-predicts at lower ones, as it should",
        "section 5.6",
        "observed-over-expected",
        ("the debiased model under-predicts", "the debiased model over-predicts"),
        "The same feed, with mild bias: position 0, and positions 3, 6 and 10.",
        {
            HELD: "It is not told the position. But so does the baseline.",
            PARTLY: "It is not told the position, and neither is the baseline, whose O/E is much the same: the ranker "
            "also decides what is shown where.",
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
        "Skip is less sensitive to position than Click",
        "caption of figure 5",
        "learned-curves",
        ("Skip depends less on position",),
        "The same feed, in which what is not seen is skipped.",
        {NOT: "It follows from what counts as a skip: here every item that was not seen does."},
    ),
    Claim(
        "A weight of .7 to .8 on the isotonic head debiases best",
        "section 5.2",
        "loss-weights",
        ("ranking at beta .7-.8 is better than at beta 0.9", "ranking at beta"),
        "A map of beta, anchor and overlap of the logging policy, judged by ranking. The paper asks for calibration at "
        "the same time, which has rows of its own.",
        {
            HELD: "More weight on the inference head pulls relevance to the clicks, less leaves it without a level.",
            PARTLY: "The inference head of the joint loss pulls the shared layers to the clicks: its weight trades "
            "ranking for calibration all the way from 0 to 1, so that .7 to .8 is a compromise and not the best of "
            "either. The detached anchor does not make that trade.",
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
        "Twelve tasks of one model, by position and device: the exact layer, and the head that is learned inside the "
        "model with a curve for every combination, from the rows that the network and the calibrators see together.",
        {
            HELD: "The exact layer shares what contexts have in common; the head knows the context while its network "
            "learns, and needs no rows held out. Which of these matters is not tested.",
            PARTLY: "The exact layer shares what contexts have in common; the head knows the context while its network "
            "learns. The table says where calibrators fitted to each context afterwards are nearer; why is not tested.",
            NOT: "Calibrators fitted to each context afterwards are nearer; why is not tested.",
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
            NOT: "Not beside rankers of these sizes. The paper does not give the size of its own; the study says "
            "beside which one its listing would cost 5%. Kept as a table, the head costs a small part of that.",
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
        (
            "bias grows: isotonic ranks better than IPS",
            *(
                f"bias {moves}: {says}"
                for moves in ("grows", "fades")
                for says in ("isotonic ranks", "IPS ranks worse", "isotonic predicts positions")
            ),
        ),
        "A year of daily updates during which position bias grows or fades.",
        {
            HELD: "Curves learn from every day's log like everything else.",
            PARTLY: "With the joint loss it ranks below propensities, as it does below the detached anchor where "
            "nothing moves; with the detached anchor, in the second table, it does not. "
            "Propensities that are never estimated again cost much where bias fades, and nothing clear where it grows.",
        },
    ),
)
