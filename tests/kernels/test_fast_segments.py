"""Sums of rows that have the same index, and the order of indices on which they rest."""

from __future__ import annotations

import functools
import inspect
import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.fast import in_two_types, module

tl = pytest.importorskip("triton.language", reason="Triton is not installed")
SMALL: dict[str, dict[str, Any]] = {
    "segments": {"CLEARED": 4, "COLUMNS": {2: 64, 4: 32}},
    "runs": {"CHUNK": 4, "SPAN": 8, "JOINED": 2, "FIRSTS": 4},
    "order": {"HELD": tl.constexpr(2)},
    "sorting": {"DIGIT": 5, "MOVED": 32, "COMPARED": 16, "TOGETHER": 1, "CLEARED": 64},
    "slots": {"PLACED": 32},
    "ranking": {"RANKED": 16, "COMPARED": 32, "CLEARED": 64},
}
"""Sizes by which a few indices are many for an interpreter."""


def piece(name: str) -> ModuleType:
    """A module of the gradient of Gather."""
    return module(f"gather.{name}")


def use(
    monkeypatch: pytest.MonkeyPatch, device: str, ranked: bool = False, **others: object
) -> None:
    """Small sizes for the interpreter, and other constants of the sort.

    Few indices are sorted as many are, unless they are to be ``ranked``.
    """
    if not ranked:
        monkeypatch.setattr(piece("ranking"), "MOST", 0)
    for cached, users in (
        ("plan_of", ("sorting", "crowded")),
        ("span_of", ("segments", "crowded")),
    ):
        plain = inspect.unwrap(getattr(piece(users[0]), cached))
        for name in users:
            monkeypatch.setattr(piece(name), cached, plain)
    for name, values in SMALL.items() if device == "cpu" else ():
        for constant, value in values.items():
            monkeypatch.setattr(piece(name), constant, value)
    for constant, value in others.items():
        monkeypatch.setattr(piece("sorting"), constant, value)


def drawn(*shape: int, device: str, dtype: str) -> torch.Tensor:
    return torch.randn(shape).to(device, getattr(torch, dtype))


def test_long_runs_are_cut_into_few_parts() -> None:
    span = piece("runs").span_of
    assert [span(16384, 50304), span(65536, 50304)] == [64, 128]
    assert [span(65536, 2), span(1 << 22, 50304)] == [256, 2048]


def test_as_many_rows_are_cleared_beside_a_sort_as_there_is_time_for() -> None:
    cut = functools.partial(piece("sorting").plan_of, device=torch.device("cpu"))
    assert [cut(16384, 50304, 768).blocks, cut(65536, 50304, 768).blocks] == [1572, 0]
    large = cut(16384, 128256, 4096)
    assert large.blocks * large.cleared * 4096 == piece("sorting").MEANWHILE
    assert cut(16384, 128256, 0).blocks == 0


def near(ours: torch.Tensor, true: torch.Tensor) -> None:
    width = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[ours.dtype]
    torch.testing.assert_close(ours.double(), true, rtol=width, atol=width)


def sums(index: torch.Tensor, values: torch.Tensor, rows: int) -> torch.Tensor:
    true = values.new_zeros(rows, values.shape[1], dtype=torch.float64)
    return true.index_add_(0, index % rows, values.double())


@in_two_types
@pytest.mark.parametrize(
    ("size", "share"),
    [
        ((130, 42, 70), None),
        ((130, 42, 70), 0.5),
        ((200, 4, 8), None),
        ((200, 4, 8), 0.0),
        ((40, 1, 8), None),
        ((40, 1, 8), 1.0),
        ((31, 102, 5), 0.0),
        ((31, 102, 5), 1.0),
        ((2, 3, 1), 0.5),
        ((1, 1, 1), None),
        ((1, 1, 1), 0.5),
    ],
)
def test_sums_of_rows_with_the_same_index(
    device: str,
    dtype: str,
    size: tuple[int, int, int],
    share: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share of the rows is cleared beside a sort; there is none if each index is ranked."""
    count, rows, columns = size
    use(monkeypatch, device, share is None, SHARE=share)
    index = torch.randint(0, max(1, rows - 2), (count,)).to(device)
    values = drawn(len(index), columns, device=device, dtype=dtype)
    true = sums(index, values, rows)
    ours = piece("segments").sum_rows(index, values, rows)
    near(ours, true)
    full = torch.full_like(ours, math.nan)
    piece("segments")._sum_sorted(index, values, full, False)
    assert torch.equal(full, ours), "every row is written"
    base = drawn(rows, columns, device=device, dtype=dtype)
    near(piece("segments").sum_rows(index, values, rows, base.clone()), base.double() + true)
    assert torch.equal(ours, piece("segments").sum_rows(index - rows, values, rows))


def by_slots(index: torch.Tensor, values: torch.Tensor, rows: int) -> torch.Tensor:
    out = values.new_full((rows, values.shape[1]), float("nan"))
    piece("slots").sum_rows(index, values, out)
    return out


@in_two_types
@pytest.mark.parametrize("size", [(60, 90, 70), (45, 4, 8), (20, 1, 8), (31, 102, 5), (2, 3, 1)])
def test_sums_by_slots(
    device: str, dtype: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows with fewer, and some or all with more, indices than slots."""
    count, rows, columns = size
    use(monkeypatch, device)
    index = torch.randint(0, max(1, rows - 2), (count,)).to(device)
    values = drawn(len(index), columns, device=device, dtype=dtype)
    true = sums(index, values, rows)
    ours = by_slots(index, values, rows)
    near(ours, true)
    assert torch.equal(ours, by_slots(index - rows, values, rows))


@in_two_types
def test_slots_have_the_order_of_a_sort(
    device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of none to twenty indices, for sixteen slots, bit for bit."""
    each = torch.arange(21)
    index = torch.arange(21).repeat_interleave(each)[torch.randperm(int(each.sum()))].to(device)
    values = drawn(len(index), 70, device=device, dtype=dtype)
    use(monkeypatch, device)
    monkeypatch.setattr(piece("runs"), "SPAN", 64)
    monkeypatch.setattr(piece("runs"), "CHUNK", 16)
    assert torch.equal(by_slots(index, values, 30), piece("segments").sum_rows(index, values, 30))


@in_two_types
@pytest.mark.parametrize("most", [3, 12])
def test_tallies_are_left_at_zero(
    device: str, dtype: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the next call, whether or not a row had too few slots."""
    use(monkeypatch, device)
    kept = torch.zeros(16 + 40, dtype=torch.int32, device=device)
    monkeypatch.setattr(piece("slots"), "TALLIES", SimpleNamespace(of=lambda *_: kept))
    monkeypatch.setattr(piece("runs"), "CHUNK", 4)
    by_slots(
        torch.arange(100, device=device) // most, drawn(100, 8, device=device, dtype=dtype), 40
    )
    assert not kept.any()


def test_tallies_of_a_call_that_fails_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "cpu")
    slots, forgotten = piece("slots"), []
    monkeypatch.setattr(slots.TALLIES, "forget", lambda: forgotten.append(True))

    def full(*_: torch.Tensor) -> None:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(slots, "sum_crowded", full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        by_slots(torch.arange(3), torch.randn(3, 8), 4)
    assert forgotten


@pytest.mark.gpu
def test_recorded_launches_have_zeros_of_their_own() -> None:
    """Those that were made before, if there are any; an ordinary call has others."""
    tallies, device = piece("slots").Tallies(), torch.device("cuda", 0)
    shared = tallies.of(100, device)
    assert tallies.of(100, device) is shared
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        given = [tallies.of(100, device) for _ in range(2)]
    assert len({x.data_ptr() for x in (shared, *given)}) == 3
    assert tallies._given[0] is given[0] and len(tallies._given) == 1
    assert not given[0].any()


def test_slots_are_tried_where_they_sufficed(monkeypatch: pytest.MonkeyPatch) -> None:
    """But now and then one looks again; never where they did not, and not for other kinds."""
    slots, index, device = piece("slots"), torch.zeros(100), torch.device("cpu")
    monkeypatch.setattr(slots, "TURNS", 3)
    monkeypatch.setattr(slots, "RARE_TURNS", 5)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kinds = slots.Kinds()
    assert not kinds.suffice(index, 50)
    kind = (100).bit_length(), 50, device
    due: dict[int, list[int]] = {}
    for answer, suffices in ((-1, False), (1, False), (0, True)):
        known = kinds._known[kind] = slots.Known(torch.tensor(answer))
        found = [(kinds.suffice(index, 50), known.due) for _ in range(10)]
        assert all(used == (suffices and not again) for used, again in found)
        assert known.used == suffices
        due[answer] = [call for call, (_, again) in enumerate(found, 1) if again]
    assert due == {-1: [5, 10], 1: [5, 10], 0: [3, 6, 9]}
    assert not kinds.suffice(index, 51)
    assert not kinds.suffice(torch.zeros(200), 50)
    assert kinds.suffice(index, 50)
    kinds.forget()
    assert not kinds.suffice(index, 50)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sums that are made by slots from now on, of which nothing is known yet."""
    slots, used = piece("slots"), []
    kinds, add = slots.Kinds(), slots.sum_rows
    monkeypatch.setattr(slots, "suffice", kinds.suffice)
    monkeypatch.setattr(slots, "look", kinds.look)

    def sum_rows(*given: torch.Tensor) -> None:
        used.append(len(given[0]))
        add(*given)

    monkeypatch.setattr(slots, "sum_rows", sum_rows)
    return used


@pytest.mark.gpu
@pytest.mark.parametrize(("most", "uses"), [(50000, [0, 1, 2, 2, 3]), (1000, [0] * 5)])
def test_the_device_says_whether_slots_suffice(
    most: int, uses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece("slots"), "TURNS", 3)
    used = counted(monkeypatch)
    values = torch.randn(20000, 96, device="cuda")
    index = torch.randperm(50000, device="cuda")[:20000] % most
    first, found = piece("segments").sum_rows(index, values, 50000), [0]
    near(first, sums(index, values, 50000))
    for _ in uses[1:]:
        torch.cuda.synchronize()
        assert torch.equal(first, piece("segments").sum_rows(index, values, 50000))
        found.append(len(used))
    assert found == uses


@pytest.mark.gpu
def test_an_old_answer_holds_until_there_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that the host makes before the device has looked again do as those before."""
    monkeypatch.setattr(piece("slots"), "TURNS", 3)
    used, segments = counted(monkeypatch), piece("segments")
    values = torch.randn(20000, 96, device="cuda")
    index = torch.randperm(50000, device="cuda")[:20000]
    segments.sum_rows(index, values, 50000)
    torch.cuda.synchronize()
    torch.cuda._sleep(1 << 28)
    for _ in range(9):
        segments.sum_rows(index, values, 50000)
    assert len(used) == 6


@pytest.mark.gpu
def test_recorded_slots_were_used_before(monkeypatch: pytest.MonkeyPatch) -> None:
    used = counted(monkeypatch)
    values = torch.randn(20000, 96, device="cuda")
    index = torch.randperm(50000, device="cuda")[:20000]
    for turn in range(3):
        ours = piece("segments").sum_rows(index, values, 50000)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = piece("segments").sum_rows(index, values, 50000)
        assert len(used) == 2 * turn
        for _ in range(2):
            recorded.fill_(float("nan"))
            graph.replay()
            assert torch.equal(recorded, ours)


@in_two_types
@pytest.mark.parametrize("rows", [1, 9, 2000])
@pytest.mark.parametrize(("ranked", "counted"), [(True, 1 << 14), (False, 1 << 14), (False, 0)])
def test_indices_in_order(
    device: str,
    dtype: str,
    rows: int,
    ranked: bool,
    counted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, device, ranked)
    monkeypatch.setattr(piece("segments"), "COUNTED", counted)
    index = torch.randint(-rows, rows, (100,)).to(device)
    ascending, positions = (index % rows).sort(stable=True)
    cleared = torch.ones(rows, 2, device=device, dtype=getattr(torch, dtype))
    found = piece("segments")._in_order(index, rows, cleared, 21, 1)
    assert torch.equal(found.words[:100], (ascending << 32) | positions)
    assert not found.numbers[:21].any()
    absent = torch.ones(rows, dtype=torch.bool, device=device)
    absent[ascending] = absent[: found.uncleared] = False
    assert not cleared[absent].any()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("count", "rows"),
    [(2000, 30522), (2000, 1 << 21), (70000, 50304), (16384, 128256), (200000, 3)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_rows_repeat_bit_for_bit(count: int, rows: int, dtype: str) -> None:
    index = (torch.rand(count, device="cuda") ** 4 * rows).long()
    values = torch.randn(count, 96, device="cuda").to(getattr(torch, dtype))
    true = sums(index, values, rows)
    torch.cuda.empty_cache()
    # what the sums get next has no number in it
    spoil = functools.partial(torch.full, (rows, 96), math.nan, device="cuda", dtype=values.dtype)
    spoil()
    ours = piece("segments").sum_rows(index, values, rows)
    scale = float(true.abs().max())
    width = {"float32": 1e-5, "bfloat16": 8e-3}[dtype]
    assert float((ours.double() - true).abs().max()) <= width * scale
    for _ in range(10):
        spoil()
        assert torch.equal(ours, piece("segments").sum_rows(index, values, rows))
    assert not module("common.counters").ZEROS.of(index.device).any()


@pytest.mark.gpu
def test_every_index_may_be_the_same() -> None:
    """All digits of 65,536 indices are equal: one more than half a word of a table holds."""
    index = torch.full((1 << 16,), 77, device="cuda")
    ours = piece("segments").sum_rows(index, torch.ones(1 << 16, 8, device="cuda"), 50304)
    assert ours[77].eq(1 << 16).all()
    assert int(ours.count_nonzero()) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1000, 16384])
def test_recorded_sums_are_those_of_a_call(count: int) -> None:
    index = torch.randint(0, 5000, (count,), device="cuda")
    values = torch.randn(count, 256, device="cuda")
    ours = piece("segments").sum_rows(index, values, 5000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = piece("segments").sum_rows(index, values, 5000)
    for _ in range(3):
        recorded.fill_(float("nan"))
        graph.replay()
        assert torch.equal(recorded, ours)
