"""Softmax and its gradients by Triton along any axis, beside torch."""

import pytest
import torch

from kernels.test_fast import aten, drawn, module, near, on_devices

SHAPES = [
    ((5, 7, 130), -1),
    ((3, 100), 1),
    ((4, 33, 50), 1),
    ((2, 600, 70), -2),
    ((3, 5, 7), 0),
    ((1, 3), 1),
    ((2, 9000), 1),
]
LONG = [((3, 40000), 1), ((2, 3000, 40), 1), ((70, 131072), 1), ((2, 2000, 129), 1)]


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
