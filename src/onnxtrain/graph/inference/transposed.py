"""ConvTranspose whose sizes ONNX's inference gets wrong.

With ``auto_pad`` it cuts off what the kernel has more than the stride, and forgets that
``output_padding`` makes even more. Runtimes cut off that too, so that each size is the stride times
the input's. At a size of ``output_shape`` that is smaller than the input's it ends, and leaves out
that axis and all behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxtrain.types import ONNX


def is_mispadded(node: ir.Node) -> bool:
    """Whether ONNX's inference gets the sizes of a node wrong."""
    if node.domain != ONNX or node.op_type != "ConvTranspose":
        return False
    if "output_shape" in node.attributes:
        return any(n is not None and wanted < n for n, wanted in _wanted_sizes(node))
    same = node.attributes.get_string("auto_pad", "").startswith("SAME")
    return same and any(node.attributes.get_ints("output_padding", ()))


def _wanted_sizes(node: ir.Node) -> list[tuple[int | None, int]]:
    """Sizes of the input, as far as they are known, and those that ``output_shape`` asks for."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None or len(x.shape) < 3:
        return []
    sizes = [size if isinstance(size, int) else None for size in x.shape[2:]]
    wanted = node.attributes.get_ints("output_shape", ())[-len(sizes) :]
    return [*zip(sizes, wanted, strict=True)] if len(wanted) == len(sizes) else []


def padded(node: ir.Node) -> onnx.NodeProto:
    """The node for inference: one that is mispadded has the pads that its attributes stand for."""
    proto = ir.serde.serialize_node(node)
    sizes = kernel_sizes(node) if is_mispadded(node) else None
    if sizes is None:
        return proto
    ones, zeros = [1] * len(sizes), [0] * len(sizes)
    strides, dilations = (node.attributes.get_ints(n, ones) for n in ("strides", "dilations"))
    extra = node.attributes.get_ints("output_padding", zeros)
    # what a size has more than the stride times that of the input
    surplus = [
        (size - 1) * dilation + 1 + more - stride
        for size, stride, dilation, more in zip(sizes, strides, dilations, extra, strict=True)
    ]
    if "output_shape" in node.attributes:
        # of a size that is not known one is made that is not known either
        surplus = [
            0 if n is None else stride * n + more - wanted
            for (n, wanted), stride, more in zip(_wanted_sizes(node), strides, surplus, strict=True)
        ]
        extra = [more + max(0, -cut) for more, cut in zip(extra, surplus, strict=True)]
    made = {"pads": zeros + [max(0, cut) for cut in surplus], "output_padding": extra}
    kept = [a for a in proto.attribute if a.name not in (*made, "auto_pad", "output_shape")]
    del proto.attribute[:]
    proto.attribute.extend([*kept, *itertools.starmap(onnx.helper.make_attribute, made.items())])
    return proto


def kernel_sizes(node: ir.Node) -> Sequence[int] | None:
    """The sizes of the kernel, by the attribute or by the weight; None if they are not known."""
    if "kernel_shape" in node.attributes:
        return node.attributes.get_ints("kernel_shape")
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.shape is None:
        return None
    sizes = [size for size in weight.shape[2:] if isinstance(size, int)]
    return sizes if len(sizes) == len(weight.shape) - 2 else None
