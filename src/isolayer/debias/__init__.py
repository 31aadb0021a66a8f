"""Relevance from biased logs: models that account for where an item was shown, and serve relevance alone.

Every model has ``forward(features, context)``, ``loss(outputs, labels, mask=None, weight=None)`` and ``serving()``.

    heads                    relevance, and one monotone curve over it per context   DualHead
    pap                      predicts positions too, and averages over them          PositionPredictor
    baselines                methods to compare with                                 Naive, AdditiveTower, PAL,
                                                                                     PositionAsFeature, PositionDropout,
                                                                                     TrustAffine, post_hoc
    ranking_loss             losses that compare the rows of a list                  DualHead(loss=...)
    weighting                events weighted by propensity                           InversePropensity, DualLearning
    in_turns                 bias and ranker estimated in turns                      RegressionEM, PairwiseDebiasing
    click_models             how users read a list                                   Cascade, DCM, DBN, UBM
    confounding              loggers that knew something about relevance             GradientReversal, placement_weights
    boosting                 LightGBM and XGBoost through learned curves             BoostedRanker
    propensity               examination by regression EM                            em_propensity
    intervention_harvesting  the effect of position, from items shown at several     harvest
    evaluation               clicks that a new ranking would get, from old logs      evaluate, Evaluation
    diagnose                 whether a log allows debiasing, and whether it worked   overlap, after_training,
                                                                                     position_effect
    informed_logger_test     whether the logger was better informed                  logger_test
    distill                  the head at serving, as a shallow network               ShallowHead, distill
    loss                     outputs of every model, and their loss                  Heads
    served_probability       the probability that is served, fitted after training   refit_served of every model
    serving, export          what is deployed, and as ONNX                           Serving, export_onnx
"""

from isolayer.errors import need

need("torch")

from isolayer.debias.baselines import (
    DROP_RATES,
    PAL,
    AdditiveTower,
    Naive,
    PositionAsFeature,
    PositionDropout,
    TrustAffine,
    post_hoc,
)
from isolayer.debias.boosting import BoostedRanker
from isolayer.debias.click_models import DBN, DCM, UBM, Cascade
from isolayer.debias.confounding import GradientReversal, placement_weights
from isolayer.debias.diagnose import Diagnosis, Overlap, after_training, overlap, position_effect
from isolayer.debias.distill import Distilled, ShallowHead, distill
from isolayer.debias.evaluation import EstimatesDisagree, Evaluation, evaluate
from isolayer.debias.export import export_onnx
from isolayer.debias.heads import DualHead
from isolayer.debias.in_turns import PairwiseDebiasing, RegressionEM
from isolayer.debias.informed_logger_test import LoggerTest, logger_test
from isolayer.debias.intervention_harvesting import Harvested, harvest
from isolayer.debias.loss import Heads
from isolayer.debias.pap import PositionPredictor
from isolayer.debias.propensity import em_propensity
from isolayer.debias.serving import Serving
from isolayer.debias.weighting import DualLearning, InversePropensity

__all__ = [
    "DBN",
    "DCM",
    "DROP_RATES",
    "PAL",
    "UBM",
    "AdditiveTower",
    "BoostedRanker",
    "Cascade",
    "Diagnosis",
    "Distilled",
    "DualHead",
    "DualLearning",
    "EstimatesDisagree",
    "Evaluation",
    "GradientReversal",
    "Harvested",
    "Heads",
    "InversePropensity",
    "LoggerTest",
    "Naive",
    "Overlap",
    "PairwiseDebiasing",
    "PositionAsFeature",
    "PositionDropout",
    "PositionPredictor",
    "RegressionEM",
    "Serving",
    "ShallowHead",
    "TrustAffine",
    "after_training",
    "distill",
    "em_propensity",
    "evaluate",
    "export_onnx",
    "harvest",
    "logger_test",
    "overlap",
    "placement_weights",
    "position_effect",
    "post_hoc",
]
