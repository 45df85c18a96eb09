"""Field numbers of the tables of a checkpoint file."""

from __future__ import annotations

import enum

IDENTIFIER = b"ODTC"
VERSION = 2
NO_OFFSET = -1
"""External offset of a tensor whose values are in the checkpoint file itself."""


class Checkpoint(enum.IntEnum):
    """The root table."""

    VERSION = 0
    MODULE_STATE = 1
    OPTIMIZER_GROUPS = 2
    PROPERTY_BAG = 3


class ModuleState(enum.IntEnum):
    """The parameters."""

    TRAINABLE = 0
    FROZEN = 1
    IS_NOMINAL = 2
    HAS_EXTERNAL_DATA = 3


class OptimizerGroup(enum.IntEnum):
    """State of the optimizer for one group of parameters."""

    NAME = 0
    STEP = 1
    INITIAL_LEARNING_RATE = 2
    STATES = 3


class ParameterState(enum.IntEnum):
    """State of the optimizer for one parameter."""

    NAME = 0
    MOMENTS = 1


class PropertyBag(enum.IntEnum):
    """Vectors of properties by type."""

    INTS = 0
    FLOATS = 1
    STRINGS = 2


class Property(enum.IntEnum):
    """One property; its table has the same fields for every type."""

    NAME = 0
    VALUE = 1


class Tensor(enum.IntEnum):
    """A named tensor; documentation (1) and string data (5) are not used."""

    NAME = 0
    DIMS = 2
    ELEMENT_TYPE = 3
    RAW_DATA = 4
    EXTERNAL_OFFSET = 6
