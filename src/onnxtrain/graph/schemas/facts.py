"""What ONNX's inference knows about a node: types, shapes, constants and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import numpy_helper
from onnx.shape_inference import InferenceContext

Dim = int | str | None
"""A dimension: its size, the name of its symbol, or None when nothing is known."""
Shape = tuple[Dim, ...]
Default = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
"""The default value of an attribute."""
Rule = Callable[["Facts", int], onnx.TypeProto | None]
"""Type of the output with the given index, or None to leave it open."""

UNKNOWN = onnx.TensorProto.UNDEFINED
_DTYPES = frozenset(onnx.TensorProto.DataType.values())
_MAX_SIZE = 2**63 - 1
_WHOLE_NUMBERS = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})


class Facts:
    """One node under inference; asking for what is absent or unknown never fails.

    Args:
        context: ONNX's view of the node.
        defaults: values of the attributes that the node may leave out.
    """

    def __init__(self, context: InferenceContext, defaults: Mapping[str, Default]) -> None:
        self._context = context
        self._defaults = defaults
        self.inputs = context.get_num_inputs()
        self.outputs = context.get_num_outputs()

    def type(self, index: int) -> onnx.TypeProto | None:
        """Type of an input, or None if it is absent or untyped."""
        if not self._present(index):
            return None
        return self._context.get_input_type(index)

    def dtype(self, index: int) -> int:
        """Element type of a tensor input, ``UNKNOWN`` if there is none."""
        type_ = self.type(index)
        return UNKNOWN if type_ is None else type_.tensor_type.elem_type

    def shape(self, index: int) -> Shape | None:
        """Shape of a tensor input, or None if not even its rank is known."""
        type_ = self.type(index)
        if type_ is None or not type_.tensor_type.HasField("shape"):
            return None
        return _dims(type_.tensor_type.shape)

    def numbers(self, index: int) -> Shape | None:
        """Content of an int32 or int64 input: a constant, or shapes traced by ``data_prop``."""
        if not self._present(index):
            return None
        symbolic = self._context.get_symbolic_input(index)
        if symbolic is not None:
            return _dims(symbolic)
        data = self._context.get_input_data(index)
        if data is None or data.data_type not in _WHOLE_NUMBERS:
            return None
        if data.data_location == onnx.TensorProto.EXTERNAL:
            return None
        try:
            return tuple(int(value) for value in numpy_helper.to_array(data).reshape(-1))
        except ValueError:  # a damaged constant: the checker reports it better
            return None

    def integer(self, name: str) -> int | None:
        """An int attribute of the node, else its default, else None."""
        attribute = self._context.get_attribute(name)
        if attribute is not None:
            return attribute.i
        default = self._defaults.get(name)
        return default if isinstance(default, int) else None

    def integers(self, name: str) -> list[int]:
        """A list-of-ints attribute; empty if the node has none."""
        attribute = self._context.get_attribute(name)
        return [] if attribute is None else list(attribute.ints)

    def text(self, name: str) -> str:
        """A string attribute of the node, else its default."""
        attribute = self._context.get_attribute(name)
        if attribute is not None:
            return attribute.s.decode(errors="replace")
        return str(self._defaults.get(name, ""))

    def _present(self, index: int) -> bool:
        return 0 <= index < self.inputs and self._context.has_input(index)


def infer_with(
    rules: Sequence[Rule], defaults: Mapping[str, Default]
) -> Callable[[InferenceContext], None]:
    """Inference function with one rule an output; the last serves all further outputs."""

    def infer(context: InferenceContext) -> None:
        facts = Facts(context, defaults)
        for index in range(facts.outputs):
            if not context.has_output(index):
                continue
            type_ = rules[min(index, len(rules) - 1)](facts, index)
            if type_ is not None:
                context.set_output_type(index, type_)

    return infer


def tensor_type(dtype: int, shape: Shape | None) -> onnx.TypeProto | None:
    """Tensor type of what is known; an unknown element type is left to the graph's declaration."""
    dtype = dtype if dtype in _DTYPES else UNKNOWN
    if dtype == UNKNOWN:
        return None
    type_ = onnx.TypeProto()
    type_.tensor_type.elem_type = dtype
    if shape is None:
        return type_
    type_.tensor_type.shape.SetInParent()
    for size in shape:
        dim = type_.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size is not None and 0 <= size <= _MAX_SIZE:
            dim.dim_value = size
    return type_


def _dims(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(_dim(dim) for dim in shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None
