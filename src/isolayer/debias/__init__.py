"""Relevance out of biased logs: models that explain where an item was shown, and serve as if it did not matter.

Every model has ``forward(features, context)``, ``loss(outputs, labels, mask=None, weight=None)`` and ``serving()``.

    heads        relevance, and a monotone curve over it a context    DualHead
    baselines    what to compare with                                 Naive, AdditiveTower, Pal, PositionAsFeature,
                                                                      PositionDropout, post_hoc
    weighting    events weighted by propensity                        InversePropensity, DualLearning
    propensity   propensities from the log alone                      harvest_propensity, em_propensity
    loss         what every model outputs, and their loss             Heads
    serving      what is deployed                                     Serving
"""

from isolayer.debias.baselines import (
    DROP_RATES,
    AdditiveTower,
    Naive,
    Pal,
    PositionAsFeature,
    PositionDropout,
    post_hoc,
)
from isolayer.debias.heads import DualHead
from isolayer.debias.loss import Heads
from isolayer.debias.propensity import Harvest, em_propensity, harvest_propensity
from isolayer.debias.serving import Serving
from isolayer.debias.weighting import DualLearning, InversePropensity

__all__ = [
    "DROP_RATES",
    "AdditiveTower",
    "DualHead",
    "DualLearning",
    "Harvest",
    "Heads",
    "InversePropensity",
    "Naive",
    "Pal",
    "PositionAsFeature",
    "PositionDropout",
    "Serving",
    "em_propensity",
    "harvest_propensity",
    "post_hoc",
]
