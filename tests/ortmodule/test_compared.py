"""Results of a program against those of torch."""

import math

import pytest
import torch
from torch import nn

from onnxtrain import ORTModule
from onnxtrain.errors import GraphError
from onnxtrain.ortmodule import compared
from onnxtrain.ortmodule.layout import Layout
from ortmodule.modules import images, rows


def test_norms_are_those_of_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "AT_ONCE", 4)
    ours, theirs = torch.randn(3, 5).t(), torch.randn(3, 5).t()
    gap, size = compared._norms(ours, theirs)
    assert math.isclose(gap, (ours.double() - theirs.double()).norm(), rel_tol=1e-12)
    assert math.isclose(size, theirs.double().norm(), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs", "fine"),
    [
        ([1.0, math.inf, math.nan], [1.0005, math.inf, math.nan], True),
        ([1.0, -math.inf], [1.0, math.inf], False),
        ([1.0, math.nan], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, math.nan], False),
        ([1.0, 2.0], [1.0, 2.01], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1e-3, 0.0], [0.0, 0.0], False),
    ],
)
def test_what_is_near(ours: list[float], theirs: list[float], fine: bool) -> None:
    given = torch.tensor(ours), torch.tensor(theirs)
    assert compared._is_far(*given) is not fine
    if not fine:
        with pytest.raises(GraphError, match="result 0 of the exported graph differs from torch's"):
            compared._refuse_far("result 0", *given, given[1])


def test_kinds_are_compared_always() -> None:
    message = r"float32\[2\] in the exported graph, and float64\[2\] in torch"
    with pytest.raises(GraphError, match=message):
        compared._refuse_kind("result 0", torch.ones(2), torch.ones(2).double())


def test_autocast_rounds_to_its_type() -> None:
    ours, theirs = torch.ones(2), torch.full((2,), 1.05)
    with torch.autocast("cpu", torch.bfloat16):
        assert not compared._is_far(ours, theirs)
    assert compared._is_far(ours, theirs)


def test_chaos_is_not_taken_for_a_mistake() -> None:
    ours, theirs = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    compared._refuse_far("result 0", ours, theirs, torch.tensor([-1.0, 1.0]))
    with pytest.raises(GraphError, match="differs"):
        compared._refuse_far("result 0", ours, theirs, torch.tensor([1.0, 1.1]))


def test_other_roundings_of_a_call_leave_the_module_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = rows(3)
    layout, inputs = Layout.of(((x,), {}))
    torchs = [compared._by_torch(module, layout, inputs, noise) for noise in (0.0, 2**-10)]
    (first,), (second,) = (each.results for each in torchs)
    assert 1e-4 < (first - second).norm() / first.norm() < 1e-2
    assert torchs[0].moved == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)


@pytest.mark.usefixtures("strict")
def test_buffers_near_zero() -> None:
    """What normalizes what is normalized: new means are roundings of zero."""
    module = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    ORTModule(module)(images(4)).sum().backward()
    assert module[1].running_mean.abs().max() < 1e-6
