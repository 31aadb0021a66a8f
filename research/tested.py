"""What each study does, in one sentence for somebody who has read nothing else; shown beside its outcome."""

from __future__ import annotations

TESTED = {
    "expressiveness": (
        "The layer is trained on y = x^2 and on a curve that falls at the end, and compared with the best monotone fit."
    ),
    "stated-numbers": (
        "What the paper states of the layer's default range and buckets, and of O/E, is worked out and compared with "
        "what it says."
    ),
    "ranking-ties": (
        "Isotonic regression and the layer are fitted to the same rows, and compared on others by how many pairs they "
        "give the same score and by AUC."
    ),
    "regularisation": (
        "The layer of one input is trained by gradient on 100 to 10,000 rows with and without its constraint, with the "
        "same training, with each tuned and at equal settings, and compared by expected log loss on fresh scores where "
        "the truth rises and where it falls."
    ),
    "downstream": (
        "A model of sparse outcomes is retrained daily for two weeks; each day's predictions for the next are "
        "compared with and without curves learned on randomised sessions, by AUC and by their daily mean."
    ),
    "separate-layer": (
        "A network and a layer with one curve per device are trained together, or the layer apart on held-out rows; "
        "then the world moves, and what the move adds to the loss of either is compared."
    ),
    "offline-debiasing": (
        "Models are trained on a simulated log with position bias and compared on another log by AUC and NE, and "
        "against the true relevance that the simulator knows."
    ),
    "observed-over-expected": (
        "A baseline and a dual head learn from traffic that a production model ranked and each serve traffic of their "
        "own; the clicks at each position, advertisements left out, are divided by those predicted by the baseline, "
        "the served head and the head that knows the position, under mild and strong bias."
    ),
    "learned-curves": (
        "The curves that a dual head learns for every task, position and device are compared with those that the "
        "simulator draws clicks from."
    ),
    "loss-weights": (
        "Dual heads are trained over a map of loss weights, anchors and logging policies, and ranking and "
        "calibration are measured at each point."
    ),
    "notifications": (
        "Arms that decide which notifications to send, by scores with and without calibration, serve the same "
        "members, and a paired t-test compares what they earn."
    ),
    "ab-test": (
        "Arms that rank by models with and without debiasing, or by a model whose tasks are calibrated one by one, "
        "serve simulated users of their own, and a t-test compares what the users do."
    ),
    "per-task-isotonic": (
        "Twelve tasks of one model are calibrated by one calibrator per task, one per task and context, or one "
        "layer, and compared on held-out rows."
    ),
    "overhead": (
        "The time of rankers of three sizes is measured with and without the isotonic head in several forms; the AUC "
        "that distilling such a head loses is measured on a simulated log."
    ),
    "incremental": (
        "For a year every model predicts each day before it learns from it, while position bias grows or fades."
    ),
    "debias-benchmark": (
        "Rankers are trained on biased clicks by the dual head with its defaults and by many other methods, each with "
        "the best of six settings, found on another seed, and compared by nDCG against the true relevance that the "
        "simulator knows."
    ),
    "debias-variants": (
        "Variants of the dual head are trained on biased clicks in the same worlds and compared by nDCG against true "
        "relevance."
    ),
    "advised-alpha": (
        "Rankers with several weights of the two losses are trained where the logger knew more than the features, and "
        "the weight that the diagnosis of the log advises is compared with the others."
    ),
    "boosted-trees": (
        "Boosted trees are trained on biased clicks in six ways and compared by nDCG against true relevance: without "
        "a correction, with that of LightGBM or XGBoost, through our curves from clicks alone or also from a teacher "
        "(the network that learned the curves), and, where they are known, through the true curves."
    ),
    "debias-tuning": (
        "Six settings of every method of the debiasing benchmark but the dual head, which has its defaults, are tried "
        "on one seed that no figure is reported on."
    ),
    "tree-tuning": (
        "Six settings of every method of the study of boosted trees, the engines' own settings of their corrections "
        "among them, are tried on seeds that no figure is reported on."
    ),
    "lattice": (
        "Five learners predict an outcome that is declared to rise with two inputs, and does or does not, and are "
        "compared by log loss and by how often their predictions fall."
    ),
    "segments": (
        "A million advertisers are calibrated from a log of 20 million rows in several ways, and the largest 10,000 "
        "from a smaller log also by MCGrad, and compared by how far held-out predictions are from the true "
        "probability."
    ),
    "off-policy": (
        "The clicks that two new rankings would get are estimated from the log of an old one, a hundred times per "
        "click model, and compared with what simulated users do."
    ),
    "position-prediction": (
        "What is served without knowing the position is compared, by log loss on more traffic, between one curve, "
        "averages over predicted positions, and a network of the features that is not told any."
    ),
    "kuairand": ("Calibrators are fitted to real clicks by tab on some days and compared on later days."),
    "kuairand-tasks": (
        "Eight real outcomes are calibrated by tab, by one layer or by one calibrator for each, and compared on later "
        "days."
    ),
    "kuairand-fields": (
        "Calibrators that see all fields of real clicks are fitted on some days and compared on later days and on "
        "users they have not seen."
    ),
    "real-tasks": (
        "Calibrators are fitted to real tasks, each a label by segments, that no setting was chosen on, and ranked on "
        "held-out rows; tasks from the same source use the same rows."
    ),
    "mslr-clicks": (
        "Clicks are simulated on documents graded by people, rankers are trained on them (networks, and boosted trees "
        "from clicks alone or also from a teacher, the network that learned the curves), and compared by nDCG against "
        "the grades."
    ),
    "open-bandit": (
        "The click rate of one logged policy is estimated from the log of another, and compared with the rate it had."
    ),
    "ads-calibration": (
        "Calibrators by field are fitted over a base model on whichever public ads data are there (on KuaiRand by the "
        "author, who plays the advertiser, and by the tab), and compared on held-out rows."
    ),
}
