# %% [markdown]
# # Calibrate an MMoE you did not write
#
# `torch_rechub` has a multi-gate mixture of experts that returns probabilities. Here it is trained as its authors
# intend, then frozen; `calibrate` puts exact curves on top of it, one per task and platform.

# %%
import torch
from torch import nn
from torch_rechub.basic.features import DenseFeature
from torch_rechub.models.multi_task import MMOE

from isolayer import calibrate

torch.manual_seed(0)

# %%
rows, width = 20_000, 6
names = [f"f{i}" for i in range(width)]
x = torch.randn(rows, width)
platform = torch.randint(0, 2, (rows,))
taste = x[:, 0] - x[:, 1] - 1.5 * platform
label = torch.bernoulli(torch.sigmoid(torch.stack([taste - 1, 0.7 * taste - 2], 1)))


class Logits(nn.Module):
    """The model's probabilities as logits, which is what curves read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        prob = self.model({name: x[:, i] for i, name in enumerate(names)})
        return torch.logit(prob.clamp(1e-7, 1 - 1e-7))


# %%
towers = [{"dims": [8]}, {"dims": [8]}]
mmoe = MMOE([DenseFeature(name) for name in names], ["classification"] * 2, 3, {"dims": [16]}, towers)
optimiser = torch.optim.Adam(mmoe.parameters(), lr=5e-3)
half = rows // 2
for _ in range(5):
    for chosen in torch.randperm(half).split(256):
        prob = mmoe({name: x[chosen, i] for i, name in enumerate(names)})
        loss = nn.functional.binary_cross_entropy(prob, label[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

# %% [markdown]
# The model does not know the platform, so it is wrong on both. Half of the rows were kept for the curves.

# %%
calibrated = calibrate(
    Logits(mmoe.eval()), [(x[half:], label[half:], {"platform": platform[half:]})], contexts={"platform": 2}
)
before = torch.sigmoid(calibrated.model(x)).detach()
after = torch.sigmoid(calibrated(x, {"platform": platform})).detach()
for p in range(2):
    on = platform == p
    ratio = [float(label[on, 0].sum() / prob[on, 0].sum()) for prob in (before, after)]
    print(f"platform {p}: O/E {ratio[0]:.2f} -> {ratio[1]:.2f}")
    assert abs(ratio[1] - 1) < 0.1 < abs(ratio[0] - 1)
