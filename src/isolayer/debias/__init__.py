"""Relevance out of biased logs: models that explain where an item was shown, and serve as if it did not matter.

heads       relevance, and a monotone curve over it a context     DualHead
loss        what every model outputs, and their loss              Heads
serving     what is deployed                                      Serving
"""

from isolayer.debias.heads import DualHead
from isolayer.debias.loss import Heads
from isolayer.debias.serving import Serving

__all__ = ["DualHead", "Heads", "Serving"]
