# %% [markdown]
# # Get started in five minutes
#
# A log with scores and clicks; scores are wrong on every surface. Fit, look, save, serve.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isolayer import Curves, IsotonicCalibrator, metrics

folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)

# %% [markdown]
# ## A log
#
# Four surfaces; on each the model's probability is off in another way.

# %%
rows = 50_000
surface = random.choice(["feed", "search", "email", "push"], rows, p=[0.6, 0.3, 0.08, 0.02])
truth = random.normal(-2, 1, rows)
distortion = {"feed": (1.0, 0.3), "search": (0.6, -0.5), "email": (1.5, 0.0), "push": (1.0, 2.0)}
slope, shift = (np.array([distortion[s][i] for s in surface]) for i in range(2))
prob = 1 / (1 + np.exp(-(slope * truth + shift)))
click = (random.random(rows) < 1 / (1 + np.exp(-truth))).astype(np.int8)
log = {"prob": prob, "click": click, "surface": surface}
pq.write_table(pa.table(log), folder / "log.parquet")

# %% [markdown]
# ## Fit
#
# Straight from the file: DuckDB sums the rows, the solver fits one curve a surface.

# %%
calibrator = IsotonicCalibrator(("surface",), scale="prob")
calibrator.fit_table(folder / "log.parquet", score="prob", label="click")
calibrated = calibrator.predict_proba(log)[:, 1]

# %%
for name, values in (("raw", prob), ("calibrated", calibrated)):
    table = metrics.observed_over_expected(click, values, surface)
    ratios = ", ".join(f"{s} {r:.2f}" for s, r in zip(table.context, table.ratio, strict=True))
    print(f"{name:>10}: log loss {metrics.log_loss(click, values):.4f}; O/E {ratios}")
assert metrics.log_loss(click, calibrated) < metrics.log_loss(click, prob)

# %% [markdown]
# ## Save and serve
#
# One Parquet file. The same curves as ONNX, SQL or a torch layer.

# %%
calibrator.curves_.save(folder / "curves.parquet")
curves = Curves.load(folder / "curves.parquet")
curves.to_onnx(folder / "curves.onnx")
print(curves.to_sql("duckdb")[:60], "...")
print(curves.predict_proba([0.3, 0.3, 0.3], {"surface": ["feed", "push", "never seen"]}).round(3))

# %% [markdown]
# ## Look
#
# One page with everything, for people.

# %%
from isolayer.report import write  # noqa: E402

write(folder / "report.html", log, curves, score="prob", label="click")
print((folder / "report.html").stat().st_size // 1000, "kB")
