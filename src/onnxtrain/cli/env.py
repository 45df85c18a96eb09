"""``onnxtrain env``: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import typer

from onnxtrain import __version__

PACKAGES = (
    "onnxtrain",
    "torch",
    "triton",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "ml-dtypes",
    "protobuf",
    "safetensors",
    "flatbuffers",
    "typer",
    "rich",
)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print what a bug report needs."""
    import json

    from onnxtrain.cli.console import table

    if as_json:
        typer.echo(json.dumps(facts(), indent=2))
        return
    table("", ("what", "value"), facts().items())


def facts() -> dict[str, str]:
    """Platform, devices and versions of packages."""
    return {**_platform(), **_devices(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    if package == "onnxtrain":
        return __version__
    if package == "torch":
        import torch

        return str(torch.__version__)  # what it was built with is not in the package's everywhere
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _platform() -> dict[str, str]:
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _devices() -> dict[str, str]:
    import torch

    from onnxtrain.kernels import fast

    found = {
        "cpu": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
        "cuda": f"built with {torch.version.cuda}" if torch.version.cuda else "not in this torch",
    }
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = (
            f"{device.name}, {device.total_memory / 2**30:.1f} GiB, "
            f"capability {device.major}.{device.minor}, kernels of "
            + ("Triton and torch" if fast.serves(index) else "torch alone")
        )
    return found
