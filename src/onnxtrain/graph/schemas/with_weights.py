"""An operator that stands for others whose weights are tensors instead of attributes."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, op, optional, required
from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import typed
from onnxtrain.types import OWN


def _elem(facts: Facts, output: int) -> int:
    """The listed type; 0 stands for that of the weights."""
    listed = facts.integers("dtypes")
    return (listed[output] if output < len(listed) else 0) or facts.dtype(facts.inputs - 1)


def _rows(facts: Facts, output: int) -> Shape:
    """A row of scores for each row of the first input; labels stand before the scores."""
    given = facts.shape(0)
    rows: Dim = None if given is None else (given[0] if len(given) > 1 else 1)
    if output + 1 < facts.outputs:
        return (rows,)
    return (rows, facts.integer("columns") or None)


OPS = (
    op(
        "WithWeights",
        "values+: each T -> results+: each T",
        domain=OWN,
        T=ANY,
        of=required("string"),
        of_domain=required("string"),
        version=required("int"),
        weights=required("strings"),
        dtypes=optional("ints"),
        columns=0,
        options="{}",
        infer=typed(_elem, _rows),
    ),
)
