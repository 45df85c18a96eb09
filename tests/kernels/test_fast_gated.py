"""Gated activations as the operators hand them to Triton."""

import pytest
import torch

from kernels.test_fast import drawn, near, on_devices
from onnxtrain.kernels.activation import gated

ACTIVATIONS = {
    "none": torch.nn.functional.gelu,
    "tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick": torch.nn.functional.silu,
}


@on_devices
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_value_and_gradients(
    kind: str, packed: bool, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two matrices, or of the two halves of one."""
    monkeypatch.setattr(gated.fast, "ready", lambda *tensors, **_: True)
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
        gated.gated(gate, up, approximate=kind, alpha=1.0),
        *gated.gated_grad(dy, gate, up, approximate=kind, alpha=1.0),
    ]
    for one, torchs, true in zip(ours, results[dy.dtype], results[torch.float64], strict=True):
        near(one, torchs, true)
        assert one.is_contiguous()


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match="approximate is 'erf'"):
        gated.gated(x, x, approximate="erf")
    with pytest.raises(ValueError, match="one shape"):
        gated.gated(x, x[0])
