"""Nested data as a flat list of tensors and a schema, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import torch

Primitive = bool | int | float | str | bytes | None
ORTModelInputOutputType = Primitive | torch.Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model may take or give: numbers, text, tensors, and lists and mappings of these."""
ORTModelInputOutputSchemaType = Union[Primitive, "TensorSlot", Sequence[Any], Mapping[str, Any]]
"""The same, with a slot for every tensor."""


class PrimitiveType:
    """Values that are not tensors and not made of others."""

    _TYPES = (bool, int, float, str, bytes, type(None))

    @staticmethod
    def is_primitive_type(value: Any) -> bool:
        """Whether a value is a number, a text or None."""
        return isinstance(value, PrimitiveType._TYPES)

    @staticmethod
    def get_tensor(value: float, device: torch.device | str) -> torch.Tensor:
        """A number as a tensor of rank 0."""
        return torch.tensor(value, device=device)


class TensorSlot:
    """The place of a tensor in a schema: its position in the flat list."""

    def __init__(self, tensor_idx: int, name: str | None = None) -> None:
        self.tensor_idx = tensor_idx
        self.name = name

    def __repr__(self) -> str:
        return f"TensorSlot({self.tensor_idx}, {self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSlot) and self.tensor_idx == other.tensor_idx

    def __hash__(self) -> int:
        return hash(self.tensor_idx)


def extract_data_and_schema(
    data: ORTModelInputOutputType,
    constant_as_tensor: bool = False,
    device: torch.device | str | None = None,
) -> tuple[list[torch.Tensor], ORTModelInputOutputSchemaType]:
    """The tensors in nested data, and the data with a slot for each of them.

    Args:
        data: Tensors, numbers, text, None, and lists, tuples and mappings of these.
        constant_as_tensor: Whether numbers become tensors too.
        device: Where those are made.

    Raises:
        TypeError: if there is anything else in it.
    """
    found: list[torch.Tensor] = []

    def taken(value: Any, name: str) -> Any:
        if constant_as_tensor and isinstance(value, (bool, int, float)):
            value = PrimitiveType.get_tensor(value, device or "cpu")
        if isinstance(value, torch.Tensor):
            found.append(value)
            return TensorSlot(len(found) - 1, name)
        return value

    return found, _mapped(data, taken)


def unflatten_data_using_schema(
    data: Sequence[torch.Tensor], schema: ORTModelInputOutputSchemaType
) -> ORTModelInputOutputType:
    """Nested data from its tensors and its schema.

    Raises:
        ValueError: if there are not as many tensors as slots.
    """
    slots = sum(1 for value in _leaves(schema) if isinstance(value, TensorSlot))
    if slots != len(data):
        raise ValueError(f"the schema has {slots} slots, there are {len(data)} tensors")

    def filled(value: Any, name: str) -> Any:
        del name
        return data[value.tensor_idx] if isinstance(value, TensorSlot) else value

    result: ORTModelInputOutputType = _mapped(schema, filled)
    return result


def _mapped(data: Any, function: Any, name: str = "") -> Any:
    """Nested data with a function applied to everything that is not made of others."""
    if isinstance(data, Mapping):
        items = {key: _mapped(value, function, _path(name, key)) for key, value in data.items()}
        return items if type(data) is dict else type(data)(items)  # type: ignore[call-arg]
    if isinstance(data, (list, tuple)):
        parts = [_mapped(value, function, _path(name, i)) for i, value in enumerate(data)]
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*parts)
        return type(data)(parts)
    if not isinstance(data, (torch.Tensor, TensorSlot)) and not (
        PrimitiveType.is_primitive_type(data)
    ):
        raise TypeError(f"'{name}' is a {type(data).__name__}, which cannot be flattened")
    return function(data, name)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for value in data:
            yield from _leaves(value)
    else:
        yield data


def _path(name: str, key: Any) -> str:
    return f"{name}-{key}" if name else str(key)
