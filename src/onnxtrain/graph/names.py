"""Names in messages: those that a reader may have meant, and not hundreds of others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from onnxtrain.types import DataType

GENERATED = re.compile(r"onnx::.*::(\d+)(?:/.*)?")
"""Names that blocks give to what they add to a model; nobody names it in a program."""
_ALIKE = 0.6
"""From which similarity on a name may have been meant by another."""


def nearest(wanted: Collection[str], names: Iterable[str], most: int = 8) -> str:
    """Some of several names, and how many more there are.

    Those like the wanted ones come first, and what blocks made comes last.
    """
    ordered = sorted(dict.fromkeys(names), key=is_generated)
    likeness = {name: max((_likeness(w, name) for w in wanted), default=0.0) for name in ordered}
    ordered.sort(key=lambda name: -likeness[name])
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{', '.join(ordered[:most])}{more}" or "none"


def _likeness(wanted: str, name: str) -> float:
    """How much two names are alike, from 0 (too little) to 1; capital letters do not matter."""
    matcher = difflib.SequenceMatcher(None, wanted.casefold(), name.casefold(), autojunk=False)
    if matcher.quick_ratio() < _ALIKE:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= _ALIKE else 0.0


def trainable(typed: Iterable[tuple[str, DataType | None]]) -> list[str]:
    """Names of tensors that could be trained: floating point, and no block made them."""
    return [
        name
        for name, dtype in typed
        if (dtype is None or dtype.is_floating_point()) and not is_generated(name)
    ]


def is_generated(name: str) -> bool:
    """Whether a block made a name up."""
    return GENERATED.fullmatch(name) is not None
