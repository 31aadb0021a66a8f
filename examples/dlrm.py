# %% [markdown]
# # Debias a TorchRec DLRM
#
# Any backbone that gives `[batch, width]` will do. Here it is the over-arch input of a DLRM: embedding bags for sparse
# ids and a dense arch, as large recommenders run them.

# %%
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DenseArch, InteractionArch, SparseArch

from isolayer import DualHead, parameter_groups

torch.manual_seed(0)


class Backbone(nn.Module):
    """Dense columns first, then one id a sparse feature."""

    def __init__(self, dense: int, sparse: dict[str, int], dim: int = 8) -> None:
        super().__init__()
        self.dense, self.sparse = dense, list(sparse)
        tables = [
            EmbeddingBagConfig(name=f"t_{name}", embedding_dim=dim, num_embeddings=size, feature_names=[name])
            for name, size in sparse.items()
        ]
        self.sparse_arch = SparseArch(EmbeddingBagCollection(tables=tables))
        self.dense_arch = DenseArch(dense, [16, dim])
        self.interaction = InteractionArch(len(sparse))
        self.width = dim + (len(sparse) + 1) * len(sparse) // 2

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        ids = features[:, self.dense :].long()
        bags = KeyedJaggedTensor.from_lengths_sync(
            self.sparse, ids.T.reshape(-1), torch.ones(ids.numel(), dtype=torch.int32)
        )
        return self.interaction(self.dense_arch(features[:, : self.dense]), self.sparse_arch(bags))


# %%
rows = 8_000
item, position = torch.randint(0, 50, (rows,)), torch.randint(0, 5, (rows,))
dense = torch.randn(rows, 4)
relevance = dense[:, 0] + torch.linspace(-1, 1, 50)[item]
click = torch.bernoulli(torch.sigmoid(relevance - 0.8 * position))
features = torch.cat([dense, item.unsqueeze(1), torch.randint(0, 10, (rows, 1))], 1)

# %%
backbone = Backbone(4, {"item": 50, "user": 10})
model = DualHead(backbone, width=backbone.width, tasks=("click",), contexts={"position": 5}, alpha=0.0, beta=1.0)
optimiser = torch.optim.Adam(parameter_groups(model, lr=5e-3))
for _ in range(4):
    for chosen in torch.randperm(rows).split(256):
        outputs = model(features[chosen], {"position": position[chosen]})
        loss = model.loss(outputs, {"click": click[chosen]})
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

# %% [markdown]
# Serving asks for the features only, and what it ranks by is relevance.

# %%
with torch.no_grad():
    ranked = model.serving()(features)["click"]
correlation = torch.corrcoef(torch.stack([ranked, relevance]))[0, 1].item()
print(f"correlation with true relevance: {correlation:.2f}")
assert correlation > 0.8
