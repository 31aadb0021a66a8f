import itertools
import math

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import ContextIsotonicLayer, Grid, InputError, IsotonicLayer
from isolayer.nn import context as context_module

GRID = Grid(-2, 3, 0.5)
CONTEXTS = {"position": 5, "device": 3}
OUTSIDE = "context 'position': expected ids from -1 (unknown) to 4, got {}; map unseen values to -1"
KINDS = {
    "sum": {},
    "cross": {"mode": "cross"},
    "rank": {"rank": 2},
    "cross rank": {"mode": "cross", "rank": 3},
    "hashed": {"hash_buckets": 64},
    "cross hashed": {"mode": "cross", "hash_buckets": 64},
    "projected": {"projection": 4},
    "softplus": {"constraint": "softplus"},
    "extended": {"extrapolation": "extend"},
}


def random_layer(seed, *, units=2, spread=0.5, **options):
    layer = ContextIsotonicLayer(CONTEXTS, units=units, grid=GRID, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + 0.3)
            if name.endswith(("rows.weight", "bias.weight")):
                parameter[0] = 0  # the padding row, as any training leaves it
    return layer


def batch(seed, rows=50, units=2):
    generator = torch.Generator().manual_seed(seed)
    logit = torch.randn(rows, units, generator=generator) * 2
    context = {name: torch.randint(-1, size, (rows,), generator=generator) for name, size in CONTEXTS.items()}
    return logit, context | {"vector": torch.randn(rows, 4, generator=generator)}


def keys_of(layer, ids):
    """The entry of each table that a context reads, in plain Python; None where it reads none."""
    if layer.hash_buckets:
        ids = [splitmix(key) % layer.hash_buckets if key >= 0 else -1 for key in ids]
    if layer.mode == "sum":
        return [key if key >= 0 else None for key in ids]
    if min(ids) < 0:
        return [None]
    sizes = [layer.hash_buckets] * 2 if layer.hash_buckets else list(CONTEXTS.values())
    key = ids[0] * sizes[1] + ids[1]
    return [splitmix(key) % layer.hash_buckets if layer.hash_buckets else key]


def splitmix(key):
    """The first output of SplitMix64 from a seed that brings its state to ``key`` increments, less its sign bit."""
    mask = 2**64 - 1
    z = key * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return (z ^ (z >> 31)) & (2**63 - 1)


def obvious(layer, logit, context):
    """One row at a time: its weights by hand, then IsotonicLayer with a delta."""
    base, units = layer.base, layer.units
    out = torch.empty_like(logit)
    for i in range(len(logit)):
        bias, delta = torch.zeros(units), torch.zeros(units * GRID.buckets)
        if layer.project is not None:
            both = layer.project(context["vector"][i])
            bias, delta = bias + both[:units], delta + both[units:]
        for table, key in zip(layer.tables, keys_of(layer, [int(context[name][i]) for name in CONTEXTS]), strict=True):
            if key is not None:
                entry = table.rows.weight[key + 1]
                bias = bias + table.bias.weight[key + 1]
                delta = delta + (entry if table.directions is None else entry @ table.directions)
        single = IsotonicLayer(units, grid=GRID, constraint=base.constraint, extrapolation=base.extrapolation)
        single.load_state_dict(base.state_dict())
        with torch.no_grad():
            single.bias += bias
            out[i] = single(logit[i : i + 1], delta.view(units, GRID.buckets))[0]
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("everything", [True, False], ids=["all curves", "distinct curves"])
def test_vectorised_equals_one_row_at_a_time(kind, everything, monkeypatch):
    if not everything:
        monkeypatch.setattr(context_module, "_ALL", 0)
    layer = random_layer(0, **KINDS[kind])
    logit, context = batch(0)
    torch.testing.assert_close(layer(logit, context), obvious(layer, logit, context), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_context_starts_on_the_base_curve_and_can_leave_it(kind):
    torch.manual_seed(0)
    layer = ContextIsotonicLayer(CONTEXTS, units=2, grid=GRID, **KINDS[kind])
    logit, context = batch(1)
    context = {name: values.clamp(min=0) if name in CONTEXTS else values for name, values in context.items()}
    torch.testing.assert_close(layer(logit, context), layer.base(logit), atol=1e-5, rtol=0)
    layer(logit, context).square().sum().backward()
    moved = [p.grad for n, p in layer.named_parameters() if "rows" in n or "bias.weight" in n or "project" in n]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in moved)


@pytest.mark.parametrize("kind", ["sum", "cross", "rank", "hashed", "cross hashed"])
def test_the_unknown_context_has_the_base_curve_and_never_learns(kind):
    layer = random_layer(2, **KINDS[kind])
    logit, _ = batch(2)
    unknown = {name: torch.full((50,), -1) for name in CONTEXTS}
    torch.testing.assert_close(layer(logit, unknown), layer.base(logit), atol=1e-5, rtol=0)
    layer(logit, unknown).sum().backward()
    for table in layer.tables:
        assert table.rows.weight.grad.abs().sum() == 0
        assert table.bias.weight.grad.abs().sum() == 0


def test_sum_shares_and_cross_does_not():
    """Training on (position 1, device 0) moves (position 1, device 2) under sum, and not under cross."""
    moves = {}
    for mode in ("sum", "cross"):
        layer = ContextIsotonicLayer(CONTEXTS, grid=GRID, mode=mode)
        seen = {"position": torch.tensor([1]), "device": torch.tensor([0])}
        layer(torch.tensor([0.3]), seen).sum().backward()
        with torch.no_grad():
            for table in layer.tables:
                table.rows.weight -= table.rows.weight.grad
                table.bias.weight -= table.bias.weight.grad
        other = {"position": torch.tensor([1]), "device": torch.tensor([2])}
        moves[mode] = (layer(torch.tensor([0.3]), other) - layer.base(torch.tensor([0.3]))).abs().item()
    assert moves["sum"] > 0.1
    assert moves["cross"] == pytest.approx(0, abs=1e-6)


@given(st.integers(0, 2**31), st.sampled_from(["sum", "cross", "rank", "softplus", "extended"]))
@settings(deadline=None, max_examples=30)
def test_every_contexts_curve_is_monotone(seed, kind):
    layer = random_layer(seed, spread=2.0, **KINDS[kind])
    pairs = list(itertools.product(range(-1, 5), range(-1, 3)))
    context = {"position": torch.tensor([p for p, _ in pairs]), "device": torch.tensor([d for _, d in pairs])}
    values = layer.knot_values(context)
    assert values.shape == (len(pairs), 2, GRID.buckets + 1)
    assert (values.diff(dim=-1) >= -1e-5).all()


def test_the_order_of_the_batch_does_not_matter():
    layer = random_layer(3)
    logit, context = batch(3)
    order = torch.randperm(50)
    shuffled = {name: values[order] for name, values in context.items()}
    assert torch.equal(layer(logit, context)[order], layer(logit[order], shuffled))


def test_a_million_contexts_at_low_rank_fit_in_100_mb():
    layer = ContextIsotonicLayer({"advertiser": 1_000_000}, rank=8)
    assert sum(p.numel() * p.element_size() for p in layer.parameters()) < 100e6
    ids = torch.randint(0, 1_000_000, (200,))
    assert layer(torch.randn(200), {"advertiser": ids}).shape == (200, 1)


def test_work_is_for_the_distinct_contexts_of_a_batch():
    """Under autograd nothing of the size [batch, units, buckets] is kept when contexts repeat."""
    layer = ContextIsotonicLayer({"advertiser": 100_000}, grid=Grid())
    ids = torch.tensor([7, 99_999]).repeat(2000)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        layer(torch.randn(4000).requires_grad_(), {"advertiser": ids})
    assert max(saved) <= 100_001 * 127  # the table itself, by reference
    assert sorted(saved)[-2] <= 2 * 4000


def test_hashed_ids_are_unbounded_stable_and_spread():
    layer = random_layer(4, hash_buckets=64)
    ids = torch.tensor([0, 1, 10**15, 2**62])
    context = {"position": ids, "device": ids}
    assert torch.isfinite(layer(torch.zeros(4), context)).all()
    hashed = context_module._mixed(torch.arange(64_000)) % 64
    counts = torch.bincount(hashed, minlength=64).double()
    assert ((counts - 1000).square() / 1000).sum() < 120  # chi-squared on 63 degrees of freedom: p below 1e-5
    splitmix64 = [16294208416658607535, 7960286522194355700, 487617019471545679]  # its first outputs from seed 0
    assert context_module._mixed(torch.tensor([1, 2, 3])).tolist() == [value % 2**63 for value in splitmix64]


def test_sparse_gradients_are_the_dense_ones():
    layer = ContextIsotonicLayer({"position": 50}, grid=GRID, sparse=True)
    dense = ContextIsotonicLayer({"position": 50}, grid=GRID)
    context = {"position": torch.tensor([3, 3, 9])}
    for model in (layer, dense):
        model(torch.tensor([0.1, 0.7, 1.2]), context).square().sum().backward()
    for name in ("rows", "bias"):
        grad = getattr(layer.tables[0], name).weight.grad
        assert grad.is_sparse
        torch.testing.assert_close(grad.to_dense(), getattr(dense.tables[0], name).weight.grad)


@pytest.mark.parametrize("kind", ["sum", "cross hashed", "projected"])
def test_compiled_it_is_the_same_function(kind):
    torch._dynamo.reset()
    layer, (logit, context) = random_layer(5, **KINDS[kind]), batch(5)
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(logit, context), layer(logit, context), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_exported_it_is_the_same_function(kind):
    layer, (logit, context) = random_layer(5, **KINDS[kind]), batch(5)
    exported = torch.export.export(layer, (logit, context)).module()
    torch.testing.assert_close(exported(logit, context), layer(logit, context), atol=2e-5, rtol=0)


def test_large_tables_compile_too(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(context_module, "_ALL", 0)
    layer, (logit, context) = random_layer(6), batch(6)
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(logit, context), layer(logit, context), atol=2e-5, rtol=0)


UNKNOWN = [-1, -2, -(10**9), 5, 6, 10**9]  # of 5 positions


def by_onnx(layer, logit, context, path):
    torch.onnx.export(layer, (logit,), path, kwargs={"context": context}, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)

    def run(logit, context):
        inputs = zip(session.get_inputs(), [logit, *context.values()], strict=True)
        return torch.from_numpy(session.run(None, {node.name: tensor.numpy() for node, tensor in inputs})[0])

    return run


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sum", "cross", "rank"])
@pytest.mark.parametrize("way", ["eager", "compiled", "compiled, distinct", "exported", "onnx"])
def test_an_id_outside_the_table_has_the_curve_of_minus_one(kind, way, tmp_path, monkeypatch):
    torch._dynamo.reset()
    if way == "compiled, distinct":
        monkeypatch.setattr(context_module, "_ALL", 0)
    layer = random_layer(8, **KINDS[kind]).eval().requires_grad_(False)
    logit, rows = torch.linspace(-3, 4, 2 * len(UNKNOWN)).view(-1, 2), len(UNKNOWN)
    known = {"position": torch.arange(rows) % 5, "device": torch.arange(rows) % 3}
    run = {
        "eager": lambda: layer,
        "compiled": lambda: torch.compile(layer, fullgraph=True),
        "compiled, distinct": lambda: torch.compile(layer, fullgraph=True),
        "exported": lambda: torch.export.export(layer, (logit, known)).module(),
        "onnx": lambda: by_onnx(layer, logit, known, tmp_path / "layer.onnx"),
    }[way]()
    torch.testing.assert_close(run(logit, known), layer(logit, known), atol=2e-5, rtol=0)
    asked = known | {"position": torch.tensor(UNKNOWN)}
    minus_one = known | {"position": torch.full((rows,), -1)}
    torch.testing.assert_close(run(logit, asked), obvious(layer, logit, minus_one), atol=2e-5, rtol=0)
    nothing = {name: torch.tensor(UNKNOWN) for name in CONTEXTS}
    torch.testing.assert_close(run(logit, nothing), layer.base(logit), atol=2e-5, rtol=0)


@pytest.mark.parametrize("outside", [-2, 5])
def test_eager_training_refuses_an_id_outside_the_table(outside):
    layer, context = random_layer(8), {"position": torch.tensor([0, outside]), "device": torch.tensor([0, 0])}
    with pytest.raises(InputError) as error:
        layer(torch.zeros(2), context)
    assert str(error.value) == OUTSIDE.format(outside)
    layer.eval()(torch.zeros(2), context)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ContextIsotonicLayer({}),
            "contexts: expected at least one feature, got none; use IsotonicLayer, or give projection",
        ),
        (
            lambda: ContextIsotonicLayer({"position": 0}),
            "contexts 'position': expected a positive integer, got 0; count its values",
        ),
        (
            lambda: ContextIsotonicLayer({"position": 2}, mode="both"),
            "mode: expected 'sum' or 'cross', got 'both'; 'sum' is the paper's",
        ),
        (
            lambda: ContextIsotonicLayer({"position": 2}, rank=0),
            "rank: expected a positive integer, got 0; or None to leave it out",
        ),
        (
            lambda: random_layer(0)(torch.zeros(1), {"device": torch.tensor([0])}),
            "context: expected ids for 'position', got keys ['device']; add them, or pass -1 for unknown",
        ),
        (
            lambda: random_layer(0)(torch.zeros(1), None),
            "context: expected a mapping from 'position' to ids, got None; add them, or pass -1 for unknown",
        ),
        (
            lambda: random_layer(0)(torch.zeros(2), {"position": ["top", "end"]}),
            "context 'position': expected integer ids, got ['top', 'end']; number the values from 0",
        ),
        (
            lambda: random_layer(0)(torch.zeros(2), {"position": torch.zeros(3, dtype=torch.long)}),
            "context 'position': expected ids of shape [2], got [3]; give one id per logit",
        ),
        (
            lambda: random_layer(0)(torch.zeros(2), {"position": torch.zeros(2, 1, dtype=torch.long)}),
            "context 'position': expected ids of shape [2], got [2, 1]; give one id per logit",
        ),
        (
            lambda: random_layer(0, projection=4)(
                torch.zeros(1), {name: torch.tensor([0]) for name in CONTEXTS} | {"vector": torch.zeros(1, 3)}
            ),
            "context 'vector': expected shape [batch, 4], got [1, 3]; reshape it",
        ),
        (
            lambda: random_layer(0)(torch.zeros(1), {"position": torch.tensor([0.0]), "device": torch.tensor([0])}),
            "context 'position': expected integer ids, got torch.float32; call .long()",
        ),
        (
            lambda: random_layer(0, projection=4)(torch.zeros(1), {name: torch.tensor([0]) for name in CONTEXTS}),
            "context: expected 'vector' for the projection, got keys ['device', 'position']; add it",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


def test_it_learns_the_curve_of_each_context():
    """Two positions distort the same relevance differently; the layer finds both distortions."""
    torch.manual_seed(0)
    relevance, position = torch.randn(20_000) * 1.5, torch.randint(0, 2, (20_000,))
    observed = torch.where(position == 0, relevance + 0.5, 0.5 * relevance - 1)
    label = torch.bernoulli(torch.sigmoid(observed))
    layer = ContextIsotonicLayer({"position": 2}, grid=Grid(-4, 4, 1))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            layer(relevance, {"position": position})[:, 0], label
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    points = torch.linspace(-2, 2, 9)
    for place, truth in ((0, points + 0.5), (1, 0.5 * points - 1)):
        learned = layer.prob(points, {"position": torch.full((9,), place)})[:, 0]
        np.testing.assert_allclose(learned.detach(), torch.sigmoid(truth), atol=0.04)
    assert math.isfinite(loss.item())
