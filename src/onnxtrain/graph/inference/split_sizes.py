"""Split into more parts than there are chunks for: those behind the end are empty.

ONNX divides an axis by ``num_outputs`` and rounds up, so that 5 elements in 4 parts are 2, 2, 1 and
none. Its inference gives every part but the last one the whole size, and that less than none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.types import ONNX


def is_oversplit(node: ir.Node) -> bool:
    """Whether ONNX's inference gets the sizes of a node's parts wrong."""
    return _sizes(node) is not None


def give_sizes(
    node: ir.Node,
    proto: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
) -> None:
    """Tell inference the sizes of such parts."""
    sizes = _sizes(node)
    if sizes is None:
        return
    name = f"{proto.input[0]}/sizes"
    tensor = onnx.numpy_helper.from_array(np.array(sizes, np.int64), name)
    types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    data[name] = tensor
    kept = [a for a in proto.attribute if a.name != "num_outputs"]
    del proto.attribute[:], proto.input[1:]
    proto.attribute.extend(kept)
    proto.input.append(name)


def _sizes(node: ir.Node) -> Sequence[int] | None:
    """The sizes of parts of which some but the last are not whole; None if there are no such."""
    count = node.attributes.get_int("num_outputs", 0)
    if node.domain != ONNX or node.op_type != "Split" or not count:
        return None
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return None
    size = x.shape[axis]
    if not isinstance(size, int):
        return None
    each = -(-size // count)
    if each * (count - 1) <= size:
        return None
    return [max(0, min(each, size - each * part)) for part in range(count)]
