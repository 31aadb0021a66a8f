"""Draw the README's picture: ``python docs/images/calibration.py`` writes calibration.png beside this file."""

from pathlib import Path

import altair as alt
import numpy as np

from isolayer import IsotonicCalibrator
from isolayer.report import plot_curves, plot_reliability

random = np.random.default_rng(0)
rows = 60_000
device = random.choice(["app", "tv", "web"], rows, p=[0.6, 0.1, 0.3])
truth = random.normal(-1.5, 1.3, rows)
click = random.random(rows) < 1 / (1 + np.exp(-truth))
wrong = np.select([device == "tv", device == "web"], [truth + 1.8, 1.7 * truth + 1.2], 0.7 * truth - 0.4)
frame = {"score": wrong, "device": device}
calibrator = IsotonicCalibrator(("device",)).fit(frame, click)
prob = {"raw score": 1 / (1 + np.exp(-wrong)), "calibrated": calibrator.predict_proba(frame)[:, 1]}
reliability = plot_reliability(click, prob).properties(title="all devices together")
curves = plot_curves(calibrator.curves_, {"device": ["app", "tv", "web"]}).properties(title="one curve a device")
look, curves.config, reliability.config = curves.config, alt.Undefined, alt.Undefined  # a config goes outermost
picture = alt.hconcat(curves, reliability, spacing=60, config=look).resolve_scale(color="independent")
picture.save(Path(__file__).with_suffix(".png"), ppi=80)
