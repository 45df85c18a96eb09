"""Rows of codecs that keep activations small, against the same in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import starmap

import torch
from torch import Tensor

from onnxtrain.kernels import gist
from op_row import BF16, F32, Row, draw, fitted, with_compiled

SHAPES = [(128, 256, 64, 64), (32, 64, 8, 8)]
NUMBERS = {F32: 1, BF16: 16}
"""What ONNX calls the types that are decoded to."""
Codec = Callable[[Tensor], Tensor]


def codec_rows(shapes: Sequence[tuple[int, ...]] = SHAPES) -> Iterator[Row]:
    for shape in starmap(fitted, shapes):
        for dtype in (BF16, F32):
            x = draw(*shape, dtype=dtype)
            for name in CODECS:
                if dtype is F32 or name != "Pack16":
                    yield from _pair(name, x)


def _pair(name: str, x: Tensor) -> Iterator[Row]:
    """An encoder, and the decoder of what it gave."""
    ours, ours_back, torchs, torchs_back, true = CODECS[name]
    code = ours(x)
    number, shape = NUMBERS[x.dtype], tuple(x.shape)
    more = {"out_shape": shape} if name == "Pack1" else {}
    moved = x.nbytes + code.nbytes

    def encode() -> Tensor:
        return torchs(x)

    yield Row(
        f"Gist{name}Encoder",
        str(shape),
        x.dtype,
        moved,
        lambda: ours(x),
        with_compiled({"torch": encode}, encode),
        lambda: true(x.double()),
    )

    def decode(kind: torch.dtype = x.dtype) -> Tensor:
        return torchs_back(code, kind).view(shape)

    yield Row(
        f"Gist{name}Decoder",
        str(shape),
        x.dtype,
        moved,
        lambda: ours_back(code, to=number, **more),
        with_compiled({"torch": decode}, decode),
        lambda: decode(torch.float64),
    )


def positive(x: Tensor) -> Tensor:
    return x > 0


def numbers(code: Tensor, kind: torch.dtype) -> Tensor:
    return code.to(kind)


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=like.device)


def bits(x: Tensor) -> Tensor:
    return ((x > 0).view(-1, 8).to(torch.uint8) << _shifts(x)).sum(-1, dtype=torch.uint8)


def bits_back(code: Tensor, kind: torch.dtype) -> Tensor:
    return ((code[:, None] >> _shifts(code)) & 1).to(kind)


def small(x: Tensor) -> Tensor:
    return x.clamp(-57344, 57344).to(torch.float8_e5m2).view(torch.uint8)


def true_small(x: Tensor) -> Tensor:
    """x to the nearest number with three significant bits, as a byte."""
    step = torch.exp2(torch.frexp(x).exponent.clamp(min=-13).double() - 3)
    return (torch.round(x / step) * step).to(torch.float8_e5m2).view(torch.uint8)


def small_back(code: Tensor, kind: torch.dtype) -> Tensor:
    return code.view(torch.float8_e5m2).to(kind)


def half(x: Tensor) -> Tensor:
    return x.to(torch.float16)


def shared(x: Tensor) -> Tensor:
    """Six bits of each of eight elements and one of the exponent that they share."""
    tiles = x.reshape(-1, 8)
    tiles = tiles if x.dtype is torch.float64 else tiles.float()
    exponent = torch.frexp(tiles.abs().amax(1, keepdim=True)).exponent + 126
    magnitude = torch.ldexp(tiles.abs(), 132 - exponent).add_(0.5).floor_().clamp_(max=63)
    places = torch.arange(8, dtype=torch.int32, device=x.device)
    codes = ((exponent >> places) & 1) << 7 | (tiles < 0).int() << 6 | magnitude.int()
    return codes.to(torch.uint8).view(x.shape)


def shared_back(code: Tensor, kind: torch.dtype) -> Tensor:
    tiles = code.view(-1, 8).int()
    places = torch.arange(8, dtype=torch.int32, device=code.device)
    exponent = ((tiles >> 7) << places).sum(1, keepdim=True)
    wide = torch.float64 if kind is torch.float64 else F32
    value = torch.ldexp((tiles & 63).to(wide), exponent - 132)
    return torch.where((tiles & 64) > 0, -value, value).to(kind)


CODECS: dict[str, tuple[Codec, Callable[..., Tensor], Codec, Callable[..., Tensor], Codec]] = {
    "Binarize": (gist.binarize, gist.unbinarize, positive, numbers, positive),
    "Pack1": (gist.pack1, gist.unpack1, bits, bits_back, bits),
    "Pack8": (gist.pack8, gist.unpack8, small, small_back, true_small),
    "Pack16": (gist.pack16, gist.unpack16, half, numbers, half),
    "PackMsfp15": (gist.pack_msfp15, gist.unpack_msfp15, shared, shared_back, shared),
}
"""Our encoder and decoder, torch's, and what is true of numbers in float64."""
