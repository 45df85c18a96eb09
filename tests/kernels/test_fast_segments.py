"""Sums of rows that have the same index, and the order of indices on which they rest."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

tl = pytest.importorskip("triton.language", reason="Triton is not installed")
# the interpreter rounds bfloat16 wrongly
PLACES = [("cpu", "float32"), ("cpu", "float16"), *(("cuda", k) for k in ("float32", "bfloat16"))]
on_devices = pytest.mark.parametrize(
    ("device", "dtype"),
    [pytest.param(*pair, marks=[pytest.mark.gpu] if pair[0] == "cuda" else []) for pair in PLACES],
)
SMALL: dict[str, dict[str, Any]] = {
    "segments": {"CHUNK": 4, "SPAN": 8, "JOINED": 2, "FIRSTS": 4, "CLEARED": 4},
    "order": {
        "DIGIT": 5,
        "MOVED": 32,
        "COMPARED": 16,
        "HELD": tl.constexpr(2),
        "TOGETHER": 1,
        "CLEARED": 64,
    },
}
"""Sizes by which a few indices are many for an interpreter."""


def module(name: str) -> Any:
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


def use(monkeypatch: pytest.MonkeyPatch, device: str, **others: object) -> None:
    """Small sizes for the interpreter, and other constants of the sort."""
    for name, cached in (("order", "_plan"), ("segments", "_span")):
        monkeypatch.setattr(module(name), cached, getattr(module(name), cached).__wrapped__)
    for name, values in SMALL.items() if device == "cpu" else ():
        for constant, value in values.items():
            monkeypatch.setattr(module(name), constant, value)
    for constant, value in others.items():
        monkeypatch.setattr(module("order"), constant, value)


def drawn(*shape: int, device: str, dtype: str) -> torch.Tensor:
    return torch.randn(shape).to(device, getattr(torch, dtype))


def test_long_runs_are_cut_into_few_parts() -> None:
    span = module("segments")._span
    assert [span(16384, 50304), span(65536, 50304)] == [64, 128]
    assert [span(65536, 2), span(1 << 22, 50304)] == [256, 2048]


def near(ours: torch.Tensor, true: torch.Tensor) -> None:
    width = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[ours.dtype]
    torch.testing.assert_close(ours.double(), true, rtol=width, atol=width)


def sums(index: torch.Tensor, values: torch.Tensor, rows: int) -> torch.Tensor:
    true = values.new_zeros(rows, values.shape[1], dtype=torch.float64)
    return true.index_add_(0, index % rows, values.double())


@on_devices
@pytest.mark.parametrize(
    ("size", "share"),
    [
        ((130, 42, 70), 0.5),
        ((200, 4, 8), 0.0),
        ((40, 1, 8), 1.0),
        ((31, 102, 5), 0.0),
        ((31, 102, 5), 1.0),
        ((2, 3, 1), 0.5),
        ((1, 1, 1), 0.5),
    ],
)
def test_sums_of_rows_with_the_same_index(
    device: str,
    dtype: str,
    size: tuple[int, int, int],
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, rows, columns = size
    use(monkeypatch, device, SHARE=share)
    index = torch.randint(0, max(1, rows - 2), (count,)).to(device)
    values = drawn(len(index), columns, device=device, dtype=dtype)
    true = sums(index, values, rows)
    ours = module("segments").sum_rows(index, values, rows)
    near(ours, true)
    base = drawn(rows, columns, device=device, dtype=dtype)
    near(module("segments").sum_rows(index, values, rows, base.clone()), base.double() + true)
    assert torch.equal(ours, module("segments").sum_rows(index - rows, values, rows))


@on_devices
@pytest.mark.parametrize("rows", [1, 9, 2000])
@pytest.mark.parametrize("counted", [1 << 14, 0])
def test_indices_in_order(
    device: str, dtype: str, rows: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, device)
    monkeypatch.setattr(module("segments"), "COUNTED", counted)
    index = torch.randint(-rows, rows, (100,)).to(device)
    ascending, positions = (index % rows).sort(stable=True)
    cleared = torch.ones(rows, 2, device=device, dtype=getattr(torch, dtype))
    found = module("segments")._in_order(index, rows, cleared, 21, 1)
    assert torch.equal(found.words[:100], (ascending << 32) | positions)
    assert not found.numbers[:21].any()
    absent = torch.ones(rows, dtype=torch.bool, device=device)
    absent[ascending] = absent[: found.uncleared] = False
    assert not cleared[absent].any()


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "rows"), [(70000, 50304), (16384, 128256), (200000, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_rows_repeat_bit_for_bit(count: int, rows: int, dtype: str) -> None:
    index = (torch.rand(count, device="cuda") ** 4 * rows).long()
    values = torch.randn(count, 96, device="cuda").to(getattr(torch, dtype))
    true = sums(index, values, rows)
    torch.full((rows, 96), float("nan"), device="cuda", dtype=values.dtype)
    ours = module("segments").sum_rows(index, values, rows)
    scale = float(true.abs().max())
    width = {"float32": 1e-5, "bfloat16": 8e-3}[dtype]
    assert float((ours.double() - true).abs().max()) <= width * scale
    for _ in range(3):
        assert torch.equal(ours, module("segments").sum_rows(index, values, rows))
    assert not module("counters").ZEROS.of(index.device).any()


@pytest.mark.gpu
def test_every_index_may_be_the_same() -> None:
    """All digits of 65,536 indices are equal: one more than half a word of a table holds."""
    index = torch.full((1 << 16,), 77, device="cuda")
    ours = module("segments").sum_rows(index, torch.ones(1 << 16, 8, device="cuda"), 50304)
    assert ours[77].eq(1 << 16).all()
    assert int(ours.count_nonzero()) == 8


@pytest.mark.gpu
def test_recorded_sums_are_those_of_a_call() -> None:
    index = torch.randint(0, 5000, (16384,), device="cuda")
    values = torch.randn(16384, 256, device="cuda")
    ours = module("segments").sum_rows(index, values, 5000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = module("segments").sum_rows(index, values, 5000)
    for _ in range(3):
        recorded.fill_(float("nan"))
        graph.replay()
        assert torch.equal(recorded, ours)
