"""Softmax and its gradients by Triton along any axis, beside torch."""

import pytest
import torch
from torch import Tensor

from kernels.fast import aten, drawn, module, near, on_devices

SHAPES = [
    ((5, 7, 130), -1),
    ((3, 100), 1),
    ((4, 33, 50), 1),
    ((2, 600, 70), -2),
    ((3, 5, 7), 0),
    ((1, 3), 1),
    ((2, 9000), 1),
    ((70, 77), 1),
    ((41, 18), 1),
    ((600, 6), 1),
    ((33, 9), 1),
    ((300, 5), 1),
    ((90, 20), 1),
    ((50, 33), 1),
    ((9, 197), 1),
    ((37, 40), 1),
    ((20, 100), 1),
    ((5, 1501), 1),
    ((3, 1000), 1),
    ((9, 1023), 1),
]
LONG = [
    ((11, 50257), 1),
    ((5, 50264), 1),
    ((7, 12345), 1),
    ((4, 131071), 1),
    ((4, 131073), 1),
    ((3, 40000), 1),
    ((2, 3000, 40), 1),
    ((70, 131072), 1),
    ((2, 2000, 129), 1),
    ((2, 200000), 1),
    ((3, 300000), 1),
    ((3, 270001), 1),
    ((2, 500007), 1),
    ((25, 524288), 1),
    ((5000, 33), 1),
    ((40000, 128), 1),
]


@on_devices
@pytest.mark.parametrize("log", [False, True])
def test_softmax_gradients(device: str, dtype: str, log: bool) -> None:
    for shape, axis in SHAPES + (LONG if device == "cuda" else []):
        dy, x = (drawn(*shape, device=device, dtype=dtype) for _ in range(2))
        forward = torch.log_softmax if log else torch.softmax
        y = forward(x.double(), axis).to(x.dtype)
        ours = module("softmax_grad").softmax_grad(dy, y, axis, log=log)
        native = aten._log_softmax_backward_data if log else aten._softmax_backward_data
        wide = [t.double() for t in (dy, y)]
        near(ours, native(dy, y, axis, dy.dtype), native(*wide, axis, torch.float64))


@on_devices
@pytest.mark.parametrize("log", [False, True])
def test_softmax(device: str, dtype: str, log: bool) -> None:
    forward = torch.log_softmax if log else torch.softmax
    for shape, axis in SHAPES + (LONG if device == "cuda" else []):
        x = drawn(*shape, device=device, dtype=dtype) * 3
        x.select(axis, 0).fill_(float("-inf"))
        ours, exact = module("softmax").softmax(x, axis, log=log), forward(x.double(), axis)
        found = [t.narrow(axis, 1, x.shape[axis] - 1) for t in (ours, forward(x, axis), exact)]
        near(*found)
        hidden = ours.select(axis, 0)
        assert bool((hidden == (float("-inf") if log else 0.0)).all())
    x.fill_(float("-inf"))
    assert bool(module("softmax").softmax(x, axis, log=log).isnan().all())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [270001, 524288])
def test_parts_without_scores(dtype: str, size: int) -> None:
    """Programs of a row whose elements are all hidden, beside one that has a single element."""
    x = drawn(3, size, device="cuda", dtype=dtype)
    x[0, : size // 2], x[1, :-1], x[2] = float("-inf"), float("-inf"), float("-inf")
    for log, forward in ((False, torch.softmax), (True, torch.log_softmax)):
        ours, exact = module("softmax").softmax(x, 1, log=log), forward(x.double(), 1)
        hidden = x[:2] == float("-inf")
        assert torch.equal(ours[:2][hidden], exact[:2].to(x.dtype)[hidden])
        assert ours[1, -1] == exact[1, -1] and bool(ours[2].isnan().all())
        seen = [t[0, size // 2 :] for t in (ours, forward(x, 1), exact)]
        near(*seen)


@pytest.mark.gpu
@pytest.mark.parametrize("log", [False, True])
def test_long_rows_repeat(log: bool) -> None:
    """The same bits in every launch, whatever launches came between."""
    x, dy = (drawn(30, 500000, device="cuda", dtype="bfloat16") for _ in range(2))
    quick, back = module("softmax"), module("softmax_grad")
    first = quick.softmax(x, 1, log=log)
    gradient = back.softmax_grad(dy, first, 1, log=log)
    for rows in (30, 7, 30, 1):
        assert torch.equal(quick.softmax(x[:rows], 1, log=log), first[:rows])
        found = back.softmax_grad(dy[:rows], first[:rows], 1, log=log)
        assert torch.equal(found, gradient[:rows])


def words(pairs: Tensor) -> Tensor:
    """Pairs of float32 along the last axis as one number of 64 bits each."""
    return pairs.flip(-1).contiguous().view(torch.int64).squeeze(-1)


def in_parts(x: Tensor, part: int, block: int, value: float) -> Tensor:
    """Rows cut into three parts that have blocks in turn, filled up with a value."""
    whole = torch.nn.functional.pad(x, (0, 3 * part - x.shape[1]), value=value)
    return whole.view(-1, part // block, 3, block).transpose(1, 2).reshape(-1, 3, part)


@pytest.mark.parametrize("block", [16, 4])
@pytest.mark.parametrize("log", [False, True])
def test_parts_of_a_row(log: bool, block: int) -> None:
    """Each program alone, as an interpreter must run it, among words that the others have left."""
    quick, (rows, columns, part) = module("softmax"), (2, 40, 16)
    x = drawn(rows, columns, device="cpu", dtype="float32")
    x[0, 16:32] = float("-inf")
    cut = in_parts(x, part, block, float("-inf"))
    top = cut.amax(-1)
    sums = (cut - top.clamp(min=-1e30).unsqueeze(-1)).exp().sum(-1)
    left = words(torch.stack([top, sums], -1)).reshape(-1)
    y, seen = torch.zeros_like(x), []
    for number in range(rows * 3):
        board = torch.cat([torch.tensor([number]), left])
        board[1 + number] = 0
        arguments = y, x, board, 0, columns, log, 3, 4, part, 1, block
        quick._parts.function[(1,)](*arguments, num_warps=1, maxnreg=None)
        seen.append(board[1 + number])
    torch.testing.assert_close(y, (torch.log_softmax if log else torch.softmax)(x, 1))
    found = torch.stack(seen).view(torch.float32).view(-1, 2).flip(-1)
    torch.testing.assert_close(found, torch.stack([top, sums], -1).view(-1, 2))


def test_parts_of_columns() -> None:
    quick, (size, inner, part, wide) = module("softmax"), (20, 6, 8, 4)
    x = drawn(size, inner, device="cpu", dtype="float32")
    cut = torch.nn.functional.pad(x, (0, 2, 0, 4), value=float("-inf")).view(3, part, 2, wide)
    top = cut.amax(1)
    sums = (cut - top.clamp(min=-1e30).unsqueeze(1)).exp().sum(1)
    left = words(torch.stack([top, sums], -1)).transpose(0, 1).reshape(-1)
    y = torch.zeros_like(x)
    for number in range(6):
        board = torch.cat([torch.tensor([number]), left])
        board[1 + number * wide : 1 + (number + 1) * wide] = 0
        shape = size, inner, False, 3, 4, part, wide
        quick._columns[(1,)](y, x, board, 0, *shape, num_warps=1, maxnreg=None)
        assert bool((board[1:] != 0).all())
    torch.testing.assert_close(y, torch.softmax(x, 0))


@pytest.mark.parametrize("block", [16, 4])
def test_parts_of_gradients(block: int) -> None:
    quick, (rows, columns, part) = module("softmax_grad"), (2, 40, 16)
    dy, x = (drawn(rows, columns, device="cpu", dtype="float32") for _ in range(2))
    y = torch.softmax(x, 1)
    dy[0, 16:32] = 0
    sums = in_parts(dy * y, part, block, 0.0).sum(-1)
    left = words(torch.stack([torch.ones_like(sums), sums], -1)).reshape(-1)
    dx = torch.zeros_like(x)
    for number in range(rows * 3):
        board = torch.cat([torch.tensor([number]), left])
        board[1 + number] = 0
        arguments = dx, dy, y, board, 0, columns, False, 3, 4, part, 1, block
        quick._parts.function[(1,)](*arguments, num_warps=1, maxnreg=None)
        assert board[1 + number] != 0
    torch.testing.assert_close(dx, aten._softmax_backward_data(dy, y, 1, torch.float32))


def test_shapes_that_are_not_taken() -> None:
    """Programs that wait for each other must all fit on the device."""
    for name in ("softmax", "softmax_grad"):
        takes = module(name).takes
        assert takes(torch.empty(4, 5), -1) and not takes(torch.empty(4, 5), 2)
        assert not takes(torch.empty(4, 0), 1) and not takes(torch.empty((1, 1 << 21)), 1)
    fits = module("common.exchange").fits
    large = torch.empty(1 << 22)
    assert fits(1, torch.empty(3), 1) and fits(4, large, 4)
    assert not fits(5, large, 4) and not fits(2, large, 1) and not fits(2, large[1:], 4)


def test_ever_new_axes_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is compiled for each."""
    axis = module("common.axis")
    monkeypatch.setattr(axis, "_SHAPES", set())
    monkeypatch.setattr(axis, "MOST_SHAPES", 2)
    takes = module("softmax").takes
    found = [takes(torch.empty(2, size, 3), 1) for size in (4, 5, 6, 4, 6)]
    assert found == [True, True, False, True, False]
