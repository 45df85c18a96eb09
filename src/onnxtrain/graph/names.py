"""Names in messages: those that a reader may have meant, and not hundreds of others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from onnxtrain.types import DataType

GENERATED = re.compile(r"onnx::.*::(\d+)(?:/.*)?")
"""Names that blocks give to what they add to a model; nobody names it in a program."""
MOST = 8
"""How many names a message has."""
_ALIKE = 0.6
"""From which similarity on a name may have been meant by another."""


def listed(texts: Iterable[str]) -> str:
    """The first of several texts, and how many more there are."""
    every = list(texts)
    more = f" and {len(every) - MOST} more" if len(every) > MOST else ""
    return ", ".join(every[:MOST]) + more


def nearest(wanted: Sequence[str], names: Iterable[str]) -> str:
    """Some of several names, and how many more there are.

    Those like the first of the wanted ones come first, and what blocks made comes last.
    """
    ordered = sorted(dict.fromkeys(names), key=is_generated)
    likeness = {n: max((_likeness(w, n) for w in wanted[:MOST]), default=0.0) for n in ordered}
    ordered.sort(key=lambda name: -likeness[name])
    return listed(ordered) or "none"


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
