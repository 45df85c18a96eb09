"""Gradients in one line: ``grad(model, wrt="x")(feeds)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxtrain.errors import FeedError, GraphError
from onnxtrain.gradients.api import GradientGraph, gradient_graph
from onnxtrain.gradients.engine import can_carry_gradient
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.options import ProviderLike
from onnxtrain.runtime.session import InferenceSession


def grad(
    model: ModelLike,
    wrt: str | Iterable[str],
    outputs: str | Iterable[str] | None = None,
    *,
    providers: Sequence[ProviderLike] | None = None,
) -> Gradients:
    """A function that computes gradients of a model's outputs.

    Several outputs count as their sum. An output of one element needs nothing more; the gradient
    of a larger one is fed as ``<output>_grad``.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; it is not changed.
        wrt: Weights, inputs or inner values whose gradients are wanted.
        outputs: What is differentiated; the floating point outputs of the model by default.
        providers: Where it runs, see ``InferenceSession``.

    Raises:
        GraphError: if an output is not in the graph, or the model has none to differentiate.
        NoGradientError: if an operator in the way has no gradient rule.
        ParameterError: if a name in ``wrt`` is not in the graph, or no output depends on it.
    """
    ys = outputs or _outputs(model)
    return Gradients(gradient_graph(model, wrt, ys), providers)


def _outputs(model: ModelLike) -> list[str]:
    """The outputs that can be differentiated."""
    graph = prepare(load_model(model, own=True)).graph
    found = [str(value.name) for value in graph.outputs if can_carry_gradient(value)]
    if not found:
        raise GraphError("the model has no floating point output to differentiate")
    return found


class Gradients:
    """Feeds in, the gradient of every x by its name out.

    Attributes:
        model: The model that is run, with the gradients as its last outputs.
    """

    def __init__(self, graph: GradientGraph, providers: Sequence[ProviderLike] | None) -> None:
        self.model = graph.model
        self._session = InferenceSession(self.model, providers=providers)
        self._grads = graph.grads
        inputs = {value.name: value for value in self.model.graph.input}
        self._seeds = {
            name: ir.serde.deserialize_value_info_proto(inputs[name], None)
            for name in graph.seeds.values()
        }

    def __call__(self, feeds: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Compute the gradients; torch tensors if one was fed, numpy arrays otherwise.

        Raises:
            FeedError: if an input, or the gradient of an output of many elements, is missing.
        """
        given = {**(feeds or {}), **more}
        for name, seed in self._seeds.items():
            if name not in given:
                given[name] = _one(seed)
        names = list(self._grads.values())
        if any(isinstance(value, torch.Tensor) for value in given.values()):
            found = self._session.run_torch(names, given)
        else:
            found = self._session.run(names, given)
        return dict(zip(self._grads, found, strict=True))


def _one(seed: ir.Value) -> Any:
    """The gradient of an output of one element, by itself."""
    dims = None if seed.shape is None else list(seed.shape)
    if dims is None or any(dim != 1 for dim in dims):
        shape = "an unknown shape" if dims is None else f"the shape {[str(d) for d in dims]}"
        raise FeedError(
            f"the gradient '{seed.name}' is missing: its output has {shape}, "
            "and only that of one element is known to be 1\n"
            f"  feed '{seed.name}', or name the outputs to differentiate with outputs="
        )
    assert seed.dtype is not None
    return np.ones([1] * len(dims), seed.dtype.numpy())
