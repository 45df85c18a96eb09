"""Gated activations as the operators hand them to Triton."""

import pytest
import torch

from kernels.fast import drawn, module, near, on_devices
from onnxtrain.kernels.activation import gated

ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "swish": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes all tensors, wherever they are."""
    monkeypatch.setattr(gated.fast, "ready", lambda *tensors, **_: True)


@on_devices
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.usefixtures("taken")
def test_value_and_gradients(kind: str, packed: bool, device: str, dtype: str) -> None:
    """Of two matrices, or of the two halves of one."""
    dy = drawn(3, 5, 33, device=device, dtype=dtype)
    gate, up = (drawn(3, 5, 33, device=device, dtype=dtype) for _ in range(2))
    up = up.flip(0) * 2
    if packed:
        gate, up = torch.cat([gate, up], -1).chunk(2, -1)
    results = {}
    for width in (dy.dtype, torch.float64):
        g, u = (t.detach().to(width).requires_grad_() for t in (gate, up))
        y = ACTIVATIONS[kind](g) * u
        results[width] = [y.detach(), *torch.autograd.grad(y, [g, u], dy.to(width))]
    ours = [
        gated.gated(gate, up, activation=kind, alpha=1.0),
        *gated.gated_grad(dy, gate, up, activation=kind, alpha=1.0),
    ]
    for one, torchs, true in zip(ours, results[dy.dtype], results[torch.float64], strict=True):
        near(one, torchs, true)
        assert one.is_contiguous()


@on_devices
@pytest.mark.parametrize("shape", [(7, 66), (3, 5, 1072), (2, 4352), (2, 34, 5)])
@pytest.mark.parametrize(("kind", "gate"), [("swish", 0), ("sigmoid", 1), ("relu", 1)])
@pytest.mark.usefixtures("taken")
def test_halves(kind: str, gate: int, shape: tuple[int, ...], device: str, dtype: str) -> None:
    """Halves along the last axis or another one, as wide as a tile, a part of it or several."""
    axis = 1 if shape[-1] % 2 else -1
    x = drawn(*shape, device=device, dtype=dtype)
    results = {}
    for width in (x.dtype, torch.float64):
        wide = x.detach().to(width).requires_grad_()
        sides = wide.chunk(2, axis)
        y = ACTIVATIONS[kind](sides[gate]) * sides[1 - gate]
        dy = drawn(*y.shape, device=device, dtype=dtype)
        results[width] = [y.detach(), *torch.autograd.grad(y, [wide], dy.to(width))]
    given = {"axis": axis, "gate": gate, "activation": kind, "alpha": 1.0}
    ours = [gated.gated_halves(x, **given), gated.gated_halves_grad(dy, x, **given)]
    for one, torchs, true in zip(ours, results[x.dtype], results[torch.float64], strict=True):
        near(one, torchs, true)
        assert one.is_contiguous()
    own = x.clone()
    gated.gated_halves_grad(dy, own, **given, out=own)
    assert torch.equal(own, ours[1])


@pytest.mark.usefixtures("taken")
def test_what_a_relu_does_not_take_has_no_gradient() -> None:
    x = torch.tensor([[-1.0, 2.0, float("inf"), 5.0]])
    dx = gated.gated_halves_grad(torch.ones(1, 2), x, activation="relu")
    assert dx.tolist() == [[0, 5, 0, 2]]


def test_tiles_have_few_columns_too_many() -> None:
    """The widest of those that fit; whole rows side by side where they are short."""
    cut = module("gated")._cut
    assert cut(4096, 8192, 2) == (1, 1024)
    assert cut(4096, 11008, 2) == (4, 256)
    assert cut(1 << 20, 64, 4) == (8, 64)
    assert cut(1, 1 << 22, 2) == (1, 1024)


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match="activation is 'erf'"):
        gated.gated(x, x, activation="erf")
    with pytest.raises(ValueError, match="one shape"):
        gated.gated(x, x[0])
    with pytest.raises(ValueError, match="axis -1 of X has no halves"):
        gated.gated_halves(x)
    with pytest.raises(ValueError, match=r"dY has shape \(2, 3\)"):
        gated.gated_halves_grad(x, x, axis=0)
