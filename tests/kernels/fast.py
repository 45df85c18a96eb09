"""What tests of Triton kernels share: interpreted on the CPU, and as they are on a GPU."""

import importlib
import pkgutil
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from onnxtrain.kernels import fast


def typed(interpreted: list[str], on_gpu: list[str]) -> pytest.MarkDecorator:
    """A test of each device with its types."""
    pairs = [
        *(pytest.param("cpu", dtype) for dtype in interpreted),
        *(pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in on_gpu),
    ]
    return pytest.mark.parametrize(("device", "dtype"), pairs)


# the interpreter rounds bfloat16 wrongly
on_devices = typed(["float32", "float16"], ["float32", "float16", "bfloat16"])
in_two_types = typed(["float32", "float16"], ["float32", "bfloat16"])
"""Where all shorter types are alike to a kernel."""
ROUNDINGS = 4 * 2.0**-24
"""What a chain of a few float32 roundings may cost: one number's distance in torch is luck."""
aten = torch.ops.aten


def module(name: str) -> ModuleType:
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


def modules() -> list[ModuleType]:
    """All of the package that have Triton kernels, or serve those that do."""
    found = pkgutil.walk_packages(fast.__path__, f"{fast.__name__}.")
    return [importlib.import_module(name) for _, name, is_package in found if not is_package]


def near(ours: Tensor, torchs: Tensor, true: Tensor) -> None:
    """As close to the truth as twice torch's own distance."""
    scale = true.norm()
    error, allowed = (ours.double() - true).norm() / scale, (torchs.double() - true).norm() / scale
    assert ours.shape == true.shape and ours.dtype == torchs.dtype
    assert error <= 2 * allowed + ROUNDINGS, f"{error} is more than twice {allowed}"


def drawn(*shape: int, device: str, dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))
