"""Relevance out of biased logs: models that explain where an item was shown, and serve as if it did not matter.

Every model has ``forward(features, context)``, ``loss(outputs, labels, mask=None, weight=None)`` and ``serving()``.

    heads        relevance, and a monotone curve over it a context    DualHead
    pap          predicts positions too, and pools over them          PositionPredictor
    baselines    what to compare with                                 Naive, AdditiveTower, PAL, PositionAsFeature,
                                                                      PositionDropout, post_hoc
    weighting    events weighted by propensity                        InversePropensity, DualLearning
    propensity   propensities from the log alone                      harvest_propensity, em_propensity
    distill      the head at serving, as a shallow network            ShallowHead, distill
    diagnose     what a log allows, and what a model left             overlap, after_training, position_effect
    harvest      the effect of position, with standard errors         harvest
    logger       whether the logger knew what the features lack       logger_test
    loss         what every model outputs, and their loss             Heads
    serving      what is deployed                                     Serving
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
    post_hoc,
)
from isolayer.debias.diagnose import Diagnosis, Overlap, after_training, overlap, position_effect
from isolayer.debias.distill import Distilled, ShallowHead, distill
from isolayer.debias.harvest import Harvested, harvest
from isolayer.debias.heads import DualHead
from isolayer.debias.logger import LoggerTest, logger_test
from isolayer.debias.loss import Heads
from isolayer.debias.pap import PositionPredictor
from isolayer.debias.propensity import Harvest, em_propensity, harvest_propensity
from isolayer.debias.serving import Serving
from isolayer.debias.weighting import DualLearning, InversePropensity

__all__ = [
    "DROP_RATES",
    "PAL",
    "AdditiveTower",
    "Diagnosis",
    "Distilled",
    "DualHead",
    "DualLearning",
    "Harvest",
    "Harvested",
    "Heads",
    "InversePropensity",
    "LoggerTest",
    "Naive",
    "Overlap",
    "PositionAsFeature",
    "PositionDropout",
    "PositionPredictor",
    "Serving",
    "ShallowHead",
    "after_training",
    "distill",
    "em_propensity",
    "harvest",
    "harvest_propensity",
    "logger_test",
    "overlap",
    "position_effect",
    "post_hoc",
]
