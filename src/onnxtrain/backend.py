"""ONNX's backend interface: ``prepare``, ``run_model``, ``run_node`` and friends.

Drop-in for ``onnxruntime.backend``::

    import onnxtrain.backend as backend

    outputs = backend.prepare(model, device="CPU").run([x])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx.backend.base import Backend, BackendRep

from onnxtrain.errors import DeviceError, FeedError, OnnxTrainError
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.kernels.dtypes import array_of
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.ready import planned, prepared
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import CPU, CUDA, Provider

__all__ = [
    "OnnxTrainBackend",
    "OnnxTrainBackendRep",
    "is_compatible",
    "is_opset_supported",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]

_PROVIDERS = {"CPU": CPU, "CUDA": CUDA, "GPU": CUDA}


class OnnxTrainBackendRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: Values in the order of the model's inputs, or by name; a bare array for a
                model with one input.
            **kwargs: Nothing is known here; the interface allows them.

        Raises:
            FeedError: if the number of values is not that of the inputs.
        """
        return tuple(self._session.run(None, self._feeds(inputs)))

    def _feeds(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        names = [argument.name for argument in self._session.get_inputs()]
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(names):
            raise FeedError(
                f"the model takes {len(names)} inputs ({', '.join(names)}), got {len(values)}"
            )
        return dict(zip(names, values, strict=True))


class OnnxTrainBackend(Backend):
    """Runs models and nodes on the CPU or on CUDA."""

    @classmethod
    def is_compatible(cls, model: ModelLike, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of the model has a kernel for the device (which need not be there)."""
        try:
            graph = prepared(load_model(model).clone())
            planned(graph, default_registry(), LowerOptions(_provider(device)[0]))
        except OnnxTrainError:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: ModelLike | InferenceSession, device: str = "CPU", **kwargs: Any
    ) -> OnnxTrainBackendRep:
        """Load and plan a model.

        Args:
            model: Path, bytes, ``onnx.ModelProto``, ``onnx_ir.Model``, or a session.
            device: ``CPU``, ``CUDA`` or ``CUDA:1``.
            **kwargs: Fields of ``SessionOptions``.
        """
        if isinstance(model, InferenceSession):
            return OnnxTrainBackendRep(model)
        provider, index = _provider(device)
        options = SessionOptions(**kwargs)
        chosen = [(provider.value, {"device_id": index})]
        return OnnxTrainBackendRep(InferenceSession(model, options, chosen))

    @classmethod
    def run_model(
        cls, model: ModelLike | InferenceSession, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        Args:
            node: The node.
            inputs: Arrays for its inputs in order (those with an empty name left out).
            device: ``CPU``, ``CUDA`` or ``CUDA:1``.
            outputs_info: Type and shape of each output, where they are not to be inferred.
            **kwargs: ``opset_version`` (the newest by default) and fields of ``SessionOptions``.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        values = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
        arrays = [array_of(v) if isinstance(v, torch.Tensor) else np.asarray(v) for v in values]
        model = _model_of(node, arrays, outputs_info, version)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is known and there."""
        try:
            provider, index = _provider(device)
        except OnnxTrainError:
            return False
        return provider is CPU or index < torch.cuda.device_count()

    @classmethod
    def is_opset_supported(cls, model: ModelLike) -> tuple[bool, str]:
        """Whether the opset of the model is known, and if not, why."""
        newest = onnx.defs.onnx_opset_version()
        version = load_model(model).graph.opset_imports.get("", 1)
        if version <= newest:
            return True, ""
        return False, f"the model uses opset {version}, the installed onnx knows up to {newest}"


def _provider(device: str) -> tuple[Provider, int]:
    """Provider and index of ``CPU``, ``CUDA``, ``GPU`` or ``CUDA:1``."""
    kind, _, index = (device or "CPU").upper().partition(":")
    if kind not in _PROVIDERS or (index and not index.isdecimal()):
        raise DeviceError(
            f"unknown device '{device}'\n  have  {', '.join(_PROVIDERS)}, with :<index> if need be"
        )
    return _PROVIDERS[kind], int(index or 0)


def _model_of(
    node: onnx.NodeProto,
    arrays: Sequence[Any],
    outputs_info: Sequence[tuple[Any, Sequence[int]]] | None,
    version: int,
) -> onnx.ModelProto:
    """A model with one node, typed by the arrays it will get."""
    names = [name for name in dict.fromkeys(node.input) if name]
    if len(names) != len(arrays):
        raise FeedError(
            f"node {node.op_type} takes {len(names)} inputs ({', '.join(names)}), got {len(arrays)}"
        )
    inputs = [
        onnx.helper.make_tensor_value_info(name, _onnx_type(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    if outputs_info is not None:
        outputs = [
            onnx.helper.make_tensor_value_info(value.name, _onnx_type(np.dtype(dtype)), shape)
            for value, (dtype, shape) in zip(outputs, outputs_info, strict=True)
        ]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
    imports = [onnx.helper.make_opsetid("", version)]
    if node.domain not in ("", "ai.onnx"):
        imports.append(onnx.helper.make_opsetid(node.domain, 1))
    return onnx.helper.make_model(graph, opset_imports=imports)


def _onnx_type(dtype: np.dtype[Any]) -> int:
    if dtype.kind in "OUS":
        return int(ir.DataType.STRING)
    return int(ir.DataType.from_numpy(dtype))


is_compatible = OnnxTrainBackend.is_compatible
is_opset_supported = OnnxTrainBackend.is_opset_supported
prepare = OnnxTrainBackend.prepare
run = OnnxTrainBackend.run_model
run_model = OnnxTrainBackend.run_model
run_node = OnnxTrainBackend.run_node
supports_device = OnnxTrainBackend.supports_device
