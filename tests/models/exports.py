"""Exported models are kept from run to run: an export takes seconds, a test less."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx
import torch

if TYPE_CHECKING:
    import pytest

MAKERS = ("torch", "onnx", "onnxscript", "transformers")
"""Packages whose versions decide what an export looks like."""


class Cache:
    """The folder where exported models are kept, if there is one."""

    folder: pathlib.Path | None = None


def kept(
    name: str, module: torch.nn.Module, export: Callable[[], onnx.ModelProto]
) -> onnx.ModelProto:
    """The exported form of a module, from the folder if it is there."""
    path = Cache.folder and Cache.folder / f"{name}-{_digest(module):08x}.onnx"
    if path and path.exists():
        return onnx.load(path)
    model = export()
    if path:
        part = path.with_suffix(f".{os.getpid()}")
        onnx.save(model, part)
        part.replace(path)
    return model


def _digest(module: torch.nn.Module) -> int:
    """A number that changes with the weights, which rounding makes depend on the threads."""
    digest = 0
    for tensor in module.state_dict().values():
        digest = zlib.crc32(tensor.double().contiguous().numpy().data, digest)
    return digest


def folder_of_exports(temporary: pytest.TempPathFactory, config: pytest.Config) -> pathlib.Path:
    """A folder for this state of the sources and packages, shared by all processes of a run.

    It is in pytest's cache; ``pytest --cache-clear`` empties it.
    """
    cache = getattr(config, "cache", None)
    if cache is not None:
        folder = pathlib.Path(cache.mkdir("exports")) / _state()
    else:
        base = temporary.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
    folder.mkdir(exist_ok=True, parents=True)
    return folder


def _state() -> str:
    """A name for the sources of the models and the versions of what exports them."""
    sha = hashlib.sha256()
    for package in MAKERS:
        sha.update(f"{package} {importlib.metadata.version(package)} ".encode())
    here = pathlib.Path(__file__).parent
    for source in [*sorted(here.glob("architectures/*.py")), here / "exports.py", here / "zoo.py"]:
        sha.update(source.read_bytes())
    return sha.hexdigest()[:16]


def keep_translations() -> None:
    """Let torch read its translations of operators once for each opset, not in every export."""
    try:
        from torch.onnx._internal.exporter import _registration
    except ImportError:  # a version that keeps them elsewhere
        return
    registry = _registration.ONNXRegistry
    if isinstance(registry.__dict__.get("from_torchlib"), classmethod):
        read = functools.cache(registry.from_torchlib)
        registry.from_torchlib = staticmethod(lambda *args, **names: _copy(read(*args, **names)))


def _copy(registry: Any) -> Any:
    """Another list of the same translations, to which an export may add its own."""
    found = copy.copy(registry)
    found.functions = {name: [*known] for name, known in registry.functions.items()}
    return found
