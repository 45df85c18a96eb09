"""ONNX's own Attention, where it does nothing that FlashAttention does not."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import is_used
from onnxtrain.transforms.fusion.attention import attend
from onnxtrain.transforms.fusion.heads import shared
from onnxtrain.transforms.fusion.masks import Settled
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import rank
from onnxtrain.transforms.fusion.scores import Added, Chosen, Mask
from onnxtrain.transforms.fusion.triangle import Masks
from onnxtrain.types import DataType

_MASK, _PAST = 3, 4


def matching(known: Masks) -> Pattern:
    """The pattern, for graphs of whose masks something is known."""

    def match(node: ir.Node) -> Match:
        q, k, v = node.inputs[:3]
        assert q is not None and k is not None and v is not None
        _refuse_more(node)
        if any(rank(value) != 4 for value in (q, k, v)) or q.shape is None or k.shape is None:
            raise Refusal("queries, keys and values are not all [batch, head, length, size]")
        _refuse_short_mask(node, k)
        size = q.shape[3]
        scale = node.attributes.get_float("scale", None)
        if scale is None and not isinstance(size, int):
            raise Refusal("the size of a head is not known, by which scores are scaled")
        factor = 1 / math.sqrt(int(str(size))) if scale is None else scale
        masks = Settled(_masks(node), (q.shape[2], k.shape[2]), q.dtype or DataType.FLOAT, known)
        causal = bool(node.attributes.get_int("is_causal", 0))

        def emit(op: Ops) -> ir.Value:
            return attend(op, (q, *shared(k, v)), factor, masks, is_causal=causal)

        return Match([node], emit)

    return Pattern("Attention", frozenset({"Attention"}), match)


def _masks(node: ir.Node) -> list[Mask]:
    mask = node.inputs[_MASK] if len(node.inputs) > _MASK else None
    if mask is None:
        return []
    return [Chosen(mask, True, -math.inf) if mask.dtype == DataType.BOOL else Added(mask)]


def _refuse_more(node: ir.Node) -> None:
    """A past, scores that are shown or bounded, a window, or more precision."""
    if any(value is not None for value in node.inputs[_PAST:]):
        raise Refusal("there are keys and values of the past, or lengths")
    if any(is_used(value) for value in node.outputs[1:]):
        raise Refusal("other results than the first are used")
    numbers = node.attributes
    if numbers.get_float("softcap", 0.0):
        raise Refusal("scores are bounded by a softcap")
    if any(numbers.get_int(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise Refusal("queries see a window only")
    if numbers.get_int("softmax_precision", DataType.FLOAT) == DataType.DOUBLE:
        raise Refusal("Softmax is to be computed in double")


def _refuse_short_mask(node: ir.Node, k: ir.Value) -> None:
    """A mask of fewer columns than there are keys closes the others."""
    mask = node.inputs[_MASK] if len(node.inputs) > _MASK else None
    if mask is None or mask.shape is None or k.shape is None:
        return
    if not same_dim(mask.shape[-1], k.shape[2]):
        raise Refusal(f"the mask has {mask.shape[-1]} columns for {k.shape[2]} keys")
