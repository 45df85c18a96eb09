"""Names and glob patterns of tensors and layers, as options give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnxtrain.errors import ParameterError

TRAINABLE = "trainable is 'auto', a Selection, or"
"""How a message begins that refuses a choice of weights."""


def patterns_of(given: object, head: str) -> list[str]:
    """Names and glob patterns: one, or several.

    Raises:
        ParameterError: if they are something else; the message begins with ``head``.
    """
    if isinstance(given, str):
        return [given]
    found: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if odd := [one for one in found if not isinstance(one, str)]:
        raise ParameterError(
            f"{head} names and patterns, not {odd[0]!r}\n  give  ['fc1.*', 'fc2.bias'], say"
        )
    return found
