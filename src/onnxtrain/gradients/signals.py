"""Control signals of transfers: flags that order what processes send each other.

The gradient of a signal is a signal: that of a Send's says that gradients may be received, that of
a Recv's that gradients were sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType

_TRANSFERS = ("Recv", "Send")


def is_signal(value: ir.Value | None) -> bool:
    """Whether a value is the flag that a Send or Recv waits for or raises."""
    if value is None or value.dtype != DataType.BOOL:
        return False
    maker = value.producer()
    if maker is not None and _is_transfer(maker) and value.index() == 0:
        return True
    return any(_is_transfer(node) and index == 0 for node, index in value.uses())


def _is_transfer(node: ir.Node) -> bool:
    return node.domain == MS and node.op_type in _TRANSFERS


def all_of(op: Ops, signals: Sequence[ir.Value]) -> ir.Value:
    """The signal that is raised when all of them are."""
    first, *others = signals
    for other in others:
        first = op.And(first, other)
    return first
