"""What every model goes through before it is planned or differentiated."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.embedded import define_embedded
from onnxtrain.graph.functions import inline_functions
from onnxtrain.graph.grammar import check_nodes
from onnxtrain.graph.inference.einsum import check_equations
from onnxtrain.graph.inference.infer import find_types, infer
from onnxtrain.graph.inference.misread import spell_out
from onnxtrain.graph.loops import settle_loops
from onnxtrain.graph.tidy import tidy
from onnxtrain.graph.upgrade import needs_upgrade, upgrade
from onnxtrain.graph.verify import verify
from onnxtrain.graph.withdrawn import replace_withdrawn


def prepare(model: ir.Model) -> ir.Model:
    """Inline functions, turn Constant nodes into initializers, infer types and shapes, in place.

    Shapes that the model declares for what it computes are taken with care: files are often wrong.

    Raises:
        GraphError: if the graph breaks a rule; the message names the node or value.
    """
    verify(model)
    define_embedded(model)
    inline_functions(model)
    replace_withdrawn(model)
    tidy(model)
    check_nodes(model)
    spell_out(model)
    check_equations(model)
    settle_loops(model)
    if needs_upgrade(model):
        upgrade(model)
    return infer(model)


def complete(model: ir.Model) -> ir.Model:
    """Bring what was added to a prepared model by builders into the same form, in place."""
    tidy(model)
    spell_out(model)
    settle_loops(model)
    find_types(model)
    return model
