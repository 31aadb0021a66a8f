"""distill: the student is monotone whatever its parameters, and says what its teacher says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isolayer import ContextIsotonicLayer, InputError
from isolayer.debias import DualHead
from isolayer.debias.distill import ShallowHead, distill

CONTEXTS = {"position": 10, "device": 3}


def rows(count, units, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logit = torch.randn(count, units, generator=generator) * 1.5 - 2
    return logit, {name: torch.randint(0, size, (count,), generator=generator) for name, size in CONTEXTS.items()}


def bent_teacher(units, std=0.3):
    torch.manual_seed(3)
    teacher = ContextIsotonicLayer(CONTEXTS, units=units)
    for table in teacher.tables:
        nn.init.normal_(table.rows.weight, std=std)
    return teacher


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 20))
def test_the_student_increases_strictly_for_any_parameters(seed, hidden):
    torch.manual_seed(seed)
    student = ShallowHead(CONTEXTS, units=2, hidden=hidden).double()
    for parameter in student.parameters():
        nn.init.normal_(parameter, std=2)
    z = torch.linspace(-8, 8, 200, dtype=torch.float64)
    ids = {name: torch.full((200,), int(torch.randint(-1, size, ()))) for name, size in CONTEXTS.items()}
    assert (student(z, ids).diff(dim=0) > 0).all()


def test_a_student_of_every_task_loses_less_than_a_tenth_of_a_percent():
    logit, context = rows(20_000, 3)
    teacher = bent_teacher(3)
    done = distill(teacher, CONTEXTS, logit, context, steps=600)
    assert max(done.auc_loss_percent) < 0.1
    assert max(done.mean_error) < 0.01
    fresh, where = rows(5_000, 3, seed=9)
    with torch.no_grad():
        gap = torch.sigmoid(done.student(fresh, where)) - torch.sigmoid(teacher(fresh, where))
    assert gap.abs().mean() < 0.01


def test_the_observed_path_of_a_dual_head_and_real_labels():
    torch.manual_seed(0)
    dual = DualHead(nn.Linear(4, 8), width=8, tasks=("click", "skip"), contexts=CONTEXTS, decreasing=("skip",))
    for table in dual.context_curves.tables:
        nn.init.normal_(table.rows.weight, std=0.2)
        nn.init.normal_(table.bias.weight, std=2.0)
    logit, context = rows(8_000, 2)
    with torch.no_grad():
        label = torch.bernoulli(torch.sigmoid(dual.context_curves(logit, context)))
    done = distill(dual.context_curves, CONTEXTS, logit, context, label=label, steps=400)
    assert np.abs(done.auc_loss_percent).max() < 0.3  # 1,600 labels say no more
    without = distill(dual.context_curves, CONTEXTS, logit, context, steps=400)
    assert without.auc_loss_percent != done.auc_loss_percent
    assert max(without.auc_loss_percent) < 0.1


def test_options_change_the_result_and_the_seed_repeats_it():
    logit, context = rows(2_000, 1)
    teacher = bent_teacher(1)

    def error(**options):
        return distill(teacher, CONTEXTS, logit, context, **({"steps": 60, "hidden": 4} | options)).mean_error

    base = error()
    assert base == error()
    assert base != error(seed=1)
    assert base != error(steps=80)
    assert base != error(hidden=5)


def test_an_unknown_context_is_taken():
    student = ShallowHead(CONTEXTS)
    for table in student.shifts:
        nn.init.normal_(table.weight[1:])
    z = torch.zeros(3)
    ids = torch.tensor([-1, 0, 1])
    out = student(z, {"position": ids, "device": torch.full((3,), -1)})
    assert len(set(out[:, 0].tolist())) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ShallowHead(CONTEXTS, hidden=0),
            "hidden: expected a positive integer, got 0; count from 1",
        ),
        (
            lambda: ShallowHead(CONTEXTS, lower=1, upper=0),
            "lower and upper: expected lower < upper, got 1 and 0; swap them",
        ),
        (
            lambda: distill(bent_teacher(1), CONTEXTS, torch.zeros(3), {}),
            "logit: expected shape [n, units] with n >= 10, got [3]; use more rows",
        ),
        (
            lambda: distill(bent_teacher(1), CONTEXTS, torch.zeros(10, 1), {}, label=torch.zeros(10)),
            "label: expected shape [10, 1], got [10]; one column per unit",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message
