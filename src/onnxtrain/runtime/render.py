"""Attributes and host constants as Python source."""

from __future__ import annotations

import keyword
import math
from typing import Any

import onnx_ir as ir

LONGEST = 32
"""Host constants with more elements than this are bound by name instead of printed."""
LONGEST_TEXT = 1000
"""So are texts of more characters, as the tables of a tree ensemble that is trained."""


def parameter(name: str) -> str:
    """The Python parameter of an attribute (``lambda`` becomes ``lambda_``)."""
    return name + "_" if keyword.iskeyword(name) else name


def is_default(attribute: ir.Attr, default: Any) -> bool:
    """Whether an attribute says no more than a kernel's default, and need not be printed."""
    value: Any = attribute.value
    return (
        type(value) is type(default) and isinstance(value, (int, float, str)) and value == default
    )


def attribute_text(attribute: ir.Attr) -> str | None:
    """Source of an attribute's value, or None if it must be bound by name."""
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.INT:
        return repr(value)
    if attribute.type == ir.AttributeType.STRING:
        return repr(value) if len(value) <= LONGEST_TEXT else None
    if attribute.type == ir.AttributeType.FLOAT:
        return repr(value) if math.isfinite(value) else None
    if attribute.type in (
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
    ):
        return host_literal(list(value), as_tuple=True)
    return None


def host_literal(data: Any, *, as_tuple: bool = False) -> str | None:
    """Source of a number or of nested lists of numbers, or None if long or not printable."""
    if isinstance(data, list):
        if len(data) > LONGEST:
            return None
        items = [host_literal(item) for item in data]
        if any(item is None for item in items):
            return None
        text = ", ".join(item for item in items if item is not None)
        if as_tuple:
            return f"({text}{',' if len(items) == 1 else ''})"
        return f"[{text}]"
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return repr(data) if isinstance(data, (bool, int, float, str)) else None
