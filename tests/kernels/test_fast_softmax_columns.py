"""Gradients of softmax along other axes than the last by clusters of programs, beside torch."""

import pytest
import torch

from kernels.fast import aten, drawn, module, near

SHAPES = [(2, 1024, 200), (1, 960, 64), (3, 2000, 129), (2, 1921, 1000)]
LONG = (1, 3500, 70)


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> object:
    """The kernels for small tensors too, and on a device that has clusters."""
    found = module("softmax_columns")
    monkeypatch.setattr(found, "LEAST", 1)
    monkeypatch.setattr(found, "largest", lambda _: 16)
    found._cut.cache_clear()
    yield found
    found._cut.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients(columns: object, dtype: str, log: bool) -> None:
    forward = torch.log_softmax if log else torch.softmax
    native = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    for shape in SHAPES + ([] if dtype == "float32" else [LONG]):
        dy, x = (drawn(*shape, device="cuda", dtype=dtype) for _ in range(2))
        y = forward(x.double(), 1).to(x.dtype)
        assert columns.cut_of(y, *shape[1:]) is not None
        ours = module("softmax_grad").softmax_grad(dy, y, 1, log=log)
        wide = [t.double() for t in (dy, y)]
        near(ours, native(dy, y, 1, dy.dtype), native(*wide, 1, torch.float64))
        assert torch.equal(ours, module("softmax_grad").softmax_grad(dy, y, 1, log=log))


@pytest.mark.gpu
def test_replayed(columns: object) -> None:
    dy, y = (drawn(4, 1024, 256, device="cuda", dtype="bfloat16") for _ in range(2))
    grad = module("softmax_grad").softmax_grad
    assert columns.cut_of(y, 1024, 256) is not None
    expected = grad(dy, y, 1, log=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = grad(dy, y, 1, log=False)
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)


def test_how_columns_are_cut(columns: object) -> None:
    """Programs, rows of one, and warps; clusters with many idle rows are left alone."""
    two, four = (torch.empty(1, dtype=t) for t in (torch.bfloat16, torch.float32))
    assert columns.cut_of(two, 1024, 64) == (8, 128, 4)
    assert columns.cut_of(two, 1025, 64) is None and columns.cut_of(two, 900, 64) is None
    assert columns.cut_of(two, 1536, 64) == (16, 128, 4)
    assert columns.cut_of(two, 4096, 64) == (16, 256, 8)
    assert columns.cut_of(two, 8192, 64) is None
    assert columns.cut_of(four, 768, 64) == (16, 64, 4)
    assert columns.cut_of(four, 2048, 64) == (16, 128, 8)
    assert columns.cut_of(four, 1536, 64) is None and columns.cut_of(four, 4096, 64) is None
    for size, inner in ((512, 64), (1024, 63), (1024, 1 << 21)):
        assert columns.cut_of(two, size, inner) is None


def test_where_there_are_no_clusters(columns: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "largest", lambda _: 1)
    assert columns.cut_of(torch.empty(1), 1024, 64) is None
