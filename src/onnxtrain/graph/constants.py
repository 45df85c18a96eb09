"""Constants of a graph: new ones, copies of others, and what their numbers tell."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_BESIDE = "onnxtrain.beside"
"""Where a constant keeps which one of the file it was made for."""


def constant(graph: ir.Graph, numbers: np.ndarray, name: str) -> ir.Value:
    """A new constant of a graph."""
    data = ir.Tensor(numbers, name=name)
    kind = ir.TensorType(data.dtype)
    own = ir.Value(name=name, type=kind, shape=data.shape, const_value=data)
    graph.register_initializer(own)
    return own


def copy(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """A constant with the numbers of another one."""
    tensor = value.const_value
    assert tensor is not None
    return made_for(constant(graph, np.array(tensor.numpy()), name), value)


def made_for(own: ir.Value, value: ir.Value) -> ir.Value:
    """Keep which constant of the file a new one was merged with, or left out beside."""
    own.meta[_BESIDE] = value.meta.get(_BESIDE, str(value.name))
    return own


def made_beside(value: ir.Value) -> str | None:
    """The constant of the file that a new one was made for; None if it is one of the file."""
    name = value.meta.get(_BESIDE)
    return None if name is None else str(name)


def is_uniform(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has one number throughout; one without any has not."""
    if not tensor.size:
        return False
    numbers = tensor.numpy()
    return bool(numbers.flat[0] == numbers.flat[-1] and (numbers == numbers.flat[0]).all())
