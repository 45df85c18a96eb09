"""How Triton kernels cut rows into chunks and add up the shares of their programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels.fast import module


@pytest.mark.parametrize("shared", [224 << 10, 99 << 10])
@pytest.mark.parametrize("columns", [1, 3, 100, 768, 1024, 1600, 4096, 5000, 16384])
def test_tiles_cover_rows_and_find_room(columns: int, shared: int) -> None:
    quick = module("norm_grad")
    plans = [(size, plan) for size, table in quick.LAUNCHES.items() for plan in table.values()]
    longer = [(size, plan) for size in (2, 4) for plan in (quick.LONGER, quick.SMALLER)]
    for size, plan in [*plans, *longer]:
        for matrices in (1, 2, 3):
            tile = module("common.rows").Tile.of(columns, size, plan, matrices, shared)
            assert tile.chunks * tile.width >= columns > (tile.chunks - 1) * tile.width
            assert tile.whole == (tile.chunks * tile.width == columns)
            assert tile.stages >= 1
            waiting = matrices * tile.rows * tile.chunks * tile.width * size * (tile.stages - 1)
            assert tile.resident * waiting <= shared
            assert tile.resident * tile.warps * 32 * tile.registers <= 1 << 16
            for many in (False, True):  # what store_share adds up
                assert quick.tile_of(columns, size, matrices, many, shared).rows in (1, 2, 4)


@pytest.mark.parametrize("columns", [768, 1024, 4096])
def test_usual_rows_leave_few_lanes_idle(columns: int) -> None:
    """None of 16 bits, and a quarter at most of float32, where shorter threads are worth it."""
    for many in (False, True):
        narrow, wide = (
            module("norm_grad").tile_of(columns, size, 2, many, 224 << 10) for size in (2, 4)
        )
        assert narrow.whole
        assert 3 * wide.width * wide.chunks <= 4 * columns


def test_longer_threads_have_rows_that_shorter_ones_would_not_fill() -> None:
    tile = module("norm_grad").tile_of(640, 4, 2, True, 224 << 10)
    assert tile.whole


@pytest.mark.parametrize(("value", "expected"), [(0.0, torch.inf), (1e25, 0.0), (4.0, 0.25)])
def test_inverse_deviations_at_the_limits(value: float, expected: float) -> None:
    x = torch.full((1, 8), value)
    found = module("norm").normalize(x, torch.ones(8), None, 0.0, centred=False)
    assert found.inverse.item() == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize("most", [1, 4, 132, 264])
def test_pieces_are_shared_evenly(most: int) -> None:
    for pieces in (1, 3, 131, 265, 1024, 4095, 16384):
        programs = module("common.rows").evenly(pieces, most)
        assert 1 <= programs <= min(most, pieces)
        assert -(-pieces // programs) == -(-pieces // most)


@pytest.mark.parametrize(("kinds", "columns", "count"), [(1, 3, 1), (2, 40, 1100), (1, 2100, 7)])
def test_shares_are_added_up(kinds: int, columns: int, count: int) -> None:
    shares = torch.randint(-99, 99, (kinds, count, columns)).float()
    out = torch.empty(kinds, columns)
    module("common.shares").sums_of(kinds, columns, count).add(out, shares)
    assert torch.equal(out, shares.sum(1))


@pytest.mark.gpu
def test_recorded_sums_are_replayed_beside_others() -> None:
    columns, memory = module("columns"), module("common.shares").MEMORY
    x = torch.randn(4096, 768, device="cuda")
    expected = columns.column_sums(x, 768)
    torch.cuda.synchronize()
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        recorded = columns.column_sums(x, 768)
        own = memory.of((1,), x.device)
    assert own.data_ptr() != memory.of((1,), x.device).data_ptr()
    for _ in range(20):
        with torch.cuda.stream(other):
            graph.replay()
        now = columns.column_sums(x, 768)
        torch.cuda.synchronize()
        assert torch.equal(now, expected) and torch.equal(recorded, expected)


@pytest.mark.gpu
def test_threads_do_not_mix_their_shares() -> None:
    columns = module("columns")
    given = [torch.randn(4096, 768, device="cuda") for _ in range(4)]
    expected = [columns.column_sums(x, 768) for x in given]

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        return [columns.column_sums(x, 768) for _ in range(50)]

    with ThreadPoolExecutor(len(given)) as threads:
        for sums, true in zip(threads.map(work, given), expected, strict=True):
            assert all(torch.equal(found, true) for found in sums)
