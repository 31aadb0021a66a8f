"""Claims of the paper that its tables, figures and sections 4 and 5 make, in their order.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research import claims_compared as compared
from research.claim import HELD, NOT, PARTLY, Claim

DIRECTION_ONLY = "held in direction"
_FLAT = (
    "What lift there is, is less than a quarter of the inference head's. A monotone map of a task's score changes no "
    "order within the task, only how tasks trade off."
)
_GAIN = "AUC of Share and Comment: gain by the layer"
_DAILY = (
    "variance of the daily mean score",
    "variance of the daily mean score over its squared level",
    "distance of the daily mean score to the label mean",
)
_STEADY = (
    "a baseline with the same rows",
    "a corrected baseline with the same rows",
    "a corrected baseline",
    "Platt scaling",
)
_RULES = {
    "budget": "for the same budget",
    "worth": "sending where the expected value exceeds the cost",
}
_LIFTED = {  # where all arms send the same number, value follows sessions and is not judged again
    "budget": ("sessions", "sessions after a share or comment"),
    "worth": ("sessions", "sessions after a share or comment", "value"),
}
TABLES = (
    Claim(
        "Calibrating sparse downstream tasks with the layer raises the AUC of Share and Comment, and keeps that of "
        "Like",
        "table 1",
        "downstream",
        ("Share AUC", "Comment AUC", "AUC of Like"),
        "A multi-task model over-fitted to sparse labels, retrained daily, blind to the platform.",
        {
            HELD: "A monotone curve reverses no order within phone or desktop: what it gains is between the two, or by "
            "ties.",
            PARTLY: "A monotone curve reverses no order within phone or desktop: what it gains is between the two, or "
            "by ties. In our world Like gains, too; why Like should not is not clear to us. A model that sees the "
            "platform leaves less to gain (the page of the study).",
            NOT: "A monotone curve reverses no order within phone or desktop; what it gains between the two was not "
            "enough.",
        },
    ),
    Claim(
        "These gains come from monotonicity, which mitigates over-fitting where labels are sparse",
        "section 4.3",
        "downstream",
        (
            f"{_GAIN} over the same layer without the constraint",
            f"{_GAIN} where labels are sparse minus that where they are ample",
        ),
        "The same model, and the same layer whose curves may fall: if monotonicity is the reason, these must gain "
        "less. And the same model with ample labels: if over-fitting is the reason, they must leave less to gain.",
        {
            HELD: "Without the constraint the same layer gains less, and so does the layer with ample labels, where "
            "the model also learns from three days instead of one and passes over them less often. That it need not be "
            "this layer is another question: Platt scaling, whose lines cannot bend, is in the row on what steadies "
            "the scores.",
            PARTLY: "The two tests do not agree (the parts in the table). With ample labels the model also learns from "
            "three days instead of one and passes over them less often.",
            NOT: "Neither test shows it. With ample labels the model also learns from three days instead of one and "
            "passes over them less often.",
        },
    ),
    Claim(
        "The daily mean score varies less and is nearer to the label mean",
        "figure 3",
        "downstream",
        tuple(f"{quantity}: change from the baseline to the layer" for quantity in _DAILY),
        "The same model and days.",
        {
            HELD: "That it is nearer to the label mean is true by construction, since the curves know nothing of the "
            "weight of positives, and a lower score varies less. But it also varies less relative to its level.",
            PARTLY: "That it is nearer to the label mean is true by construction, since the curves know nothing of "
            "the weight of positives, and a lower score varies less by that alone.",
        },
    ),
    Claim(
        "Scores of the multi-task model vary most in the tails of their distribution",
        "section 4.1",
        "downstream",
        ("scores of the baseline vary more over days in the",),
        "The same model and days: the variance over days of the 5% and the 95% quantile of a day's scores, against "
        "that of the median, of probabilities and of logits.",
        {
            HELD: "Perhaps a model that is over-fitted to few positives puts some rows far out, and other rows every "
            "day; we have not tested why.",
            PARTLY: "Probabilities near 0 have little room to vary, so that variances are compared on the scale of "
            "logits as well. Why tails differ is not tested.",
            NOT: "The whole distribution moves with the day's model, not its tails alone.",
        },
    ),
    Claim(
        "It is the layer that steadies and corrects the scores",
        "section 4.2, as we read it",
        "downstream",
        (
            *(f"{quantity}: change from {rival} to the layer" for rival in _STEADY for quantity in _DAILY),
            f"{_GAIN} over Platt scaling",
            f"{_GAIN} over a baseline with the same rows",
        ),
        "The same, against a baseline whose known inflation is taken back, baselines that are given the same "
        "randomised rows, and Platt scaling.",
        {
            HELD: "A baseline that is given the same rows, even with its known inflation taken back, swings more, and "
            "so does Platt scaling.",
            PARTLY: "Taking back the known inflation alone does not steady the scores as the layer does. But a "
            "baseline that is corrected and given the same randomised rows, and Platt scaling fitted to these rows, do "
            "about as well or better by some of these measures (the parts in the table). So what helps is perhaps the "
            "rows, and a calibration of few parameters by them, and not this layer by itself.",
            NOT: "Rows from randomised sessions steady scores by themselves: the baselines here are given them too.",
        },
    ),
    Claim(
        "Calibrated downstream scores lift engagement, quality and the health of the ecosystem on live traffic",
        "table 2",
        "notifications",
        tuple(f"{_RULES[rule]}, the layer lifts {metric}" for rule in _RULES for metric in _LIFTED[rule]),
        "Notifications sent by predicted value or within a budget, from the model of table 1. Sessions stand for "
        "engagement, those after a share or comment for quality, and value (sessions less the cost of notifications) "
        "for the health of the ecosystem; within a budget value and sessions are one result.",
        {
            HELD: "Calibration changes what is sent: the order between tasks and platforms, and how much.",
            PARTLY: "The control over-predicts and so sends far more where the expected value decides: it collects "
            "more sessions in all, and pays for them. Within a budget calibration can only change the order between "
            "tasks and platforms.",
            NOT: "What is sent hardly changes: within a task and a platform the order is the same.",
        },
    ),
    Claim(
        "It is this layer that earns these lifts",
        "section 4.3, as we read it",
        "notifications",
        (
            f"{_RULES['budget']}, the layer lifts sessions by more than",
            f"{_RULES['worth']}, the layer lifts value by more than",
        ),
        "The same notifications, decided by rivals: a baseline that has the same randomised rows and is corrected for "
        "the weight of positives, Platt scaling fitted to these rows, and the known correction alone.",
        {
            HELD: "It earns more than each of them.",
            PARTLY: "It earns more than some of them and not than others (the parts in the table); why is not tested.",
            NOT: "Others that are given the same rows, or whose inflation is taken back, earn as much; why is not "
            "tested.",
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
        "The same feed, at the paper's rate; device is hidden with the position.",
        {
            HELD: "The signs are the paper's; why they are is not tested.",
            PARTLY: "The changes are small, and we have one kind of log; whether signs are others on others is not "
            "tested.",
            NOT: "The changes are small, and we have one kind of log; whether signs are others on others is not "
            "tested.",
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
        "Simulated users who answer every ranking; a two-sided t-test, and dropout at its best rate. Models learn from "
        "the log of a logger that ranks 70% by a spurious feature, so that there is much to take out.",
        {
            HELD: "The control has learned position as relevance; perhaps the size of a lift depends on how much of "
            "it, which we have not tested.",
            PARTLY: "Lifting over the control is one question, lifting more than dropout at its best rate, chosen "
            "after the fact, another.",
        },
    ),
    Claim(
        "Position Dropout lifts no live metric at any rate",
        "table 4",
        "ab-test",
        (
            "Position Dropout 0.15: lift of clicks minus",
            "Position Dropout",
        ),
        "The same users, at every rate of the paper's grid, over all seeds together. A lift below a quarter of the "
        "inference head's counts as none.",
        {
            HELD: "Every lift is small beside that of the inference head, which is not to say that there is none.",
            PARTLY: "It depends on the rate and on the metric (the parts in the table); why is not tested. The study's "
            "page says how many single tests, as the paper has them, would see a lift.",
            NOT: "It depends on the rate. The study's page says how many single tests, as the paper has them, would "
            "see a lift.",
        },
        tells=compared.dropout_lifts,
        universal=True,
    ),
    Claim(
        "Platt scaling and isotonic regression of each task are negative to flat on live metrics",
        "section 5.3",
        "ab-test",
        ("isotonic per task: lift of clicks", "isotonic per task", "Platt per task"),
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
        "A feed in which positions 4 and 5 hold advertisements and are not measured. Candidates learn from traffic "
        "ranked by a production model, and then serve traffic of their own.",
        {
            HELD: "It is so at every position; a model without position cannot follow how much users look at each. "
            "That this is the reason is not tested.",
            PARTLY: "It is not so at every position; the paper's own table does not fall in order of position either, "
            "being below 1 at position 1 and above 1 at position 2. Perhaps the ranker, which chooses what is shown "
            "where, decides it too; we have not tested why.",
            NOT: "It is so at no position; we have not tested why.",
        },
    ),
    Claim(
        "The debiased model is nearer to O/E of 1 at every position, most of all at position 6",
        "table 5",
        "observed-over-expected",
        (
            "abs(O/E - 1) at position 6",
            "abs(O/E - 1) at position",
            "abs(O/E - 1) over positions 0-3 and 6, strong bias",
            "the same difference at position 6 minus",
        ),
        "The same feed, and one with stronger bias.",
        {
            HELD: "It is nearer at every position that the paper's table has; we have not tested why.",
            PARTLY: "Where it is nearer and where not is in the table; we have not tested why. The isotonic head, "
            "which is told the position, is judged there too.",
            NOT: "At no position is it nearer beyond chance; we have not tested why. The isotonic head, which is told "
            "the position, is judged in the same table.",
        },
        universal=True,
    ),
    Claim(
        "The inference head under-predicts at top positions and over-predicts at lower ones, as it should",
        "section 5.6",
        "observed-over-expected",
        ("inference head's O/E is above 1 at position 0", "inference head's O/E"),
        "The same feed, with mild bias: position 0, and positions 3, 6 and 10.",
        {
            HELD: "It is not told the position, and neither is the baseline, whose O/E is in the same table.",
            PARTLY: "It is not told the position, and neither is the baseline, whose O/E is in the same table. Perhaps "
            "the ranker, which decides what is shown where, counts too; we have not tested why.",
            NOT: "It is not told the position, and neither is the baseline, whose O/E is in the same table; we have "
            "not tested why.",
        },
    ),
    Claim(
        "Click falls with depth, Skip rises, and platform and position interact",
        "figures 5 and 6",
        "learned-curves",
        ("Click falls", "Skip rises", "the gap from", "curves of every", "learned curves take"),
        "A feed whose true curves are known. It is drawn so that Click falls, Skip rises and devices, which stand for "
        "platforms, differ: what is tested is whether the head learns it.",
        {
            HELD: "The head learns what the world was drawn with, and curves of every combination come nearer to it "
            "than sums of a curve per feature.",
            PARTLY: "The head learns only part of what the world was drawn with (the parts in the table); why is not "
            "tested.",
            NOT: "The head does not learn what the world was drawn with; why is not tested.",
        },
    ),
    Claim(
        "A weight of .7 to .8 on the isotonic head debiases best",
        "section 5.2",
        "loss-weights",
        ("nDCG at beta .7-.8 minus",),
        "A map of beta, anchor and overlap of the logging policy, judged by ranking: beta .7 and .8 with the joint "
        "loss against the best of the other betas, for each overlap. The paper asks for calibration at the same time, "
        "which has rows of its own.",
        {
            HELD: "It ranks better than every other weight that was tried; why is not tested.",
            PARTLY: "It depends on the overlap (the parts in the table); we have not tested why. The note of the study "
            "says where ranking and where calibration is best, and what the detached anchor does.",
            NOT: "Ranking asks for another weight. The inference head of the joint loss asks the shared layers to "
            "explain clicks, which perhaps is why; we have not tested why.",
        },
        universal=True,
    ),
    Claim(
        "Some weight on the inference head is needed to keep served scores calibrated and steady",
        "section 5.2",
        "loss-weights",
        ("without alpha",),
        "The same map, with the joint anchor and five retrainings: alpha 0 against the paper's weights. With no curve "
        "held nothing ties the score of the inference head to a level, so that it must be worse; so the same is asked "
        "where the curve of a reference context is held at the identity, as we do.",
        {
            HELD: "It is so even where a curve is held at the identity.",
            DIRECTION_ONLY: "It is so on average even where a curve is held at the identity.",
            PARTLY: "In the paper's loss nothing else ties the score of the inference head to a level. Where a curve "
            "is held at the identity it depends on what is asked (the parts in the table); why is not tested.",
            NOT: "The served score is no worse without it; why is not tested.",
        },
    ),
    Claim(
        "One layer calibrates every task and context at least as well as a calibrator for each",
        "sections 1.4 and 5.3",
        "per-task-isotonic",
        (
            "the layer, isotonic head has lower NE than isotonic, one per task and context",
            "the layer,",
            "the isotonic head, additive",
        ),
        "Twelve tasks of one model, by position and device: the exact layer, and the head that is learned inside the "
        "model, with a curve for every combination or with effects that add up, trained on both logs: the network's "
        "and the calibrators'.",
        {
            HELD: "The exact layer shares what contexts have in common; the head knows the context while its network "
            "learns, and that network learns from both logs, the calibrators' from one. Which of these matters is not "
            "tested.",
            PARTLY: "The exact layer shares what contexts have in common; the head knows the context while its network "
            "learns, and that network learns from both logs, the calibrators' from one. Which of these matters is not "
            "tested. A head that adds effects of position and device cannot represent this world, where every "
            "combination has a curve of its own. The table says where calibrators fitted to each context afterwards "
            "are nearer; why is not tested.",
            NOT: "Calibrators fitted to each context afterwards are nearer; why is not tested.",
        },
        universal=True,
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
        "A head of twelve tasks with a curve of 125 buckets for each of 30 contexts, over a small network: AUC of what "
        "it predicts of the log, before and after distilling into a network with a shift per combination of position "
        "and device, or with shifts of each.",
        {
            HELD: "Shifts of the hidden units come that near to a curve per context.",
            DIRECTION_ONLY: "The losses differ much between seeds; we have not tested why.",
            PARTLY: "It depends on what the shallow network is told of the context, of which the paper says nothing: "
            "hidden units with a shift per combination can follow a curve per combination, those with shifts by "
            "position and by device have fewer numbers for it (the parts in the table).",
            NOT: "The shallow networks that we tried do not follow these curves; we have not tested why.",
        },
    ),
    Claim(
        "The layer adapts as data arrive; inverse propensities need estimating again",
        "conclusion",
        "incremental",
        (
            "bias grows: with the joint loss the isotonic head ranks better than IPS",
            *(
                f"bias {moves}: {says}"
                for moves in ("grows", "fades")
                for says in (
                    "with the joint loss the isotonic head ranks",
                    "IPS ranks worse",
                    "with the joint loss the isotonic head has an O/E",
                    "with the joint loss the isotonic head has lower NE than IPS",
                )
            ),
        ),
        "A year of daily updates during which position bias grows or fades: ranking by true relevance, and O/E by "
        "position and normalised entropy (NE) of the next day's log.",
        {
            HELD: "Curves learn from every day's log like everything else.",
            PARTLY: "Curves learn from every day's log like everything else. With the joint loss the inference head "
            "still pulls relevance to the clicks; the detached anchor, which does not, is under What we add.",
        },
        tells=compared.drifts,
    ),
)
