"""Words every package uses: providers, operator domains, element types and axes (no torch)."""

from __future__ import annotations

import enum

import onnx_ir as ir

DataType = ir.DataType

ONNX = ""
"""The operator domain of ONNX itself (also written ``ai.onnx``)."""
MS = "com.microsoft"
"""The operator domain of the training operators and of onnxruntime's fused ones."""
ML = "ai.onnx.ml"
"""The operator domain of ONNX's classical machine learning."""
TRAINING = "ai.onnx.preview.training"
"""The operator domain of ONNX's own Gradient and optimizers."""
OWN = "onnxtrain"
"""The operator domain of what only onnxtrain has."""


class Provider(enum.Enum):
    """Where a kernel runs; the value is the name that onnxruntime's users know."""

    CPU = "CPUExecutionProvider"
    CUDA = "CUDAExecutionProvider"

    def __str__(self) -> str:
        return self.name


CPU = Provider.CPU
CUDA = Provider.CUDA

FLOATS = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE})
"""Types that may carry a gradient."""
INTS = frozenset({DataType.INT32, DataType.INT64})
"""Types of indices."""
INTEGERS = frozenset(
    {
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
    }
)
BOOL = frozenset({DataType.BOOL})
NUMBERS = FLOATS | INTEGERS
FIXED = NUMBERS | BOOL
"""Every type with a fixed element size that torch computes with."""
FLOAT8 = frozenset(
    {
        DataType.FLOAT8E4M3FN,
        DataType.FLOAT8E4M3FNUZ,
        DataType.FLOAT8E5M2,
        DataType.FLOAT8E5M2FNUZ,
    }
)
_NARROW_NAMES = ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2")
NARROW = frozenset(dtype for dtype in DataType if dtype.name in _NARROW_NAMES)
"""Types of less than a byte, which are kept in wider ones while a model runs."""
TEXT = frozenset({DataType.STRING})

ALL_BUT_CHANNELS = (0, 2, 3)
"""Axes of images; of tensors with fewer axes they mean those that there are."""

_STRINGS: dict[DataType, str] = {
    DataType.FLOAT: "float",
    DataType.DOUBLE: "double",
    **{t: t.name.lower() for t in INTEGERS},
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.BOOL: "bool",
    DataType.STRING: "string",
    DataType.COMPLEX64: "complex64",
    DataType.COMPLEX128: "complex128",
    **{t: t.name.lower() for t in NARROW},
    DataType.FLOAT8E4M3FN: "float8e4m3fn",
    DataType.FLOAT8E4M3FNUZ: "float8e4m3fnuz",
    DataType.FLOAT8E5M2: "float8e5m2",
    DataType.FLOAT8E5M2FNUZ: "float8e5m2fnuz",
    DataType.FLOAT8E8M0: "float8e8m0",
}
_TENSOR_STRINGS = {t: f"tensor({_STRINGS.get(t, t.name.lower())})" for t in DataType}
_FROM_STRINGS = {name: dtype for dtype, name in _STRINGS.items()}


def dtype_name(dtype: DataType) -> str:
    """Name of an element type as schemas write it: ``float``, ``int64``."""
    return _STRINGS.get(dtype, dtype.name.lower())


def parse_dtype(text: str) -> DataType:
    """Element type of ``float`` or ``tensor(float)``.

    Raises:
        KeyError: if no element type has that name.
    """
    return _FROM_STRINGS[text.removeprefix("tensor(").removesuffix(")")]


def type_string(type_: ir.TypeProtocol | None) -> str:
    """Type as onnxruntime writes it: ``tensor(float)``, ``seq(tensor(int64))``."""
    if type_ is None:
        return "unknown"
    if isinstance(type_, ir.TensorType):
        return _TENSOR_STRINGS[type_.dtype]
    if isinstance(type_, ir.SequenceType):
        return f"seq({type_string(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({type_string(type_.elem_type)})"
    return f"tensor({dtype_name(type_.dtype)})"


def op_name(domain: str, op_type: str) -> str:
    """Full name of an operator, as error messages print it."""
    return f"{domain or 'ai.onnx'}::{op_type}"
