"""Whole numbers that pick rows of a table in the model: are they there?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxtrain.data import parts
from onnxtrain.errors import FeedError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.training.trainer import Trainer

_PASSING = ("Cast", "Identity")
"""Operators that hand numbers on as they are."""


def check_indices(trainer: Trainer, arrays: Mapping[str, Any]) -> None:
    """Compare inputs that are looked up in a table, such as tokens, with its length.

    Raises:
        FeedError: if a number is not in the table.
    """
    for name, (table, rows) in _tables(trainer.module.runner(training=True).model).items():
        if name not in arrays:
            continue
        for part in parts(arrays[name]):
            low, high = (int(part.min()), int(part.max())) if part.size else (0, 0)
            if low < -rows or high >= rows:
                raise FeedError(
                    f"'{name}' has numbers from {low} to {high}, the model looks them up in "
                    f"'{table}', which has {rows} rows: 0 to {rows - 1}\n"
                    f"  take the tokens that the model was made for, or another array with "
                    f"--map {name}=ARRAY"
                )


def _tables(model: ir.Model) -> dict[str, tuple[str, int]]:
    """The smallest table that an input is looked up in, and its rows, by input."""
    found: dict[str, tuple[str, int]] = {}
    for node in model.graph:
        if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
            continue
        data, index = node.inputs[0], node.inputs[1]
        while index is not None and (maker := index.producer()) is not None:
            index = maker.inputs[0] if maker.op_type in _PASSING else None
        if data is None or index is None or not index.is_graph_input() or data.producer():
            continue
        rows = data.shape[0] if data.shape else None
        name = str(index.name)
        if isinstance(rows, int) and (name not in found or rows < found[name][1]):
            found[name] = (str(data.name), rows)
    return found
