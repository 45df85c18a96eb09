"""What a checkpoint holds, as plain data."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.formats.arrays import Array

ELEMENT_TYPES: dict[int, np.dtype[np.generic]] = {
    code: ir.DataType(code).numpy() for code in (*range(1, 8), *range(9, 21))
}
"""NumPy type of each element type number that a checkpoint may use (all but strings)."""


@dataclasses.dataclass
class OptimizerGroup:
    """State of the optimizer for one group of parameters.

    Attributes:
        step: steps taken so far.
        initial_learning_rate: learning rate that schedules start from (stored as float32).
        states: per parameter, ``momentum0`` and, for Adam, ``momentum1``.
    """

    step: int = 0
    initial_learning_rate: float = 0.0
    states: dict[str, dict[str, Array]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class CheckpointData:
    """Parameters, optimizer state and properties; the order of each dictionary is that of the file.

    Attributes:
        trainable: parameters that are trained.
        frozen: parameters that are not.
        optimizer_groups: state of the optimizer by group; the reference knows ``group0`` only.
        properties: the user's own values; floats are stored as float32, booleans as 0 and 1.
        nominal: whether the parameters have names and element types only; they are then read as
            empty arrays of their type.
    """

    trainable: dict[str, Array] = dataclasses.field(default_factory=dict)
    frozen: dict[str, Array] = dataclasses.field(default_factory=dict)
    optimizer_groups: dict[str, OptimizerGroup] = dataclasses.field(default_factory=dict)
    properties: dict[str, int | float | str] = dataclasses.field(default_factory=dict)
    nominal: bool = False
