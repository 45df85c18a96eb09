"""What the backward pass does with a value of the forward pass, and how exactly it must know it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.transforms.recompute.again import SUFFIX
from onnxtrain.transforms.recompute.forward import Forward
from onnxtrain.types import MS, ONNX, OWN, DataType

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SIGNS = {(MS, "ReluGrad"): {1}}
_ROUGHLY = {
    ONNX: {"Gemm": {0, 1}, "MatMul": {0, 1}},
    MS: {
        "BatchNormalizationGrad": {1}, "BiasFastGeluGrad_dX": {1}, "BiasGeluGrad_dX": {1},
        "ConvGrad": {1}, "ConvTransposeGrad": {1}, "FastGeluGrad": {1}, "FusedMatMul": {0, 1},
        "GeluGrad": {1}, "LayerNormalizationGrad": {1}, "LeakyReluGrad": {1},
        "QuickGeluGrad": {1}, "ReluGrad": {1}, "SigmoidGrad": {1},
        "SimplifiedLayerNormalizationGrad": {1}, "SoftmaxGrad": {1}, "SoftmaxGrad_13": {1},
        "TanhGrad": {1},
    },
    OWN: {
        "BatchNormReluGrad": {1}, "GatedGrad": {1, 2}, "GatedHalvesGrad": {1},
        "GeluGradSum": {1}, "GroupNormalizedGrad": {1}, "LayerNormalizationGradAdd": {1},
        "SimplifiedLayerNormalizationGradAdd": {1},
    },
}  # fmt: skip
"""Inputs of gradients that may be rounded: what they give is off by about as much.

Attention is not among them, whose gradient takes exponentials of what it reads, and neither is what
is computed again: it would be rounded in the middle of the forward pass.
"""


@dataclasses.dataclass(frozen=True)
class Uses:
    """Who reads a value.

    Attributes:
        behind: The last node of the forward pass that reads it, or the one that makes it.
        later: Nodes of the backward pass that do, and which inputs of theirs it is.
        first: The first one of them.
        only_signs: Whether these ask no more than which numbers are positive, or true.
        roughly: Whether they may be given rounded numbers.
    """

    behind: ir.Node
    later: list[tuple[ir.Node, int]]
    first: ir.Node
    only_signs: bool
    roughly: bool


class Readers:
    """Finds who reads values of a forward pass."""

    def __init__(self, forward: Forward) -> None:
        self._place = {node: place for place, node in enumerate(forward.graph)}
        self._earlier = frozenset(forward.nodes)

    def of(self, value: ir.Value) -> Uses | None:
        """Who reads a value; None if it is held by somebody else, too."""
        uses = [(use.node, use.idx) for use in value.uses()]
        if any(node not in self._place or node.op_type == "YieldOp" for node, _ in uses):
            return None
        later = [(node, index) for node, index in uses if node not in self._earlier]
        maker = value.producer()
        assert maker is not None, "what the forward pass makes has a node"
        readers = [maker, *(node for node, _ in uses if node in self._earlier)]
        ends = list(_ends(later))
        signs = all(index in _SIGNS.get((node.domain, node.op_type), ()) for node, index in ends)
        return Uses(
            behind=max(readers, key=self._place.__getitem__),
            later=later,
            first=min((node for node, _ in later), key=self._place.__getitem__),
            only_signs=signs or value.dtype == DataType.BOOL,
            roughly=not _is_gradient(maker) and all(_is_roughly(*end) for end in ends),
        )


def _ends(uses: list[tuple[ir.Node, int]]) -> Iterator[tuple[ir.Node, int]]:
    """Readers of a value, and of views of it."""
    for node, index in uses:
        if node.domain == ONNX and node.op_type in VIEWS and not index:
            yield from _ends([(u.node, u.idx) for u in node.outputs[0].uses()])
        else:
            yield node, index


def _is_gradient(maker: ir.Node) -> bool:
    """Whether it is the backward pass that begins with what a node makes: numbers near zero."""
    return maker.op_type == "YieldOp" or maker.op_type.endswith("WithGrad")


def _is_roughly(node: ir.Node, index: int) -> bool:
    again = str(node.name).endswith(SUFFIX)
    return not again and index in _ROUGHLY.get(node.domain, {}).get(node.op_type, ())
