"""Codecs for activations: what comes back, how exact it is, and how small it was between."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge, place
from kernels.properties.strategies import (
    Draw,
    Shape,
    float_types,
    layouts,
    numbers,
    row,
    shapes,
)
from onnxtrain.kernels import gist
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
wide_types = st.sampled_from([DataType.FLOAT, DataType.DOUBLE])
packed_types = st.sampled_from([DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE])


@st.composite
def activations(draw: Draw) -> Tensor:
    """Numbers of very different sizes, zeros among them."""
    shape = draw(shapes(0, 4))
    x = draw(numbers(shape))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    exponents = torch.randint(-9, 9, shape, generator=generator).double()
    return x * 2.0**exponents * draw(st.sampled_from([1.0, -1.0]))


@given(x=activations(), dtype=float_types, layout=layouts)
def test_binarize(x: Tensor, dtype: DataType, layout: int, device: str) -> None:
    dtype = DataType.FLOAT if dtype == DataType.BFLOAT16 else dtype
    case = row("GistBinarizeEncoder", [x], lambda x: x > 0)
    judge(case, dtype, device, layout)
    back = row(
        "GistBinarizeDecoder",
        [fixed(x > 0, DataType.BOOL)],
        lambda bits, to: bits.double(),
        attributes={"to": int(dtype)},
    )
    (decoded,) = judge(back, dtype, device, layout)
    assert decoded.dtype == to_torch(dtype)


def bits_of(x: Tensor) -> Tensor:
    """The signs as bytes, one bit after the other from the highest on."""
    flat = [int(v > 0) for v in x.reshape(-1).tolist()]
    flat += [0] * (-len(flat) % 8)
    words = [int("".join(map(str, flat[i : i + 8])), 2) for i in range(0, len(flat), 8)]
    return torch.tensor(words, dtype=torch.int64)


@given(x=activations(), layout=layouts)
def test_pack1(x: Tensor, layout: int, device: str) -> None:
    judge(row("GistPack1Encoder", [x], bits_of), DataType.FLOAT, device, layout)
    coded = place(gist.pack1(x.to(device)), layout)
    back = gist.unpack1(coded.tensor, to=int(DataType.FLOAT), out_shape=tuple(x.shape))
    assert torch.equal(back, (x > 0).float().to(device))
    flat = gist.unpack1(coded.tensor, to=int(DataType.FLOAT), out_shape=None)
    assert flat.shape == (8 * len(coded.tensor),)
    assert torch.equal(flat[: x.numel()], back.reshape(-1)) and not flat[x.numel() :].any()
    assert not coded.touched()


@given(shape=shapes(0, 4), count=st.integers(0, 60))
def test_bytes_that_cannot_be_the_shape_are_refused(shape: Shape, count: int) -> None:
    fits = math.ceil(math.prod(shape) / 8) == count
    coded = torch.zeros(count, dtype=torch.uint8)
    if fits:
        assert gist.unpack1(coded, to=1, out_shape=shape).shape == shape
    else:
        with pytest.raises(ValueError, match=f"{count} bytes of bits do not say"):
            gist.unpack1(coded, to=1, out_shape=shape)


def rounded(x: Tensor, bits: int, smallest: int, largest: float) -> Tensor:
    """The nearest number with some bits behind the first one, ties to even."""
    exponent = torch.frexp(x).exponent - 1
    step = 2.0 ** (exponent.clamp(min=smallest) - bits).double()
    near = torch.round(x / step) * step
    return torch.where(x.isinf(), x, near.clamp(-largest, largest))


@given(x=activations(), dtype=packed_types, layout=layouts)
def test_pack8(x: Tensor, dtype: DataType, layout: int, device: str) -> None:
    kind = to_torch(dtype)
    source = place(x.to(kind).to(device), layout)
    coded = gist.pack8(source.tensor)
    assert coded.dtype == torch.uint8 and coded.shape == x.shape
    back = gist.unpack8(place(coded, layout).tensor, to=int(dtype))
    expected = rounded(x.to(kind).double(), 2, -14, gist.LARGEST_BYTE)
    assert back.dtype == kind
    assert torch.equal(back.double().cpu(), expected)
    assert torch.equal(gist.pack8(back), coded)
    assert not source.touched()


@given(x=activations(), dtype=wide_types, layout=layouts)
def test_pack16(x: Tensor, dtype: DataType, layout: int, device: str) -> None:
    judge(row("GistPack16Encoder", [x], lambda x: x), dtype, device, layout)
    coded = gist.pack16(place(x.to(to_torch(dtype)).to(device), layout).tensor)
    back = gist.unpack16(place(coded, layout).tensor, to=int(dtype))
    assert back.dtype == to_torch(dtype)
    assert torch.equal(back.half(), coded)


@given(x=activations(), layout=layouts)
def test_pack_msfp15(x: Tensor, layout: int, device: str) -> None:
    source = place(x.float().to(device), layout)
    coded = gist.pack_msfp15(source.tensor)
    assert coded.dtype == torch.uint8 and coded.shape == x.shape
    back = gist.unpack_msfp15(place(coded, layout).tensor, to=int(DataType.FLOAT)).cpu()
    flat, found = x.float().reshape(-1).double(), back.reshape(-1).double()
    count = len(flat)
    if count < gist.TILE:
        assert torch.equal(found, rounded(flat, 2, -14, gist.LARGEST_BYTE))
    for tile in range(count // gist.TILE):
        last = tile == count // gist.TILE - 1
        part = slice(tile * gist.TILE, None if last else (tile + 1) * gist.TILE)
        largest = 2.0 ** math.floor(math.log2(max(float(flat[part].abs().max()), 2.0**-126)))
        # Half a step, and a whole one at the top, where there is no next number.
        error = (flat[part] - found[part]).abs()
        assert bool(
            (error <= largest / 64 * torch.where(flat[part].abs() >= largest * 1.96875, 2, 1)).all()
        )
    again = gist.unpack_msfp15(gist.pack_msfp15(back.to(device)), to=int(DataType.FLOAT))
    assert torch.equal(again.cpu(), back)
    assert not source.touched()


@given(data=st.data(), shape=shapes(1, 3))
def test_signs_survive_every_codec(data: Any, shape: Shape, device: str) -> None:
    x = data.draw(numbers(shape)).sign().float().to(device)
    for code, decode in (
        (gist.pack8, gist.unpack8),
        (gist.pack16, gist.unpack16),
        (gist.pack_msfp15, gist.unpack_msfp15),
    ):
        assert torch.equal(decode(code(x), to=int(DataType.FLOAT)), x)
