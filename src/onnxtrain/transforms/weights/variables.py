"""What names of TensorFlow's converter tell: variables are named after what has read them."""

from __future__ import annotations

import re

import onnx_ir as ir

_READ = "ReadVariableOp"
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
_NUMBERED = re.compile(r"(:|__)\d+$")
"""How names end that the converter gives."""


def is_converted(value: ir.Value) -> bool:
    """Whether the converter has named a tensor."""
    return bool(_NUMBERED.search(str(value.name)))


def is_variable(value: ir.Value, node: ir.Node) -> bool:
    """Whether a node computes with data and with a tensor that was a variable of the model.

    The scale of an attention layer, say, which looks like any other number. Variables that meet
    constants alone may be statistics.
    """
    others = [one for one in node.inputs if one is not None and one is not value]
    data = any(one.const_value is None for one in others)
    return _READ in str(value.name) and node.op_type in _ARITHMETIC and data
