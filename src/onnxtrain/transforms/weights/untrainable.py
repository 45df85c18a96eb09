"""Where a model without weights keeps its numbers instead, and what helps."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import ML, DataType, dtype_name, op_name

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
_PACKED = frozenset({"ConvInteger", "MatMulInteger"})
_FEW_BITS = ("MatMul", "Gather", "Q", "DynamicQuantize")
_WHOLE = frozenset(
    {
        DataType.INT4,
        DataType.UINT4,
        DataType.INT8,
        DataType.UINT8,
        DataType.INT16,
        DataType.UINT16,
    }
)


def other_homes(graph: ir.Graph) -> list[str]:
    """A line for each place where numbers are that cannot be trained."""
    return [*_inputs(graph), *_whole_numbers(graph), *_attributes(graph)]


def _inputs(graph: ir.Graph) -> list[str]:
    """Weights of a file that was written without their values."""
    found = [v for v in graph.inputs if any(_takes_weight(*use) for use in v.uses())]
    if not found:
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"'{found[0].name}'{more}: an input, which has no value in the file; write the model with "
        "its weights, as initializers"
    ]


def _takes_weight(node: ir.Node, index: int) -> bool:
    return node.op_type in _LAYERS and index in (1, 2)


def _whole_numbers(graph: ir.Graph) -> list[str]:
    found = [
        value
        for value in graph.initializers.values()
        if value.dtype in _WHOLE and any(_takes_packed(node) for node, _ in value.uses())
        if value.const_value is not None and len(value.const_value.shape) > 1
    ]
    if not found:
        return []
    first, dtype = found[0], found[0].dtype
    assert dtype is not None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"'{first.name}' ({dtype_name(dtype)}){more}: stored as whole numbers; quantise the model "
        "in the QDQ format, or train adapters beside them (LoRA)"
    ]


def _takes_packed(node: ir.Node) -> bool:
    return node.op_type in _PACKED or (bool(node.domain) and node.op_type.startswith(_FEW_BITS))


def _attributes(graph: ir.Graph) -> list[str]:
    names = {node.op_type for node in graph.all_nodes() if node.domain == ML and _has_floats(node)}
    return [f"{op_name(ML, name)}: {_FIXED}" for name in sorted(names)]


_FIXED = (
    "its numbers are settings of the node, not weights; write them as Mul and Add to train them"
)


def _has_floats(node: ir.Node) -> bool:
    return any(a.type == ir.AttributeType.FLOATS for a in node.attributes.values())
