"""Matrices side by side, which neighbouring programs write."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.fast import in_two_types, module
from onnxtrain.kernels.lasting import keeping


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, for which small matrices are large."""
    found = module("beside")
    monkeypatch.setattr(found, "PIECE", 64)
    monkeypatch.setattr(found, "FEWEST", 1)
    monkeypatch.setattr(found, "_takes", found._takes.__wrapped__)
    return found


@in_two_types
@pytest.mark.parametrize("widths", [(1, 1), (3, 1, 2), (1,) * 8, (2, 1, 5, 1, 1, 1, 3), (2,) * 11])
@pytest.mark.parametrize(("before", "behind"), [((3,), ()), ((2, 2), (2,)), ((5,), (3, 2))])
def test_matrices_side_by_side(
    device: str,
    dtype: str,
    widths: tuple[int, ...],
    before: tuple[int, ...],
    behind: tuple[int, ...],
    beside: Any,
) -> None:
    """As many as a launch takes one by one, fewer and more, of one or of several widths."""
    axis, kind = len(before), getattr(torch, dtype)
    inputs = [torch.randn(*before, 32 * width, *behind).to(device, kind) for width in widths]
    joined = beside.concat(inputs, axis)
    assert torch.equal(joined, torch.cat(inputs, axis))


def test_others_are_left_to_torch(beside: Any) -> None:
    x, wider = torch.zeros(4, 64), torch.zeros(4, 128)
    assert beside.concat([x, x], 1) is not None
    assert beside.concat([x, x], 0) is None
    assert beside.concat([x] * 9, 1) is not None
    assert beside.concat([x] * 8 + [wider], 1) is None
    assert beside.concat([x, x.half()], 1) is None
    assert beside.concat([x, torch.zeros(4, 65)], 1) is None
    assert beside.concat([x.view(4, 8, 8), torch.zeros(4, 8, 16)], 1) is None
    odd = torch.zeros(257)[1:].view(4, 64)
    assert beside.concat([x, odd], 1) is None
    beside.FEWEST = 2048
    assert beside.concat([x, x], 1) is not None
    beside.FEWEST = 2049
    assert beside.concat([x, x], 1) is None


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3, 20])
def test_a_recorded_concatenation(count: int) -> None:
    concat = module("beside").concat
    inputs = [torch.randn(1024, 4096, device="cuda") for _ in range(count)]
    true = torch.cat(inputs, 1)
    assert torch.equal(concat(inputs, 1), true)
    graph = torch.cuda.CUDAGraph()
    with keeping() as kept, torch.cuda.graph(graph):
        joined = concat(inputs, 1)
    for _ in range(3):
        joined.fill_(float("nan"))
        graph.replay()
        assert torch.equal(joined, true)
    del kept
