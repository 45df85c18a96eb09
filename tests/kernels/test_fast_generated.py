"""Generated kernels beside the operators that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.fast import in_two_types, module
from onnxtrain.kernels.activation.rectifier import relu_grad
from onnxtrain.kernels.math.chain import elementwise, parsed

CHAINS = [
    "Add 0 1; Relu 3; Mul 4 2",
    "Sum 0 1 2; ReluGrad 3 0",
    "Abs 0; Sqrt 3; Div 1 4; Sub 5 2",
    "Sigmoid 0; SigmoidGrad 1 3; TanhGrad 4 3; Mul 5 2",
    "QuickGelu:1.0 0; QuickGeluGrad:1.5 1 3; Neg 4; Add 5 2",
    "Neg 0; Exp 3; Reciprocal 4; Mul 5 1; Add 6 2",
    "Less 0 2; Greater 0 1; Or 3 4; Not 5; Where 6 1 0; Mul 7 2",
    "GreaterOrEqual 0 2; LessOrEqual 0 1; And 3 4; Where 5 2 0",
]
FORMS = ["full", "last", "single", "turned", "rows", "holes", "spread"]
IMAGES = ["channels_last", "mixed", "channel"]


def inputs(form: str, device: str, dtype: str) -> list[Tensor]:
    shape = (2, 3, 10, 37)
    shapes = {
        "last": [shape, shape, (10, 37)],
        "single": [shape, shape, (1, 1)],
        "turned": [(2, 10, 3, 48), (2, 10, 3, 48), (10, 1, 48)],
        "rows": [shape, (2, 3, 1, 1), (3, 10, 1)],
        "holes": [(2, 3, 10, 74)] * 3,
        "channel": [shape, shape, (2, 3, 1, 1)],
        "spread": [(2, 1, 10, 1), (1, 3, 1, 37), (10, 37)],
    }
    kind = getattr(torch, dtype)
    found = [torch.randn(s).to(device, kind) for s in shapes.get(form, [shape] * 3)]
    if form in IMAGES:
        found[:2] = (x.contiguous(memory_format=torch.channels_last) for x in found[:2])
    if form == "channels_last":
        found[2] = found[2].contiguous(memory_format=torch.channels_last)
    if form == "turned":
        found = [x.transpose(-3, -2) for x in found]
    if form == "holes":
        found[:2] = (x[..., ::2] for x in found[:2])
        found[2] = found[2][..., 37:]
    return found


@in_two_types
@pytest.mark.parametrize("form", [*FORMS, *IMAGES])
@pytest.mark.parametrize("steps", CHAINS)
def test_chains(device: str, dtype: str, form: str, steps: str) -> None:
    given = inputs(form, device, dtype)
    ours = module("generated").run(parsed(steps), given)
    exact = elementwise(*(x.cpu().double() for x in given), steps=steps)
    rounded = elementwise(*(x.cpu() for x in given), steps=steps)
    assert ours.dtype == given[0].dtype and ours.shape == exact.shape
    assert ours.stride() == torch.empty_like(given[0].expand(ours.shape)).stride()
    scale = exact.norm()
    error, allowed = ((v.cpu().double() - exact).norm() / scale for v in (ours, rounded))
    assert error <= 2 * allowed + 2.0**-22


@pytest.mark.gpu
def test_what_it_takes() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    takes = module("generated").takes
    assert takes([x, x.t()]) and takes([x[:, :1], x[:1]]) and takes([x, x[0, 0]])
    assert not takes([x, x.double()]) and not takes([x[0], x[0]])
    assert not takes([x, x.clone().requires_grad_()])


@pytest.mark.parametrize("most", [24, 25])
def test_the_farthest_element(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are found in 32 bits; what lies as the output does needs none."""
    monkeypatch.setattr(module("generated"), "FARTHEST", most)
    layout = module("generated").layout_of.__wrapped__
    plain = ((2, 3, 4), (12, 4, 1))
    for other in (((2, 3, 4), (1, 2, 6)), ((2, 3, 1), (12, 4, 1))):
        found = layout((plain, other))
        assert found.group and found.near == (most > 24)
    wide = layout((((2, 2), (24, 1)), ((2, 2), (2, 1))))
    assert not wide.near
    assert not layout((plain, plain)).group


@pytest.mark.parametrize(("width", "group"), [(48, 8), (36, 4), (37, 1)])
def test_groups_end_where_axes_do(width: int, group: int) -> None:
    turned = ((2, 3, 10, width), (30 * width, width, 3 * width, 1))
    found = module("generated").layout_of((turned, ((10, width), (width, 1))))
    assert found.group == (group,) and found.like == 0


def test_not_a_number_stays_one() -> None:
    x = torch.tensor([float("nan"), -1.0, 2.0])
    steps = "Neg 0; Neg 1; Relu 2"
    found = module("generated").run(parsed(steps), [x])
    assert found.isnan().tolist() == [True, False, False] and found[1:].tolist() == [0.0, 2.0]


def test_gradients_pass_where_a_relu_made_nothing_of_its_input() -> None:
    x, dy = torch.tensor([float("nan"), -1.0, 0.0, 2.0]), torch.tensor([3.0, 4.0, 5.0, 6.0])
    wanted = relu_grad(dy, x).tolist()
    assert wanted == [3.0, 0.0, 0.0, 6.0]
    assert elementwise(dy, x, steps="ReluGrad 0 1").tolist() == wanted
    assert module("generated").run(parsed("ReluGrad 0 1"), [dy, x]).tolist() == wanted


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="'Loop' is no operator of a chain"):
        elementwise(torch.ones(3), steps="Loop 0")
