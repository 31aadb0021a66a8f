# %% [markdown]
# # Debias a ranker
#
# A feed whose logger ranked by something users do not care for. Clicks follow what was seen; the dual head tells
# relevance from being seen.

# %%
import torch
from torch import nn

from isolayer import DualHead, metrics, parameter_groups
from isolayer.debias import Naive
from isolayer.simulate import debias_feed

torch.manual_seed(0)
feed = debias_feed("trust", "spurious")
log, test = feed.log(3_000, seed=1), feed.log(1_000, seed=2)

# %%
features = torch.from_numpy(log["features"])
context = {name: torch.from_numpy(log[name]).long() for name in ("position", "device")}
click = torch.from_numpy(log["click"]).float()


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(features.shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def ndcg_of(model: nn.Module) -> float:
    optimiser = torch.optim.Adam(parameter_groups(model, lr=3e-3))
    for _ in range(6):
        for chosen in torch.randperm(len(click)).split(512):
            outputs = model(features[chosen], {name: ids[chosen] for name, ids in context.items()})
            loss = model.loss(outputs, {"click": click[chosen]})
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        relevance = model.eval().serving()(torch.from_numpy(test["features"]))["click"]
    return metrics.ndcg(test["grade"], relevance.numpy(), test["session"])


# %% [markdown]
# nDCG against the relevance that only a simulator knows:

# %%
naive = ndcg_of(Naive(backbone(), width=32))
dual = DualHead(backbone(), width=32, tasks=("click",), contexts={"position": 10, "device": 3}, anchor="detached")
debiased = ndcg_of(dual)
print(f"naive {naive:.3f}, dual head {debiased:.3f}")
assert debiased > naive + 0.05

# %% [markdown]
# What it learned of position: the same relevance, the chance of a click at the first and at the last place.

# %%
curves = dual.curves()
place = {"task": ["click", "click"], "position": [0, 9], "device": [0, 0]}
print(curves.predict_proba([0.0, 0.0], place).round(3))
