"""Initializers that are inputs too: a caller may give others, and the model is planned for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtrain.graph.loading.load import load_model

if TYPE_CHECKING:
    from onnxtrain.runtime.session import InferenceSession

SINCE = 4
"""The IR version from which on an initializer is the default of the input of its name."""


class Overriding:
    """Sessions of a model in which some initializers are inputs like others.

    Args:
        model: The model, before it is prepared.
        start: Makes a session of a model.
    """

    def __init__(self, model: ir.Model, start: Callable[[ir.Model], InferenceSession]) -> None:
        self._model, self._start = model, start
        self._sessions: dict[frozenset[str], InferenceSession] = {}
        if model.ir_version >= SINCE and any(v.is_initializer() for v in model.graph.inputs):
            self._model = load_model(model, own=True)
        own = [] if self._model is model else self._model.graph.inputs
        self.values = [value for value in own if value.is_initializer()]
        self._names = frozenset(value.name for value in self.values if value.name)

    def among(self, feeds: Mapping[str, Any]) -> frozenset[str]:
        """Names of the initializers that are given."""
        return self._names.intersection(feeds) if self._names else self._names

    def session(self, names: frozenset[str]) -> InferenceSession:
        """The session that takes these initializers."""
        if names not in self._sessions:
            model = self._model.clone()
            for value in [model.graph.initializers.pop(name) for name in sorted(names)]:
                value.const_value = None
            self._sessions[names] = self._start(model)
        return self._sessions[names]
