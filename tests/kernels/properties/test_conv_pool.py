"""Convolutions and pools of lines, planes and volumes, with their gradients."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.properties.judge import absolute, judge, place
from kernels.properties.strategies import (
    Draw,
    Shape,
    flags,
    float_types,
    layouts,
    numbers,
    row,
    vector,
)
from onnxtrain.kernels.nn.conv import conv, conv_grad
from onnxtrain.kernels.nn.max_pool import max_pool, max_pool_grad
from onnxtrain.kernels.nn.pool import average_pool, average_pool_grad
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
three_types = st.sampled_from([DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16])


@dataclasses.dataclass
class Sizes:
    """A window on an image: sizes of the image, attributes, padding as torch takes it."""

    batch: int
    sizes: Shape
    attributes: dict[str, Any]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def padding(self) -> list[int]:
        pads, rank = self.attributes["pads"], self.rank
        return [n for axis in reversed(range(rank)) for n in (pads[axis], pads[axis + rank])]


@st.composite
def windows(draw: Draw, *, dilated: bool = True, half: bool = False) -> Sizes:
    """Any window that fits at least once into the padded image."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    kernel, strides = each(1, 3), each(1, 3)
    dilations = each(1, 2) if dilated else [1] * rank
    most = [(k + 1) // 2 if half else 2 for k in kernel]
    pads = [draw(st.integers(0, m)) for m in most * 2]
    sizes = each(1, 5 if rank < 3 else 4)
    for axis in range(rank):
        room = sizes[axis] + pads[axis] + pads[axis + rank]
        assume(room >= (kernel[axis] - 1) * dilations[axis] + 1)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if dilated:
        attributes["dilations"] = dilations
    return Sizes(draw(st.integers(0, 3)), tuple(sizes), attributes)


def convolved(x: Tensor, w: Tensor, window: Sizes, group: int) -> Tensor:
    """torch's convolution of the padded image."""
    a = window.attributes
    padded = F.pad(x, window.padding())
    return CONV[window.rank](padded, w, None, a["strides"], 0, a["dilations"], group)


@st.composite
def convolutions(draw: Draw) -> tuple[Sizes, Tensor, Tensor, int]:
    """A window, an image, a filter and the number of groups."""
    window = draw(windows())
    group, ins, outs = (draw(st.integers(1, 2)) for _ in range(3))
    x = draw(numbers((window.batch, group * ins, *window.sizes)))
    return window, x, draw(numbers((group * outs, ins, *window.attributes["kernel_shape"]))), group


@given(arguments=convolutions(), data=st.data(), dtype=three_types, layout=layouts)
def test_conv_grad(arguments: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    window, x, w, group = arguments
    dy = data.draw(numbers(convolved(x, w, window, group).shape))

    def reference(dy: Tensor, x: Tensor, w: Tensor, **_: Any) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in (x, w)]
        y = convolved(leaves[0], leaves[1], window, group)
        dx, dw = torch.autograd.grad(y, leaves, dy)
        return dx, dw, dy.sum((0, *range(2, dy.ndim)))

    case = row(
        "ConvGrad",
        [dy, x, w],
        reference,
        attributes={**window.attributes, "group": group},
        outputs=3,
    )
    judge(case, dtype, device, layout, exact=False, terms=absolute(reference))


@given(arguments=convolutions(), data=st.data())
def test_conv_grad_is_the_adjoint_of_conv(arguments: Any, data: Any, device: str) -> None:
    window, x, w, group = arguments
    x, w = x.to(device), w.to(device)
    options = {**window.attributes, "group": group}
    y = conv(x, w, **options)
    dy = data.draw(numbers(y.shape)).to(device)
    dx, dw, db = conv_grad(dy, x, w, wanted=(True, True, True), **options)
    assert dx is not None and dw is not None and db is not None
    expected = (dy * y).sum()
    torch.testing.assert_close((dx * x).sum(), expected)
    torch.testing.assert_close((dw * w).sum(), expected)
    torch.testing.assert_close(db.sum(), dy.sum())


@given(arguments=convolutions(), data=st.data(), dtype=three_types, layout=layouts)
def test_conv_transpose_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    window, image, w, group = arguments
    # A transposed convolution goes from the outputs of a convolution to its inputs.
    small = convolved(image, w, window, group)
    a = window.attributes
    extra = [
        (n + begin + end - (k - 1) * d - 1) % s
        for n, begin, end, k, d, s in zip(
            window.sizes,
            a["pads"][: window.rank],
            a["pads"][window.rank :],
            a["kernel_shape"],
            a["dilations"],
            a["strides"],
            strict=True,
        )
    ]
    x = data.draw(numbers(small.shape))

    def forward(x: Tensor, w: Tensor) -> Tensor:
        y = TRANSPOSED[window.rank](x, w, None, a["strides"], 0, 0, group, a["dilations"])
        return F.pad(F.pad(y, [n for e in reversed(extra) for n in (0, e)]), _cropped(window))

    def reference(dy: Tensor, x: Tensor, w: Tensor, **_: Any) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in (x, w)]
        dx, dw = torch.autograd.grad(forward(*leaves), leaves, dy)
        return dx, dw, dy.sum((0, *range(2, dy.ndim)))

    case = row(
        "ConvTransposeGrad",
        [data.draw(numbers(image.shape)), x, w],
        reference,
        attributes={**a, "group": group, "output_padding": extra},
        outputs=3,
    )
    judge(case, dtype, device, layout, exact=False, terms=absolute(reference))


def _cropped(window: Sizes) -> list[int]:
    return [-n for n in window.padding()]


def _places(window: Sizes, out: Shape) -> list[list[list[int]]]:
    """For each axis and output, the positions that its window covers, padding among them."""
    a, rank = window.attributes, window.rank
    dilations = a.get("dilations", [1] * rank)
    return [
        [
            [o * a["strides"][i] - a["pads"][i] + k * dilations[i] for k in range(kernel)]
            for o in range(out[i])
        ]
        for i, kernel in enumerate(a["kernel_shape"])
    ]


def _outputs(window: Sizes) -> Shape:
    a, rank = window.attributes, window.rank
    dilations = a.get("dilations", [1] * rank)
    return tuple(
        (n + a["pads"][i] + a["pads"][i + rank] - (a["kernel_shape"][i] - 1) * dilations[i] - 1)
        // a["strides"][i]
        + 1
        for i, n in enumerate(window.sizes)
    )


def _averages(x: Tensor, window: Sizes, include: int) -> Tensor:
    """The mean over each window, one output after the other."""
    out, rank = _outputs(window), window.rank
    lines = _places(window, out)
    a = window.attributes
    found = []
    for at in itertools.product(*map(range, out)):
        inside = [[p for p in lines[i][o] if 0 <= p < window.sizes[i]] for i, o in enumerate(at)]
        covered = [
            [p for p in lines[i][o] if -a["pads"][i] <= p < window.sizes[i] + a["pads"][i + rank]]
            for i, o in enumerate(at)
        ]
        part = x
        for i, places in enumerate(inside):
            part = part.index_select(2 + i, torch.tensor(places, dtype=torch.int64))
        count = 1
        for places in covered if include else inside:
            count *= len(places)
        found.append(part.flatten(2).sum(-1) / count)
    return torch.stack(found, -1).reshape(*x.shape[:2], *out)


@pytest.mark.parametrize("dilated", [False, True])
@given(data=st.data(), include=flags, channels=st.integers(1, 2), dtype=float_types, layout=layouts)
def test_average_pool_grad(
    dilated: bool,
    data: Any,
    include: int,
    channels: int,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    window = data.draw(windows(dilated=dilated, half=data.draw(st.booleans())))
    # Every window must see something, or its mean has no value.
    lines = _places(window, _outputs(window))
    for i, line in enumerate(lines):
        assume(all(any(0 <= p < window.sizes[i] for p in places) for places in line))
    shape = (window.batch, channels, *window.sizes)
    dy = data.draw(numbers((*shape[:2], *_outputs(window))))

    def reference(dy: Tensor, *_: Any, **__: Any) -> Tensor:
        leaf = torch.zeros(shape, dtype=dy.dtype, requires_grad=True)
        return torch.autograd.grad(_averages(leaf, window, include), leaf, dy)[0]

    case = row(
        "AveragePoolGrad",
        [dy, vector(*shape)],
        reference,
        attributes={**window.attributes, "count_include_pad": include},
        domain="",
        opset=19,
    )
    judge(case, dtype, device, layout, exact=False, terms=absolute(reference))
    options = {**window.attributes, "count_include_pad": include}
    x = data.draw(numbers(shape)).to(device)
    y = average_pool(x, **options)
    dx = average_pool_grad(dy.to(device), list(shape), out_shape=None, **options)
    torch.testing.assert_close((dy.to(device) * y).sum(), (dx * x).sum())


@given(data=st.data(), channels=st.integers(1, 2), order=flags, layout=layouts)
def test_max_pool_and_its_gradient(
    data: Any, channels: int, order: int, layout: int, device: str
) -> None:
    window = data.draw(windows())
    lines = _places(window, _outputs(window))
    for i, line in enumerate(lines):
        assume(all(any(0 <= p < window.sizes[i] for p in places) for places in line))
    shape = (window.batch, channels, *window.sizes)
    count = torch.Size(shape).numel()
    values = torch.randperm(count, generator=torch.Generator().manual_seed(count)).double()
    x = place(values.reshape(shape).to(device), layout)
    options = {**window.attributes, "storage_order": order}
    y, where = max_pool(x.tensor, wanted=(True, True), **options)
    assert where is not None
    flat = values.reshape(shape)
    if order:
        flat = flat.permute(0, 1, *reversed(range(2, flat.ndim)))
    assert torch.equal(flat.reshape(-1)[where.cpu()], y.cpu())
    dy = place(data.draw(numbers(y.shape)).to(device), layout)
    dx = max_pool_grad(dy.tensor, where, list(shape), out_shape=None, **options)
    expected = torch.zeros(count, dtype=torch.float64)
    row_major = torch.argsort(values)[y.cpu().long().reshape(-1)]
    expected.index_add_(0, row_major, dy.tensor.cpu().reshape(-1))
    torch.testing.assert_close(dx.cpu(), expected.reshape(shape))
    assert not x.touched() and not dy.touched()


@given(data=st.data(), count=st.integers(1, 5), dtype=float_types, layout=layouts)
def test_max_pool_grad_adds_up(
    data: Any, count: int, dtype: DataType, layout: int, device: str
) -> None:
    shape = (1, 2, 6)
    generator = torch.Generator().manual_seed(count)
    places = torch.randint(12, (1, 2, count), generator=generator)
    dy = data.draw(numbers(places.shape))

    def reference(dy: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
        total = dy.new_zeros(12)
        for value, place_ in zip(dy.reshape(-1), indices.reshape(-1).tolist(), strict=True):
            total[place_] += value
        return total.reshape(shape)

    inputs = [dy, fixed(places), vector(*shape)]
    case = row("MaxPoolGrad", inputs, reference, domain="", opset=19)
    judge(case, dtype, device, layout, exact=device == "cpu", terms=absolute(reference))


@given(wrong=st.one_of(st.integers(12, 2**40), st.integers(-(2**40), -2)))
def test_a_place_outside_of_the_image_is_named(wrong: int) -> None:
    places = torch.tensor([[[0, wrong]]])
    with pytest.raises(ValueError, match=f"index {wrong} is out of range"):
        max_pool_grad(torch.ones(1, 1, 2), places, [1, 2, 6], out_shape=None)
