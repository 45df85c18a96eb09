"""ConvTranspose with ``auto_pad`` and ``output_padding``, whose sizes ONNX's inference gets wrong.

It cuts off what the kernel has more than the stride, and forgets that output_padding makes even
more. Runtimes cut off that too, so that each size is the stride times the input's.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxtrain.types import ONNX


def is_mispadded(node: ir.Node) -> bool:
    """Whether ONNX's inference gets the sizes of a node wrong."""
    return (
        node.domain == ONNX
        and node.op_type == "ConvTranspose"
        and node.attributes.get_string("auto_pad", "").startswith("SAME")
        and "output_shape" not in node.attributes
        and any(node.attributes.get_ints("output_padding", ()))
    )


def padded(node: ir.Node) -> onnx.NodeProto:
    """The node for inference: one that is mispadded has the pads that ``auto_pad`` stands for."""
    proto = ir.serde.serialize_node(node)
    sizes = _kernel_sizes(node) if is_mispadded(node) else None
    if sizes is None:
        return proto
    ones = [1] * len(sizes)
    strides, dilations = (node.attributes.get_ints(n, ones) for n in ("strides", "dilations"))
    extra = node.attributes.get_ints("output_padding", ())
    cut = [
        max(0, (size - 1) * dilation + 1 + more - stride)
        for size, stride, dilation, more in zip(sizes, strides, dilations, extra, strict=True)
    ]
    kept = [a for a in proto.attribute if a.name not in ("auto_pad", "pads")]
    del proto.attribute[:]
    proto.attribute.extend([*kept, onnx.helper.make_attribute("pads", [0] * len(cut) + cut)])
    return proto


def _kernel_sizes(node: ir.Node) -> Sequence[int] | None:
    """The sizes of the kernel, by the attribute or by the weight; None if they are not known."""
    if "kernel_shape" in node.attributes:
        return node.attributes.get_ints("kernel_shape")
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.shape is None:
        return None
    sizes = [size for size in weight.shape[2:] if isinstance(size, int)]
    return sizes if len(sizes) == len(weight.shape) - 2 else None
