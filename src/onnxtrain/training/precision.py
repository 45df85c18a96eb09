"""What a training step computes in."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.transforms.precision import narrow_type
from onnxtrain.types import FLOATS, DataType


def computed_in(model: ir.Model, trained: Sequence[str], precision: str) -> DataType | None:
    """The type of 16 bits that a precision asks for, None for the model's own types.

    Raises:
        OptionError: if there is no such precision, or if it would change nothing, because the
            trained weights are not float32.
    """
    narrow = narrow_type(precision)
    found = (model.graph.initializers[name].dtype for name in trained)
    types = {dtype for dtype in found if dtype is not None and dtype in FLOATS}
    if narrow is None or not types or types & {DataType.FLOAT, narrow}:
        return narrow
    has = ", ".join(sorted(t.name.lower() for t in types))
    raise OptionError(
        f"precision '{precision}' is for models in float32, the weights of this one are {has}\n"
        "  leave the precision out to train in the model's own types, or export it in float32"
    )
