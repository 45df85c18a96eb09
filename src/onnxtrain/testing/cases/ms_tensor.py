"""Rows of further forward operators outside ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import (
    Case,
    apart,
    booleans,
    derived,
    given,
    integers,
    normal,
    only,
    shape_input,
    text,
    uniform,
)
from onnxtrain.types import FIXED, MS, DataType

INT32, INT64 = DataType.INT32, DataType.INT64


def _distance(a: Tensor, b: Tensor, metric: str = "sqeuclidean") -> Tensor:
    squares = (a[:, None] - b[None]).square().sum(-1)
    return squares.sqrt() if metric == "euclidean" else squares


def _complex(a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """Bilinear: 1·1 = 1, 1·i = i·1 = i, i·i = -1."""
    table = torch.tensor([[[1, 0], [0, sign]], [[0, 1], [-sign, 0]]], dtype=a.dtype)
    return torch.einsum("...i,...j,ijk->...k", a, b, table)


def _rfft(x: Tensor, signal_ndim: int = 1) -> Tensor:
    return torch.view_as_real(torch.fft.rfftn(x, dim=list(range(-signal_ndim, 0))))


def _irfft(x: Tensor, signal_ndim: int) -> Any:
    return torch.fft.irfftn(torch.complex(x[..., 0], x[..., 1]), dim=list(range(-signal_ndim, 0)))


def _invertible(generator: torch.Generator) -> Any:
    noise = torch.rand(2, 3, 3, generator=generator, dtype=torch.float64)
    return noise + 2 * torch.eye(3, dtype=torch.float64)


NUMBERS = [
    Case("CDist", [normal(4, 3), normal(5, 3)], _distance, domain=MS, name="squares"),
    Case("CDist", [normal(4, 3), normal(5, 3)], _distance, {"metric": "euclidean"}, MS),
    Case("ComplexMul", [normal(3, 4, 2), normal(3, 4, 2)], _complex, domain=MS),
    Case("ComplexMul", [normal(3, 4, 2), normal(4, 2)], _complex, domain=MS, name="broadcast"),
    Case("ComplexMulConj", [normal(3, 4, 2), normal(3, 4, 2)], lambda a, b: _complex(a, b, -1),
         domain=MS),
    Case("Rfft", [normal(2, 3, 8)], _rfft, domain=MS),
    Case("Rfft", [normal(2, 4, 8)], _rfft, {"signal_ndim": 2}, MS),
    Case("Irfft", [normal(2, 3, 5, 2)], _irfft, {"signal_ndim": 1}, MS),
    Case("Inverse", [derived(_invertible)], torch.linalg.inv, domain=MS),
    Case("SampleOp", [normal(2, 3)], torch.clone, domain=MS),
    Case("GatedAdd", [normal(2, 3, 4), normal(2, 3, 4), uniform(2, 3, 1)],
         lambda x, y, gate: x + y * gate, domain=MS),
    Case("ScaledSiLU", [normal(2, 3)], lambda x, alpha: functional.silu(alpha * x),
         {"alpha": 1.5}, MS),
    Case("ScaledSiLU", [normal(2, 3), given(0.75)], lambda x, scale: functional.silu(scale * x),
         domain=MS, name="scale"),
]  # fmt: skip


def _embedding(w: Tensor, i: Tensor, padding: Tensor | None = None) -> Tensor:
    fixed = None if padding is None else int(padding)
    return functional.embedding(i, w, padding_idx=fixed)


def _unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    seen = list(dict.fromkeys(x.tolist()))
    first = [x.tolist().index(value) for value in seen]
    counts = [x.tolist().count(value) for value in seen]
    places = torch.tensor([seen.index(value) for value in x.tolist()], dtype=torch.int64)
    return x[torch.tensor(first)], places, torch.tensor(counts)


_WINDOW = {"dim": 1, "size": 3, "step": 2}
MOVED = [
    Case("ExpandDims", [normal(2, 3), given(1, INT32, constant=True)],
         lambda x, axis: x.unsqueeze(int(axis)), domain=MS),
    Case("ExpandDims", [normal(2, 3), given([-1], INT32, constant=True)],
         lambda x, axis: x.unsqueeze(-1), domain=MS, name="last"),
    Case("GatherND", [normal(3, 4, 2), given([[0, 1], [2, -1]])],
         lambda x, i: x[i[:, 0], i[:, 1]], domain=MS),
    Case("GatherND", [normal(3, 4, 2), given([[1], [-3], [1]], INT32)],
         lambda x, i: x[i[:, 0].long()], domain=MS, name="int32"),
    Case("TorchEmbedding", [normal(5, 3), given([[0, 4], [2, 2]])], _embedding, domain=MS),
    Case("TorchEmbedding", [normal(5, 3), given([0, 4, 2, 2]), given(2, constant=True)],
         _embedding, domain=MS, name="padding", gradient=False),
    Case("UnfoldTensor", [normal(2, 7, 3)], lambda x, dim, size, step: x.unfold(dim, size, step),
         _WINDOW, MS),
    Case("UnfoldTensor", [booleans(2, 7, 3)],
         lambda x, dim, size, step: x.unfold(dim, size, step), _WINDOW, MS, name="flags"),
    Case("Unique", [given([2.0, 1.0, 1.0, 3.0, 4.0, 3.0])], _unique, domain=MS, outputs=3,
         dtypes=FIXED - only(DataType.BOOL), name="repeated", gradient=False),
    Case("Unique", [apart(5)], _unique, domain=MS, outputs=3, name="distinct"),
    Case("Pad", [normal(2, 3), shape_input(0, 1, 2, 0)],
         lambda x, pads: functional.pad(x, (1, 0, 0, 2)), domain=MS),
    Case("Pad", [normal(2, 3), given([[0, 1, 2, 0]], constant=True), given(0.5).no_grad()],
         lambda x, pads, value: torch.where(
             functional.pad(torch.ones_like(x), (1, 0, 0, 2)) > 0,
             functional.pad(x, (1, 0, 0, 2)), value), domain=MS, name="value"),
    Case("Pad", [normal(2, 3), given([[0, 1, 2, 0]])],
         lambda x, pads: functional.pad(x, (1, 0, 0, 2)), domain=MS, name="row"),
    Case("Pad", [normal(2, 3), given([[1, 0, 0, 2]], constant=True)],
         lambda x, pads, mode: x[[0, 0, 1]][:, [0, 1, 2, 2, 2]], {"mode": "edge"}, MS, name="edge"),
    Case("Range", [given(1.5), given(4.0).no_grad(), given(0.5)],
         lambda a, b, d: a + torch.arange(5, dtype=a.dtype) * d, domain=MS),
    Case("Range", [given(2, INT32), given(-3, INT32), given(-2, INT32)],
         lambda a, b, d: torch.tensor([2, 0, -2]), domain=MS, name="down", gradient=False),
    Case("Range", [given([2]), given([5])], lambda a, b: torch.tensor([2, 3, 4]), domain=MS,
         name="no-delta", gradient=False),
]  # fmt: skip


def _transposed(
    x: Tensor, w: Tensor, pads: Tensor | None = None, b: Tensor | None = None,
    *, strides: Sequence[int] = (1, 1),
) -> Tensor:  # fmt: skip
    padding = (0, 0) if pads is None else tuple(pads.tolist()[:2])
    return functional.conv_transpose2d(x, w, b, tuple(strides), padding)


def _crops(
    x: Tensor, rois: Tensor, batch: Tensor, size: Tensor, extrapolation_value: float = 0.0
) -> Tensor:
    """Sampled at a grid from -1 to 1 over the corners; what is outside is set apart."""
    images, (height, width) = x[batch.to(torch.int64)], size.tolist()
    ends = []
    for axis, count in ((0, height), (1, width)):
        steps = torch.linspace(0, 1, count, dtype=x.dtype) if count > 1 else torch.tensor([0.5])
        ends.append(rois[:, axis, None] + (rois[:, axis + 2] - rois[:, axis])[:, None] * steps)
    y, across = (2 * line - 1 for line in ends)
    grid = torch.stack(
        [across[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], -1
    )
    found = functional.grid_sample(images, grid, padding_mode="border", align_corners=True)
    inside = (grid.abs() <= 1).all(-1).unsqueeze(1)
    return torch.where(inside, found, extrapolation_value)


_ROIS = given([[0.1, 0.05, 0.93, 0.81], [0.22, 0.37, 0.71, 1.4]])
IMAGES = [
    Case("ConvTransposeWithDynamicPads", [normal(2, 3, 4, 5), normal(3, 2, 3, 3),
                                          shape_input(1, 0, 1, 0), normal(2)], _transposed,
         {"strides": (2, 1)}, MS),
    Case("ConvTransposeWithDynamicPads", [normal(2, 3, 4, 5), normal(3, 2, 3, 3)], _transposed,
         domain=MS, name="plain"),
    Case("GridSample", [normal(2, 3, 4, 5), uniform(2, 3, 3, 2, low=-0.9, high=0.9)],
         lambda x, grid, align_corners: functional.grid_sample(
             x, grid, align_corners=bool(align_corners)), {"align_corners": 1}, MS),
    Case("CropAndResize", [normal(2, 3, 6, 7), _ROIS, given([1, 0], INT32),
                           given([4, 3], INT32, constant=True)], _crops,
         {"extrapolation_value": 0.5}, MS),
    Case("CropAndResize", [normal(2, 3, 6, 7), _ROIS.no_grad(), given([1, 0], INT32),
                           given([1, 2], INT32, constant=True)], _crops, domain=MS, name="one-row"),
]  # fmt: skip


def _way(costs: Tensor) -> Tensor:
    """The cheapest of all ways, each tried."""
    matrix = costs.reshape(costs.shape[-2:])
    last = (len(matrix) - 1, matrix.shape[1] - 1)

    def onward(i: int, j: int) -> list[list[tuple[int, int]]]:
        """All ways from a place to the last one."""
        if (i, j) == last:
            return [[last]]
        steps = [(i + 1, j), (i, j + 1), (i + 1, j + 1)]
        inside = [(a, b) for a, b in steps if a <= last[0] and b <= last[1]]
        return [[(i, j), *way] for step in inside for way in onward(*step)]

    ways = onward(0, 0)
    sums = [sum(float(matrix[place]) for place in way) for way in ways]
    return torch.tensor(ways[sums.index(min(sums))]).T


WAYS = [
    Case("DynamicTimeWarping", [normal(*shape)], _way, domain=MS, name=name, gradient=False)
    for name, shape in (
        ("matrix", (4, 5)), ("stacked", (1, 5, 3)), ("row", (1, 4)), ("column", (3, 1))
    )
]  # fmt: skip


def _hash(*found: int) -> Any:
    return lambda x, **_: torch.tensor(found, dtype=torch.int64)


def _blocked(ids: Tensor, scores: Tensor, ngram_size: int) -> Tensor:
    banned = torch.zeros_like(scores, dtype=torch.bool)
    for row, tokens in enumerate(ids.tolist()):
        end = tokens[len(tokens) - ngram_size + 1 :]
        for start in range(len(tokens) - ngram_size + 1):
            if tokens[start : start + ngram_size - 1] == end:
                banned[row, tokens[start + ngram_size - 1]] = True
    return scores.masked_fill(banned, -torch.inf)


TOKENS = [
    Case("MurmurHash3", [given([3, 4], INT32)], _hash(847579505, 1889779975), domain=MS,
         gradient=False),
    Case("MurmurHash3", [given([3, 4], INT32)], _hash(847579505, 1889779975), {"positive": 0}, MS,
         gradient=False),
    Case("MurmurHash3", [given([3, 4])], _hash(2738575283, 3491892518), domain=MS, name="long",
         gradient=False),
    Case("MurmurHash3", [text(["foo", "quick brown", ""])], _hash(-156908512, 170037781, 0),
         {"positive": 0}, MS, gradient=False),
    Case("NGramRepeatBlock", [given([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]]), apart(2, 6)], _blocked,
         {"ngram_size": 3}, MS, gradient=False),
    Case("NGramRepeatBlock", [integers(2, 2, high=6), apart(2, 6)], lambda i, s, ngram_size: s,
         {"ngram_size": 3}, MS, name="short"),
]  # fmt: skip

CASES: list[Case] = [*NUMBERS, *MOVED, *IMAGES, *WAYS, *TOKENS]
