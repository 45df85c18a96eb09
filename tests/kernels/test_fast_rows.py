"""How Triton kernels cut rows into chunks and add up the shares of their programs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")


def module(name: str) -> Any:
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


@pytest.mark.parametrize("columns", [1, 3, 100, 768, 1024, 1600, 4096, 5000, 16384])
def test_tiles_cover_rows_and_find_room(columns: int) -> None:
    quick = module("norm_grad")
    for size, plan in [*quick.LAUNCHES.items(), (2, quick.LONGER), (4, quick.LONGER)]:
        for matrices in (1, 2, 3):
            tile = module("rows").Tile.of(columns, size, plan, matrices)
            assert tile.chunks * tile.width >= columns > (tile.chunks - 1) * tile.width
            assert tile.whole == (tile.chunks * tile.width == columns)
            assert tile.stages >= 1
            waiting = matrices * tile.rows * tile.chunks * tile.width * size * (tile.stages - 1)
            assert tile.resident * waiting <= 227 << 10
            assert tile.resident * tile.warps * 32 * tile.registers <= 1 << 16


@pytest.mark.parametrize("columns", [768, 1024, 4096])
def test_usual_rows_leave_no_lane_idle(columns: int) -> None:
    for size in (2, 4):
        assert module("norm_grad").tile_of(columns, size, 2).whole


@pytest.mark.parametrize(("value", "expected"), [(0.0, torch.inf), (1e25, 0.0), (4.0, 0.25)])
def test_inverse_deviations_at_the_limits(value: float, expected: float) -> None:
    x = torch.full((1, 8), value)
    found = module("norm").normalize(x, torch.ones(8), None, 0.0, centred=False)
    assert found.inverse.item() == pytest.approx(expected, rel=2e-7)


@pytest.mark.gpu
def test_recorded_sums_are_replayed_beside_others() -> None:
    columns, zeros = module("columns"), module("counters").ZEROS
    x = torch.randn(4096, 768, device="cuda")
    expected = columns.column_sums(x, 768)
    torch.cuda.synchronize()
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        recorded = columns.column_sums(x, 768)
        own = zeros.of(x.device).data_ptr()
    assert own != zeros.of(x.device).data_ptr()
    for _ in range(20):
        with torch.cuda.stream(other):
            graph.replay()
        now = columns.column_sums(x, 768)
        torch.cuda.synchronize()
        assert torch.equal(now, expected) and torch.equal(recorded, expected)
    assert not zeros.of(x.device).any()
