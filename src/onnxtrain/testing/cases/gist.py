"""Rows for the codecs of activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, booleans, given, integers, normal, only, shape_input
from onnxtrain.types import BOOL, FLOATS, MS, OWN, DataType

DOUBLE, FLOAT, FLOAT16, UINT8 = (
    DataType.DOUBLE,
    DataType.FLOAT,
    DataType.FLOAT16,
    DataType.UINT8,
)
SPECIAL = given([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-30, -3.0, 2.0, 1e30])
SHAPES = {
    "scalar": (),
    "empty": (0,),
    "empty_rows": (3, 0),
    "few": (5,),
    "tile": (8,),
    "tile_and_rest": (2, 6),
    "odd": (3, 7),
    "last_axis": (2, 3, 16),
}


def _byte_value(code: Tensor) -> Tensor:
    """(-1)^s·1.m·2^(e-15), or 0.m·2^-14 for e = 0."""
    sign = 1.0 - 2.0 * (code >> 7)
    exponent, mantissa = (code >> 2) & 31, (code & 3).to(torch.float64) / 4
    usual = (1 + mantissa) * 2.0 ** (exponent.to(torch.float64) - 15)
    value = torch.where(exponent == 0, mantissa * 2.0**-14, usual)
    special = torch.where(mantissa == 0, float("inf"), float("nan"))
    return sign * torch.where(exponent == 31, special, value)


def _nearest_byte(x: Tensor) -> Tensor:
    """The finite byte nearest to x, the even one of two."""
    codes = torch.arange(124)
    distance = (_byte_value(codes) - x.reshape(-1, 1).abs()).abs()
    is_nearest = distance == distance.amin(-1, keepdim=True)
    first = torch.where(is_nearest, codes * 2 + codes % 2 * 1000, 10**6).argmin(-1)
    return (first + 128 * torch.signbit(x.reshape(-1))).reshape(x.shape).to(torch.uint8)


def _pack1(x: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits((x > 0).numpy().ravel()))


def _unpack1(x: Tensor, *, to: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(x.to(torch.uint8).numpy())).to(torch.float64)


def _flat(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.reshape(-1), torch.arange(x.ndim)


def _arranged(flat: Tensor, axes: Tensor, shape: Tensor) -> Tensor:
    order, sizes = axes.tolist(), shape.tolist()
    values = flat[: math.prod(sizes)].numpy().reshape([sizes[axis] for axis in order])
    return torch.from_numpy(np.moveaxis(values, range(len(order)), order).copy())


def _tile_sizes(count: int) -> list[int]:
    return [8] * (count // 8 - 1) + [8 + count % 8]


def _pack_tile(x: Tensor) -> Tensor:
    """Sign and magnitude in steps of 2^(s-132), the bits of s on top."""
    largest = float(x.abs().max())
    shared = int(np.frexp(largest)[1]) + 126 if largest else 0
    steps = (x.abs() * 2.0 ** (132 - shared)).to(torch.float64)
    halves = (steps * 2).floor().clamp(max=126)
    magnitude = ((halves + 1) / 2).floor().to(torch.int64)
    bits = (shared >> torch.arange(len(x)).clamp(max=62)) & 1
    return bits << 7 | torch.signbit(x).to(torch.int64) * (x != 0) << 6 | magnitude


def _pack_msfp15(x: Tensor) -> Tensor:
    if x.numel() < 8:
        return _nearest_byte(x)
    tiles = x.flatten().split(_tile_sizes(x.numel()))
    return torch.cat([_pack_tile(tile) for tile in tiles]).to(torch.uint8).reshape(x.shape)


def _unpack_tile(codes: Tensor) -> Tensor:
    shared = sum(int(code >> 7) << place for place, code in enumerate(codes[:8]))
    sign = 1.0 - 2.0 * ((codes >> 6) & 1)
    return sign * (codes & 63) * 2.0 ** (shared - 132)


def _unpack_msfp15(x: Tensor, *, to: int) -> Tensor:
    codes = x.to(torch.int64)
    if x.numel() < 8:
        return _byte_value(codes)
    tiles = codes.flatten().split(_tile_sizes(x.numel()))
    return torch.cat([_unpack_tile(tile) for tile in tiles]).reshape(x.shape)


def _half(x: Tensor) -> Tensor:
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.to(torch.float64).numpy().astype(np.float16))


_CODES: list[tuple[str, Callable[..., Tensor], Callable[..., Tensor], frozenset[DataType]]] = [
    ("GistBinarize", lambda x: x > 0, lambda x, to: x.to(torch.float64), FLOATS),
    ("GistPack1", _pack1, _unpack1, FLOATS | BOOL),
    ("GistPack8", _nearest_byte, lambda x, to: _byte_value(x.to(torch.int64)), FLOATS),
    ("GistPack16", _half, lambda x, to: x.to(torch.float64), only(FLOAT, DOUBLE)),
    ("GistPackMsfp15", _pack_msfp15, _unpack_msfp15, FLOATS),
]


def _code(op: str, shape: tuple[int, ...]) -> Input:
    """Any value that a decoder may be given."""
    if op == "GistBinarize":
        return booleans(*shape)
    if op == "GistPack16":
        return normal(*shape).typed(FLOAT16)
    if op == "GistPack1":
        shape = (int(np.prod(shape)),)
    return integers(*shape, high=256, dtype=UINT8)


_ENCODERS = [
    Case(
        f"{op}Encoder",
        [normal(*shape)],
        encode,
        domain=MS,
        dtypes=dtypes - BOOL,
        gradient=False,
        name=name,
    )
    for op, encode, _, dtypes in _CODES
    for name, shape in SHAPES.items()
]
_ENCODERS += [
    Case(op, [SPECIAL], encode, domain=MS, dtypes=dtypes, gradient=False, name="special")
    for op, encode, dtypes in (
        ("GistBinarizeEncoder", lambda x: x > 0, FLOATS),
        ("GistPack1Encoder", _pack1, FLOATS),
    )
]
_ENCODERS += [
    Case("Passes", [x], lambda x: ~(x <= 0), domain=OWN, gradient=False, name=name)
    for name, x in (("special", SPECIAL), ("any", normal(3, 7)))
]
_ENCODERS += [
    Case("GistPack1Encoder", [booleans(3, 7)], _pack1, domain=MS, gradient=False, name="bool"),
    Case(
        "GistPack16Encoder",
        [given([65519.0, 65520.0, -1e-8, 1 / 3, float("inf"), float("nan")])],
        _half,
        domain=MS,
        dtypes=only(FLOAT),
        gradient=False,
        name="special",
    ),
]
_DECODERS = [
    Case(
        f"{op}Decoder",
        [_code(op, shape)],
        decode,
        {"to": int(to)},
        MS,
        gradient=False,
        name=f"{name}_{to.name.lower()}",
    )
    for op, _, decode, dtypes in _CODES
    for name, shape in SHAPES.items()
    for to in (sorted(dtypes) if name == "odd" else [FLOAT])
]
_ARRANGED = [
    # which order that is depends on where the inputs lie: tests/kernels/test_memory.py
    Case("InMemoryOrder", [normal(2, 3, 4)], _flat, domain=OWN, outputs=2, compare=[],
         gradient=False),
    Case("FromMemoryOrder", [normal(24), shape_input(0, 2, 1), shape_input(2, 3, 4)],
         _arranged, domain=OWN, gradient=False),
    Case("FromMemoryOrder", [normal(32), shape_input(1, 0), shape_input(5, 6)],
         _arranged, domain=OWN, gradient=False, name="longer"),
    Case("FromMemoryOrder", [normal(8), shape_input(), shape_input()],
         _arranged, domain=OWN, gradient=False, name="scalar"),
]  # fmt: skip

CASES = [*_ENCODERS, *_DECODERS, *_ARRANGED]
