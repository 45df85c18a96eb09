"""Schemas of the training operators, so that ONNX's own checker and shape inference know them.

Importing this package registers nothing; ``ensure_registered`` does.
"""

from __future__ import annotations

import importlib
import threading

import onnx
from onnx.defs import OpSchema

from onnxtrain.graph.schemas import (
    activation,
    attention,
    collective,
    control,
    forward,
    gist,
    interop,
    loss,
    math,
    ms_attention,
    ms_embed,
    ms_fused,
    ms_gated,
    ms_quantized,
    ms_recurrent,
    ms_sparse,
    ms_tensor,
    nn,
    optimizer,
    rnn,
    sequence,
    summary,
    tensor,
    vector_jacobian,
    with_weights,
)
from onnxtrain.graph.schemas.declare import Operator, register_all
from onnxtrain.types import ONNX

__all__ = ["ensure_registered", "forward_ops", "get", "training_ops"]

_TRAINING: tuple[Operator, ...] = (
    *tensor.OPS,
    *math.OPS,
    *activation.OPS,
    *attention.OPS,
    *nn.OPS,
    *rnn.OPS,
    *loss.OPS,
    *optimizer.OPS,
    *control.OPS,
    *collective.OPS,
    *gist.OPS,
    *interop.OPS,
    *sequence.OPS,
    *summary.OPS,
    *vector_jacobian.OPS,
    *with_weights.OPS,
)
_FORWARD: tuple[Operator, ...] = (
    *forward.OPS,
    *ms_attention.OPS,
    *ms_embed.OPS,
    *ms_fused.OPS,
    *ms_gated.OPS,
    *ms_quantized.OPS,
    *ms_recurrent.OPS,
    *ms_sparse.OPS,
    *ms_tensor.OPS,
)
_lock = threading.Lock()
_done = False
_found: dict[tuple[str, str, int], OpSchema] = {}


def ensure_registered() -> None:
    """Registers every operator with ``onnx.defs``, once a process."""
    global _done
    with _lock:
        if not _done:
            # It refuses to be imported once two domains have an operator of the same name.
            importlib.import_module("onnx.reference.op_run")
            register_all(_TRAINING)
            register_all(_FORWARD)
            _done = True


def get(domain: str, op_type: str, version: int) -> OpSchema | None:
    """Schema of an operator as of a version of its domain's opset, or None if there is none."""
    key = (domain, op_type, version)
    if key not in _found:
        ensure_registered()
        try:
            _found[key] = onnx.defs.get_schema(
                op_type, version, ONNX if domain == "ai.onnx" else domain
            )
        except onnx.defs.SchemaError:
            return None
    return _found[key]


def training_ops() -> list[tuple[str, str]]:
    """Domain and name of each operator that exists only for training."""
    return [(operator.domain, operator.name) for operator in _TRAINING]


def forward_ops() -> list[tuple[str, str]]:
    """Domain and name of each forward operator registered beside them."""
    return [(operator.domain, operator.name) for operator in _FORWARD]
