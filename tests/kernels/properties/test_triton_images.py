"""Triton kernels over images: channels first or last, any number of them, groups of any size."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.fast import module, near
from kernels.properties.beside import Tensor, as_drawn, beside, drawn, kinds
from kernels.properties.strategies import flags
from onnxtrain.kernels.nn import group_norm

functional = torch.nn.functional
EPSILON, ALPHA = 0.01, 1.5
sides = st.tuples(st.integers(1, 6), st.integers(1, 6))


@pytest.fixture(params=["one group", "all groups"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes all images in tiles of a few elements, channels of groups apart or together."""
    monkeypatch.setattr(group_norm, "_is_fast", lambda *tensors: True)
    each, last = module("group_norm"), module("group_norm_last")
    for name, size in {"TILE": 16, "MOST_CHANNELS": 4}.items():
        monkeypatch.setattr(each, name, size)
    smallest = 1 if request.param == "all groups" else 1 << 30
    for name, size in {"SMALLEST": smallest, "ROW": 4, "TILE": 16, "COLLECTED": 8}.items():
        monkeypatch.setattr(last, name, size)
    monkeypatch.setattr(last, "_cut", last._cut.__wrapped__)


@given(
    samples=st.integers(1, 3),
    groups=st.integers(1, 4),
    size=st.integers(1, 9),
    sides=sides,
    last=st.booleans(),
    kinds_of=st.tuples(kinds, kinds),
    activation=st.sampled_from(["none", "relu", "swish"]),
    data=st.data(),
)
@pytest.mark.usefixtures("together")
def test_group_normalization(
    samples: int,
    groups: int,
    size: int,
    sides: tuple[int, int],
    last: bool,
    kinds_of: tuple[torch.dtype, torch.dtype],
    activation: str,
    data: Any,
) -> None:
    """Also of one channel each, one group of all, one pixel, and vectors in another type."""
    channels, (kind, other) = groups * size, kinds_of
    x, dy = (
        as_drawn(data.draw(drawn(samples, channels, *sides, kind=kind)), last) for _ in range(2)
    )
    x = x * 2 + 3
    scale, bias = (data.draw(drawn(channels, kind=other)) for _ in range(2))
    forms = {"num_groups": groups, "activation": activation, "alpha": ALPHA, "epsilon": EPSILON}

    formulas = Formulas(groups, activation)
    y, mean, inverse = beside(
        lambda: group_norm.group_normalized(x, scale, bias, **forms),
        formulas.value,
        (x, scale, bias),
        (kind, torch.float32, torch.float32),
    )
    shift = None if activation == "none" and data.draw(flags) else bias
    dx, *_ = beside(
        lambda: group_norm.group_normalized_grad(dy, x, scale, mean, inverse, shift, **forms),
        formulas.gradients,
        (dy, x, scale, bias),
        (kind, other, other),
        terms=formulas.terms,
    )
    assert y.stride() == dx.stride() == x.stride()


@dataclasses.dataclass(frozen=True)
class Formulas:
    """Normalized groups and an activation, as sums over rows."""

    groups: int
    activation: str

    def value(self, x: Tensor, scale: Tensor, bias: Tensor) -> list[Tensor]:
        mean, inverse = self.statistics(x)
        y = self.activated(self.normal(x) * of_channels(scale) + of_channels(bias))
        return [y, mean[..., 0], inverse[..., 0]]

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.reshape(x.shape[0], self.groups, -1)
        variance, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
        return mean, 1 / (variance + EPSILON).sqrt()

    def normal(self, x: Tensor) -> Tensor:
        mean, inverse = self.statistics(x)
        rows = x.reshape(x.shape[0], self.groups, -1)
        return ((rows - mean) * inverse).view(x.shape)

    def activated(self, y: Tensor) -> Tensor:
        if self.activation == "none":
            return y
        return torch.relu(y) if self.activation == "relu" else y * torch.sigmoid(ALPHA * y)

    def gradients(
        self, dy: Tensor, x: Tensor, scale: Tensor, bias: Tensor, sign: int = -1
    ) -> list[Tensor]:
        """A positive sign gives the size of the terms."""
        normal = self.normal(x)
        line = (normal * of_channels(scale) + of_channels(bias)).requires_grad_()
        (before,) = torch.autograd.grad(self.activated(line), line, dy)
        inverse = self.statistics(x)[1]
        if sign > 0:
            before, normal, scale = before.abs(), normal.abs(), scale.abs()
        inner, rows = (
            t.reshape(x.shape[0], self.groups, -1) for t in (before * of_channels(scale), normal)
        )
        means = inner.mean(-1, keepdim=True), (inner * rows).mean(-1, keepdim=True)
        dx = inverse * (inner + sign * means[0] + sign * rows * means[1])
        return [dx.view(x.shape), (before * normal).sum((0, 2, 3)), before.sum((0, 2, 3))]

    def terms(self, *given: Tensor) -> list[Tensor]:
        return self.gradients(*given, sign=1)


def of_channels(vector: Tensor) -> Tensor:
    return vector[:, None, None]


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 8), st.integers(1, 9)),
    kind=kinds,
    form=st.sampled_from(["none", "tanh", "quick"]),
    last=st.booleans(),
    within=st.booleans(),
    data=st.data(),
)
def test_gelu_of_images(
    shape: tuple[int, ...],
    kind: torch.dtype,
    form: str,
    last: bool,
    within: bool,
    data: Any,
) -> None:
    """However channels lie, and into the memory of what they were made of."""
    quick = module("pointwise")
    x, dy = (as_drawn(data.draw(drawn(*shape, kind=kind)), last) for _ in range(2))

    def value(x: Tensor) -> Tensor:
        if form == "quick":
            return x * torch.sigmoid(1.5 * x)
        return functional.gelu(x, approximate=form)

    def slope(dy: Tensor, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(value(x), x, dy)[0]

    (y,) = beside(lambda: quick.gelu(x, None, form, 1.5), value, (x,), kind)
    own = dy.clone(memory_format=torch.preserve_format) if within else None
    dx = quick.gelu_grad(dy if own is None else own, x, None, form, 1.5, own)
    near(dx, slope(dy.float(), x.float()).to(kind), slope(dy.double(), x.double()))
    assert (own is None or dx is own) and y.stride() == x.stride()


@given(rows=st.integers(1, 9), columns=st.integers(1, 700), kind=kinds, data=st.data())
def test_gelu_with_a_bias(rows: int, columns: int, kind: torch.dtype, data: Any) -> None:
    """In rows of any length, of which a program has several or a part."""
    x, dy = (data.draw(drawn(rows, columns, kind=kind)) for _ in range(2))
    bias = data.draw(drawn(columns, kind=kind))

    def slope(dy: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        total = (x + bias).requires_grad_()
        return torch.autograd.grad(functional.gelu(total), total, dy)[0]

    quick = module("pointwise")
    beside(
        lambda: quick.gelu(x, bias, "none"),
        lambda x, bias: functional.gelu(x + bias),
        (x, bias),
        kind,
    )
    beside(lambda: quick.gelu_grad(dy, x, bias, "none"), slope, (dy, x, bias), kind)
