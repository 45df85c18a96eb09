"""Which values are kept: those of the fewest bytes from which all others can be computed again.

That is a smallest cut of a network. A value is a pipe as wide as it has bytes; it is fed by the
values that its node reads, or by the source if its node is not computed again; what the backward
pass reads runs into the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from onnxtrain.transforms.recompute.flow import Network
from onnxtrain.transforms.recompute.forward import Forward, bytes_of
from onnxtrain.transforms.recompute.table import sources


def kept_values(
    forward: Forward, again: Callable[[ir.Value], bool], free: Collection[ir.Value] = ()
) -> set[ir.Value]:
    """Values of the forward pass that are kept, if some may be computed again.

    Of cuts that are equally small, the one that computes least again is taken.

    Args:
        forward: The forward pass.
        again: Whether a value may be.
        free: Values that are kept anyway, if they are needed to compute others.
    """
    network, free = Network(), forward.outputs.union(free)
    source, sink = network.vertex(), network.vertex()
    ends: dict[ir.Value, tuple[int, int]] = {}
    waiting = sorted(forward.needed, key=forward.made.__getitem__)
    for value in waiting:
        ends[value] = network.vertex(), network.vertex()
        network.edge(ends[value][1], sink, None)
    while waiting:
        value = waiting.pop()
        into, out = ends[value]
        width = 0 if value in free else bytes_of(value)
        network.edge(into, out, width)
        if not width or not again(value):
            network.edge(source, into, None)
            continue
        for given in sources(value):
            if given in forward.made:
                if given not in ends:
                    ends[given] = network.vertex(), network.vertex()
                    waiting.append(given)
                network.edge(ends[given][1], into, None)
    cut = network.behind_cut(source, sink)
    return {value for value, (into, out) in ends.items() if out in cut and into not in cut}
