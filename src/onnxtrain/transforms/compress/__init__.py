"""Values that wait for the backward pass in fewer bits, by the codecs of GIST.

An encoder stands behind the last node of the forward pass that reads a value, a decoder in front of
the first one of the backward pass; what is between them holds the code alone. It runs when a step
is planned, behind what computes values again: files never have it.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.transforms.compress.codecs import BITS, CODECS, EXACT, coded
from onnxtrain.transforms.compress.readers import VIEWS, Readers
from onnxtrain.transforms.recompute.again import compute_again
from onnxtrain.transforms.recompute.forward import Forward, bytes_of
from onnxtrain.transforms.recompute.kept import kept_values

__all__ = ["CODECS", "EXACT", "compress"]


def compress(model: ir.Model, codec: str | None) -> int:
    """Let values wait for the backward pass in fewer bits, in place.

    Truth values, and numbers of which only the sign is asked, take a bit each, and nothing is
    lost. Other numbers are rounded to the codec's where only gradients read them to which that does
    little: products, and operators element by element or of normalizations.

    Args:
        model: A training model, whose gradients are behind its losses or behind a YieldOp.
        codec: One of ``CODECS``, or None for nothing.

    Returns:
        How many values are encoded.

    Raises:
        OptionError: if there is no such codec.
    """
    if codec is None:
        return 0
    if codec not in tuple(CODECS):
        raise OptionError(
            f"there is no codec {codec!r} for what waits for the backward pass\n"
            f"  have  {', '.join(map(repr, CODECS))}, or None"
        )
    graph = model.graph
    _share_storage(graph)
    forward = Forward.of(graph)
    readers = Readers(forward)
    count = 0
    for value in sorted(forward.needed - forward.outputs, key=forward.made.__getitem__):
        uses = readers.of(value)
        if uses is None or not bytes_of(value):
            continue
        kind = BITS if uses.only_signs else CODECS[codec]
        if kind is not None and (kind is BITS or uses.roughly) and coded(graph, value, uses, kind):
            count += 1
    return count


def _share_storage(graph: ir.Graph) -> None:
    """Let the backward pass make its own views, so that none is encoded beside what it is of."""
    forward = Forward.of(graph)

    def is_view(value: ir.Value) -> bool:
        node = value.producer()
        return node is not None and node.domain == "" and node.op_type in VIEWS

    compute_again(forward, kept_values(forward, is_view))
