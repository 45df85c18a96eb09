"""What tests of Triton kernels share: interpreted on the CPU, and as they are on a GPU."""

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
TYPES = [
    (device, dtype)
    for device in ("cpu", "cuda")
    # the interpreter rounds bfloat16 wrongly
    for dtype in ("float32", "float16", "bfloat16")[: 2 if device == "cpu" else 3]
]
"""Every device with its types."""
on_devices = pytest.mark.parametrize(
    ("device", "dtype"),
    [pytest.param(*pair, marks=[pytest.mark.gpu] if pair[0] == "cuda" else []) for pair in TYPES],
)
ROUNDINGS = 4 * 2.0**-24
"""What a chain of a few float32 roundings may cost: one number's distance in torch is luck."""
aten = torch.ops.aten


def module(name: str) -> ModuleType:
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


def near(ours: Tensor, torchs: Tensor, true: Tensor) -> None:
    """As close to the truth as twice torch's own distance."""
    scale = true.norm()
    error, allowed = (ours.double() - true).norm() / scale, (torchs.double() - true).norm() / scale
    assert ours.shape == true.shape and ours.dtype == torchs.dtype
    assert error <= 2 * allowed + ROUNDINGS, f"{error} is more than twice {allowed}"


def drawn(*shape: int, device: str, dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))
