"""Limits for gradients, applied before an optimizer sees them."""

from __future__ import annotations

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.numbers import check_limit
from onnxtrain.onnxblock.optim.sequences import GRADIENTS, declare_sequence, elements
from onnxtrain.types import MS


class ClipGradNorm(Block):
    """Scale gradients in place so that their common norm is at most ``max_norm``."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        check_limit("max_norm", max_norm)
        self.max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        """Clip a sequence of gradients; gives the name of the clipped sequence."""
        clipped = edit.generate_name("clip_grad_norm_output")
        attributes = {"max_norm": float(self.max_norm)}
        inputs = [gradients_name]
        edit.add_node(self.base, "InplaceClipGradNorm", inputs, [clipped], MS, attributes)
        declare_sequence(self.base, clipped, gradients_name)
        return clipped


class ClipGradValue(Block):
    """``min(max(g, -max_value), max_value)`` for every element of every gradient."""

    def __init__(self, max_value: float) -> None:
        super().__init__()
        check_limit("max_value", max_value)
        self.max_value = max_value

    def build(self, gradients_name: str, count: int) -> str:
        """Clip a sequence of so many gradients; gives the name of the clipped sequence."""
        names = elements(self.base, gradients_name, count)
        bounds = [number(self.base, bound, names[0]) for bound in (-self.max_value, self.max_value)]
        tensors = [edit.generate_name("clip_grad_value_output") for _ in names]
        for name, tensor in zip(names, tensors, strict=True):
            edit.add_node(self.base, "Clip", [name, *bounds], [tensor])
        return str(blocks.SequenceConstruct()(*tensors))


def clipped(block: Block | None, count: int) -> str:
    """Name of the gradients after a clipping block, if there is one."""
    if block is None:
        return GRADIENTS
    if not callable(block):
        raise OptionError(
            f"clip_grad is a block or None, not {block!r}\n  give  ClipGradNorm(1.0), say"
        )
    if isinstance(block, ClipGradValue):
        return str(block(GRADIENTS, count))
    return str(block(GRADIENTS))
