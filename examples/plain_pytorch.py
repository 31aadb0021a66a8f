# %% [markdown]
# # The layer in a plain PyTorch model
#
# A two-task click model whose traffic comes from three devices. The layer sits on top of the logits, one curve per task
# and device, trained with the model by the loss it already has.

# %%
import torch
from torch import nn

from isolayer import ContextIsotonicLayer, parameter_groups

torch.manual_seed(0)


class Ranker(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 2))
        self.curves = ContextIsotonicLayer({"device": 3}, units=2)

    def forward(self, x: torch.Tensor, device: torch.Tensor) -> torch.Tensor:
        return self.curves(self.body(x), {"device": device})


# %% [markdown]
# Simulated rows: the same taste, but each device answers in its own way.

# %%
rows = 20_000
x = torch.randn(rows, 8)
device = torch.randint(0, 3, (rows,))
taste = x[:, 0] + 0.5 * x[:, 1]
observed = torch.stack([taste - 1, 0.5 * taste - 2], 1) * torch.tensor([1.0, 0.5, 2.0])[device].unsqueeze(1)
label = torch.bernoulli(torch.sigmoid(observed))

# %% [markdown]
# Curves learn at ten times the backbone's rate: `parameter_groups` knows which parameters those are.

# %%
model = Ranker(8)
optimiser = torch.optim.Adam(parameter_groups(model, lr=3e-3))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=4 * 40)  # a rate that falls ends calibrated
for epoch in range(4):
    for chosen in torch.randperm(rows).split(512):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[chosen], device[chosen]), label[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")

# %% [markdown]
# Observed over expected on every device: close to 1.

# %%
with torch.no_grad():
    prob = torch.sigmoid(model(x, device))
ratios = [(label[device == d].sum(0) / prob[device == d].sum(0)).tolist() for d in range(3)]
for d, ratio in enumerate(ratios):
    print(f"device {d}: O/E {ratio[0]:.2f} (task 0), {ratio[1]:.2f} (task 1)")
assert all(0.8 < value < 1.25 for ratio in ratios for value in ratio)
