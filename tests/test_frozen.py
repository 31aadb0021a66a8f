"""FrozenCurves: the same function as the layer or the curves they were made from, in every way to run them."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from curve_examples import fitted, questions
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isolayer import ContextIsotonicLayer, Curves, Grid, Histogram, InputError, IsotonicLayer
from isolayer.nn.frozen import FrozenCurves

GRID = Grid(lower=-3, upper=2, step=0.25)
CONTEXTS = {"position": 4, "device": 3}


def a_layer(seed=0, *, contexts=CONTEXTS, units=3, dtype=torch.float64, **options):
    layer = ContextIsotonicLayer(contexts, units=units, grid=GRID, **options) if contexts else None
    layer = layer or IsotonicLayer(units, grid=GRID, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        for table in getattr(layer, "tables", ()):
            table.rows.weight[0] = table.bias.weight[0] = 0  # the row of unknown ids
    return layer.to(dtype).eval()


def a_batch(seed=0, *, rows=200, units=3, dtype=torch.float64):
    """Logits at knots, between them, far outside and infinite; ids from -1 to the end of each table."""
    generator = torch.Generator().manual_seed(seed)
    logit = torch.randn(rows, units, generator=generator, dtype=dtype) * 4
    edges = torch.tensor([*GRID.knots, -1e30, 1e30, -np.inf, np.inf, -99.0, 99.0], dtype=dtype)
    logit[: len(edges)] = edges.unsqueeze(1)
    ids = {name: torch.randint(-1, size, (rows,), generator=generator) for name, size in CONTEXTS.items()}
    return logit, ids


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["clip", "extend"]), st.sampled_from(["sum", "cross", None]))
def test_they_are_the_layer(seed, extrapolation, mode):
    options = {"extrapolation": extrapolation} | ({"mode": mode} if mode else {"contexts": {}})
    layer, (logit, context) = a_layer(seed, **options), a_batch(seed)
    frozen = FrozenCurves.from_layer(layer)
    expected = layer(logit, context) if mode else layer(logit)
    torch.testing.assert_close(frozen(logit, context), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("contexts", [(), ("device",), ("device", "position")])
def test_they_are_the_curves(contexts):
    curves, data = fitted(contexts), questions()
    context = {name: data[name] for name in contexts} or None
    frozen = FrozenCurves.from_curves(curves, dtype=torch.float64)
    ids = {"curve": torch.tensor(curves.rows_of(context, 500))} if contexts else None
    answer = frozen(torch.tensor(data["score"]), ids)[:, 0].numpy()
    np.testing.assert_allclose(answer, curves.decision_function(data["score"], context), rtol=0, atol=1e-10)


def test_several_units_of_fitted_curves_share_their_contexts_by_id():
    rng = np.random.default_rng(0)
    score, label = rng.normal(size=(400, 2)), rng.random((400, 2)) < 0.5
    ids = {"position": rng.integers(0, 4, 400), "device": rng.integers(0, 2, 400)}  # device 2 is never seen
    units = [
        Curves.from_histogram(Histogram.from_arrays(score[:, unit], label[:, unit], ids, grid=GRID))
        for unit in range(2)
    ]
    frozen = FrozenCurves.from_curves(units, CONTEXTS, dtype=torch.float64)
    asked = {"position": rng.integers(-1, 4, 400), "device": rng.integers(-1, 3, 400)}
    answer = frozen(torch.tensor(score), {name: torch.tensor(column) for name, column in asked.items()}).numpy()
    for unit, curves in enumerate(units):
        np.testing.assert_allclose(answer[:, unit], curves.decision_function(score[:, unit], asked), rtol=0, atol=1e-10)


def test_an_id_outside_its_table_has_the_curve_of_minus_one():
    layer, (logit, _) = a_layer(1), a_batch(1, rows=60)
    frozen = FrozenCurves.from_layer(layer)
    device = torch.arange(60) % 3
    unknown = frozen(logit, {"position": torch.full((60,), -1), "device": device})
    for outside in (4, 5, 10**9, -2, -(10**9)):
        answer = frozen(logit, {"position": torch.full((60,), outside), "device": device})
        assert torch.equal(answer, unknown), outside
    nothing = frozen(logit, {name: torch.full((60,), 99) for name in CONTEXTS})
    torch.testing.assert_close(nothing, layer.base(logit))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64])
def test_ids_of_any_integer_type_have_the_same_curve(dtype):
    contexts = {"position": 100, "device": 3}  # more combinations than a byte can number
    layer, (logit, _) = a_layer(3, contexts=contexts), a_batch(3)
    ids = {name: torch.arange(200) % size for name, size in contexts.items()}
    narrow = {name: column.to(dtype) for name, column in ids.items()}
    for model in (FrozenCurves.from_layer(layer), layer):
        assert torch.equal(model(logit, narrow), model(logit, ids))


def test_every_context_at_once_is_each_context_alone():
    frozen, (logit, _) = FrozenCurves.from_layer(a_layer(2)), a_batch(2, rows=50)
    every = frozen.at_every_context(logit)
    assert every.shape == (50, 12, 3)
    for place in range(12):
        ids = {"position": torch.full((50,), place // 3), "device": torch.full((50,), place % 3)}
        assert torch.equal(every[:, place], frozen(logit, ids))
    plain = FrozenCurves.from_layer(a_layer(2, contexts={}))
    assert torch.equal(plain.at_every_context(logit)[:, 0], plain(logit))


@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_not_a_number_is_one_elements_own_affair_and_infinity_is_an_end(extrapolation):
    layer = a_layer(3, contexts={}, extrapolation=extrapolation)
    x = torch.tensor([[np.nan, 0.0, 1.0], [np.inf, -np.inf, 0.0]], dtype=torch.float64)
    answer = FrozenCurves.from_layer(layer)(x)
    torch.testing.assert_close(answer, layer(x), equal_nan=True)
    assert answer.isnan().tolist() == [[True, False, False], [False, False, False]]


def test_a_gradient_reaches_the_logit_and_nothing_can_learn():
    layer, (logit, context) = a_layer(4, extrapolation="extend"), a_batch(4)
    logit = logit[40:].clone().requires_grad_()
    context = {name: ids[40:] for name, ids in context.items()}
    frozen = FrozenCurves.from_layer(layer)
    (ours,) = torch.autograd.grad(frozen(logit, context).sum(), logit)
    (theirs,) = torch.autograd.grad(layer(logit, context).sum(), logit)
    torch.testing.assert_close(ours, theirs)
    assert not list(frozen.parameters())


def test_they_are_a_copy_that_moves_and_loads_as_modules_do():
    layer, (logit, context) = a_layer(5), a_batch(5)
    frozen = FrozenCurves.from_layer(layer)
    before = frozen(logit, context)
    with torch.no_grad():
        layer.base.weight.add_(1)
    assert torch.equal(frozen(logit, context), before)
    other = FrozenCurves.from_layer(layer)
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(logit, context), before)
    single = copy.deepcopy(frozen).float()(logit.float(), context)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double()[40:], before[40:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_compiled_and_exported_they_are_the_same(extrapolation):
    torch._dynamo.reset()
    frozen = FrozenCurves.from_layer(a_layer(6, dtype=torch.float32, extrapolation=extrapolation))
    logit, context = a_batch(6, dtype=torch.float32)
    logit[40, 0] = np.nan
    context["position"][50:60] = 77
    expected = frozen(logit, context)
    compiled = torch.compile(frozen, fullgraph=True)
    torch.testing.assert_close(compiled(logit, context), expected, atol=1e-5, rtol=1e-5, equal_nan=True)
    exported = torch.export.export(frozen, (logit, context)).module()
    torch.testing.assert_close(exported(logit, context), expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_they_take_batches_of_any_size(strict):
    frozen, (logit, context) = FrozenCurves.from_layer(a_layer(6)), a_batch(6)
    some, any_size = {name: ids[:50] for name, ids in context.items()}, {0: torch.export.Dim.DYNAMIC}
    sizes = (any_size, dict.fromkeys(context, any_size))
    exported = torch.export.export(frozen, (logit[:50], some), dynamic_shapes=sizes, strict=strict).module()
    torch.testing.assert_close(exported(logit, context), frozen(logit, context))


@pytest.mark.parametrize("make", [a_layer, lambda: a_layer(contexts={}), lambda: FrozenCurves.from_layer(a_layer())])
def test_logits_may_lie_in_memory_by_column(make):
    model, (logit, context) = make(), a_batch()
    by_column = logit.T.contiguous().T
    given_ids = {} if isinstance(model, IsotonicLayer) else {"context": context}
    assert torch.equal(model(by_column, **given_ids), model(logit, **given_ids))


def test_ids_that_no_signed_integer_holds_are_refused():
    layer = ContextIsotonicLayer({"item": 1000}, hash_buckets=64)
    ids = torch.tensor([3, 2**63 + 5], dtype=torch.uint64)
    with pytest.raises(InputError, match="expected ids below 2\\*\\*63"):
        layer(torch.zeros(2), {"item": ids})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_gives_the_same_logits(tmp_path):
    frozen = FrozenCurves.from_layer(a_layer(7, dtype=torch.float32, extrapolation="extend"))
    logit, context = a_batch(7, dtype=torch.float32)
    context["position"][50:60] = 77
    path = tmp_path / "frozen.onnx"
    torch.onnx.export(frozen, (logit,), path, kwargs={"context": context}, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    inputs = [logit, *context.values()]
    (answer,) = session.run(
        None, {node.name: tensor.numpy() for node, tensor in zip(session.get_inputs(), inputs, strict=True)}
    )
    np.testing.assert_allclose(answer, frozen(logit, context).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: FrozenCurves.from_layer(ContextIsotonicLayer({"advertiser": 1_100_000}, rank=1)),
            "layer: expected at most 1,065,220 curves, got 1,100,001; keep the layer itself",
        ),
        (
            lambda: FrozenCurves.from_layer(ContextIsotonicLayer({"advertiser": 9}, hash_buckets=7)),
            "layer: expected at most 1,065,220 curves, got any number; keep the layer itself",
        ),
        (
            lambda: FrozenCurves(torch.zeros(2, 127), grid=Grid()),
            "values: expected shape [units, buckets] with 126 buckets, got [2, 127]; leave out the knot below the grid",
        ),
        (
            lambda: FrozenCurves(torch.zeros(2, 1, 126), grid=Grid(), contexts={"position": 2}),
            "rows: expected shape [3, units], got [2, 1]; give one row per combination of ids from -1",
        ),
        (
            lambda: FrozenCurves.from_curves([Curves.identity(Grid()), Curves.identity(GRID)]),
            "curves: expected one or more with the same grid, extrapolation and contexts, got 2; use the same settings",
        ),
        (
            lambda: FrozenCurves.from_curves([fitted(("device",))] * 2),
            "contexts: expected the number of ids of each column, got none; give {name: size}",
        ),
        (
            lambda: FrozenCurves.from_layer(a_layer())(torch.zeros(1, 3)),
            "context: expected a mapping from 'position' to ids, got None; add them, or pass -1 for unknown",
        ),
        (
            lambda: FrozenCurves.from_layer(a_layer())(torch.zeros(1, 3), {"position": ["top"]}),
            "context 'position': expected integer ids, got ['top']; number the values from 0",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


def test_they_live_in_serving_models():
    model = nn.Sequential(nn.Linear(2, 3), FrozenCurves.from_layer(IsotonicLayer(3)))
    assert model(torch.zeros(4, 2)).shape == (4, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_in_half_precision_only_the_answer_is_rounded(dtype, extrapolation):
    """Steep curves far from 0: there intercept and slope cancel, and half precision cannot tell buckets apart."""
    grid = Grid(lower=-17, upper=8, step=0.2)
    values = torch.linspace(-17, 8, grid.buckets).mul(3).add(9).repeat(2, 1) + torch.tensor([[0.0], [1.0]])
    frozen = FrozenCurves(values, grid=grid, extrapolation=extrapolation)
    logit = torch.linspace(-20, 11, 999).unsqueeze(1).repeat(1, 2).to(dtype)
    want = frozen(logit.float()).to(dtype)
    for half in (copy.deepcopy(frozen).to(dtype), nn.Sequential(copy.deepcopy(frozen)).to(dtype)):
        assert torch.equal(half(logit), want)
        assert half(logit).dtype == dtype
    exported = torch.export.export(copy.deepcopy(frozen).to(dtype), (logit,), strict=False).module()
    assert torch.equal(exported(logit), want)
    compiled = torch.compile(copy.deepcopy(frozen).to(dtype), dynamic=True)(logit)  # may add and multiply in one step
    torch.testing.assert_close(compiled, want, rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_made_in_half_precision_are_in_single(dtype):
    curves = fitted(("device",))
    frozen, exact = FrozenCurves.from_curves(curves, dtype=dtype), FrozenCurves.from_curves(curves)
    for name, table in exact.state_dict().items():
        assert torch.equal(frozen.state_dict()[name], table)
    layer = a_layer(3, contexts={}, dtype=torch.float32).to(dtype)
    logit = torch.linspace(-4, 3, 300).unsqueeze(1).repeat(1, 3).to(dtype)
    torch.testing.assert_close(FrozenCurves.from_layer(layer)(logit), layer(logit), rtol=1e-2, atol=1e-2)


def test_double_precision_follows_the_module():
    frozen = FrozenCurves.from_curves(fitted(())).double()
    assert frozen.slope.dtype == frozen.intercept.dtype == frozen.shift.dtype == torch.float64
    assert frozen.to("meta").slope.device.type == "meta"
