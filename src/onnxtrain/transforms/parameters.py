"""Which tensors of a model are weights: the choice behind ``trainable="auto"``, with reasons."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.gradients.engine import can_carry_gradient
from onnxtrain.types import FLOATS, op_name

STATISTICS = {
    ("BatchNormalization", 3): "running mean of BatchNormalization",
    ("BatchNormalization", 4): "running variance of BatchNormalization",
    ("BatchNormInternal", 3): "running mean of BatchNormInternal",
    ("BatchNormInternal", 4): "running variance of BatchNormInternal",
}
_SETTINGS = {
    ("Clip", 1): "lower bound of Clip",
    ("Clip", 2): "upper bound of Clip",
    ("Dropout", 1): "ratio of Dropout",
    ("GRU", 5): "initial state of GRU",
    ("LSTM", 5): "initial state of LSTM",
    ("LSTM", 6): "initial cell of LSTM",
    ("OneHot", 2): "values of OneHot",
    ("Pad", 2): "fill value of Pad",
    ("Pow", 1): "exponent of Pow",
    ("QuantizeLinear", 1): "quantiser scale",
    ("DequantizeLinear", 1): "quantiser scale",
    ("Range", 0): "bound of Range",
    ("Range", 1): "bound of Range",
    ("Range", 2): "step of Range",
    ("Resize", 1): "region of Resize",
    ("Resize", 2): "scales of Resize",
    ("RNN", 5): "initial state of RNN",
    ("Upsample", 1): "scales of Upsample",
}
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Mod", "Where"})
_LINEAR = frozenset({"Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Gemm", "MatMul"})
_HOLDERS = _LINEAR | {
    "BatchNormalization",
    "BatchNormInternal",
    "GRU",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "PRelu",
    "RMSNormalization",
    "RNN",
    "SimplifiedLayerNormalization",
}
"""Operators whose parameters may have a single element."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether a tensor of the model is trained, and why (not)."""

    name: str
    trained: bool
    reason: str
    elements: int
    statistic: bool = False


def decide(
    model: ir.Model,
    wanted: str | Sequence[str] = "auto",
    outputs: Sequence[str] | None = None,
    known: Collection[str] | None = None,
) -> list[Decision]:
    """A decision for every floating point initializer of a prepared model.

    Args:
        model: The model.
        wanted: ``auto``, or names and glob patterns of the tensors to train.
        outputs: Outputs that the loss uses; all of them by default.
        known: Tensors that can be written back into the original file; all by default.

    Raises:
        ParameterError: if a name or pattern matches nothing, or nothing is left to train.
    """
    reached = _leads_to(model.graph, outputs)
    decisions = [
        _decision(value, value in reached, known is None or name in known)
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype in FLOATS
    ]
    if wanted != "auto":
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        decisions = _picked(decisions, patterns, reached, model.graph)
    if not any(d.trained for d in decisions):
        raise ParameterError("the model has no weight that could be trained")
    return decisions


def _decision(value: ir.Value, reached: bool, writable: bool) -> Decision:
    tensor = value.const_value
    assert tensor is not None
    name, elements = str(value.name), int(tensor.size)
    for node, index in value.uses():
        if reason := STATISTICS.get((node.op_type, index)):
            return Decision(name, False, reason, elements, statistic=True)
    if not writable:
        return Decision(name, False, "stands inside a function of the model", elements)
    if not reached:
        return Decision(name, False, "no differentiable path to the loss", elements)
    reasons = [_not_a_weight(value, node, index) for node, index in value.uses()]
    if reasons and all(reasons):
        return Decision(name, False, str(reasons[0]), elements)
    return Decision(name, True, "weight", elements)


def _not_a_weight(value: ir.Value, node: ir.Node, index: int) -> str | None:
    """Why a tensor is a constant in this use, or None if it may be a weight."""
    tensor = value.const_value
    assert tensor is not None
    if reason := _SETTINGS.get((node.op_type, index)):
        return reason
    if tensor.size == 1 and node.op_type not in _HOLDERS and not _is_bias(value, node):
        return f"single number in {op_name(node.domain, node.op_type)}"
    if node.op_type in _ELEMENTWISE and tensor.size <= 2**20:
        data = tensor.numpy().astype(np.float64)
        if not np.isfinite(data).all() or np.abs(data).max(initial=0) > 1e8:
            return "mask: it holds infinities or huge numbers"
    return None


def _is_bias(value: ir.Value, node: ir.Node) -> bool:
    """A number added to the result of a matrix product or convolution."""
    assert value.const_value is not None
    if node.op_type != "Add" or len(value.const_value.shape) == 0:
        return False
    others = [v for v in node.inputs if v is not None and v is not value]
    producers = [v.producer() for v in others]
    return any(p is not None and p.op_type in _LINEAR for p in producers)


def _leads_to(graph: ir.Graph, outputs: Sequence[str] | None) -> set[ir.Value]:
    """Values from which floating point tensors flow to the outputs."""
    reached = {v for v in graph.outputs if outputs is None or v.name in outputs}
    for node in reversed(list(graph)):
        if any(v in reached for v in node.outputs if can_carry_gradient(v)):
            reached |= {v for v in node.inputs if can_carry_gradient(v)}  # type: ignore[misc]
    return reached


def _picked(
    decisions: Sequence[Decision],
    patterns: Sequence[str],
    reached: set[ir.Value],
    graph: ir.Graph,
) -> list[Decision]:
    """Decisions for what the user named; what cannot be trained is refused by name."""
    names = [d.name for d in decisions]
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(names, pattern) if pattern not in names else [pattern]
        if not found:
            raise ParameterError(
                f"no parameter matches '{pattern}'\n  have  {', '.join(names[:20])}"
                + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            )
        chosen |= set(found)
    result = []
    for decision in decisions:
        picked = decision.name in chosen
        if picked and decision.name in patterns:
            _check_named(decision, graph.initializers[decision.name] in reached)
        trained = picked and not decision.statistic and decision.reason in ("weight",)
        trained = trained or (picked and decision.name in patterns)
        reason = "asked for" if trained else (decision.reason if picked else "not asked for")
        result.append(dataclasses.replace(decision, trained=trained, reason=reason))
    return result


def _check_named(decision: Decision, reached: bool) -> None:
    if decision.statistic or not reached:
        raise ParameterError(f"cannot train '{decision.name}': {decision.reason}")
