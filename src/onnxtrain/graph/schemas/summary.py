"""TensorBoard summaries; each result is one serialized record."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import op, required
from onnxtrain.graph.schemas.infer import SCALAR, fixed, typed
from onnxtrain.types import BOOL, FLOATS, DataType

STRING = frozenset({DataType.STRING})
RECORD = typed(fixed(DataType.STRING), SCALAR)

OPS = (
    op(
        "SummaryScalar",
        "input: T -> summary: S",
        T=FLOATS | BOOL,
        S=STRING,
        tags=required("strings"),
        infer=RECORD,
    ),
    op(
        "SummaryHistogram",
        "input: T -> summary: S",
        T=FLOATS,
        S=STRING,
        tag=required("string"),
        infer=RECORD,
    ),
    op("SummaryMerge", "input+: S -> summary: S", S=STRING, infer=RECORD),
    op("SummaryText", "input: S -> summary: S", S=STRING, tag=required("string"), infer=RECORD),
)
