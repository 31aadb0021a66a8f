"""A model trained on the lists of a simulated log, a batch of whole lists at a time."""

import torch

from isolayer import parameter_groups


def tensors(log):
    """Features, context and clicks of a log."""
    context = {name: torch.from_numpy(log[name]).long() for name in ("position", "session")}
    return torch.from_numpy(log["features"]), context, torch.from_numpy(log["click"]).float()


def trained(model, log, *, epochs=4, lists=100):
    """The model after some epochs over the lists of ten."""
    features, context, click = tensors(log)
    optimiser = torch.optim.Adam(parameter_groups(model, 1e-2))
    for _ in range(epochs):
        for chosen in torch.randperm(len(click) // 10).split(lists):
            rows = (chosen.unsqueeze(1) * 10 + torch.arange(10)).view(-1)
            outputs = model(features[rows], {name: ids[rows] for name, ids in context.items()})
            optimiser.zero_grad()
            model.loss(outputs, {"click": click[rows]}).backward()
            optimiser.step()
    return model.eval()
