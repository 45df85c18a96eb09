"""Heads of keys and values that several heads of queries share, before they were repeated."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.inference.products import integers
from onnxtrain.transforms.fusion.reading import made_by, rank

HEADS = 1
"""The axis of heads, where there is one."""


def shared(k: ir.Value, v: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Keys and values before each head was repeated, if that was done to both alike."""
    few_k, few_v = _unrepeated(k), _unrepeated(v)
    if few_k.shape is None or few_v.shape is None or not same_dim(few_k.shape[1], few_v.shape[1]):
        return k, v
    return few_k, few_v


def _unrepeated(value: ir.Value) -> ir.Value:
    """[batch, heads, length, size] before each head was repeated; the value itself if none was.

    Repeating is written [b, h, t, d] -> [b, h, 1, t, d] -> [b, h, n, t, d] -> [b, h·n, t, d].
    """
    merged = made_by(value, "Reshape")
    grown = None if merged is None else made_by(merged.inputs[0], "Expand")
    lifted = None if grown is None else made_by(grown.inputs[0], "Unsqueeze")
    x = None if lifted is None else lifted.inputs[0]
    if grown is None or lifted is None or x is None or rank(x) != 4:
        return value
    axes = lifted.attributes.get_ints("axes", None) or integers(lifted.inputs[-1])
    if axes is None or [axis % 5 for axis in axes] != [HEADS + 1]:
        return value
    return x if _only_heads_grow(x, grown.outputs[0], value) else value


def _only_heads_grow(x: ir.Value, grown: ir.Value, merged: ir.Value) -> bool:
    """Whether sizes are [b, h, t, d], [b, h, n, t, d] and [b, h·n, t, d]."""
    if x.shape is None or grown.shape is None or merged.shape is None:
        return False
    before, middle, after = list(x.shape), list(grown.shape), list(merged.shape)
    if len(middle) != 5 or len(after) != 4:
        return False
    heads, times, all_heads = before[HEADS], middle[HEADS + 1], after[HEADS]
    if not isinstance(heads, int) or not isinstance(times, int) or all_heads != heads * times:
        return False
    kept = [*zip(before[:2], middle[:2], strict=True), *zip(before[2:], middle[3:], strict=True)]
    kept += [(before[axis], after[axis]) for axis in (0, 2, 3)]
    return all(same_dim(a, b) for a, b in kept)
