"""Strings for kernels that only move elements: they get the places of the strings in a list."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

NOTHING = ""
"""At place 0, where kernels that fill with 0 put it."""


def by_place(
    kernel: Callable[..., Any], texts: Sequence[bool], *, single: bool
) -> Callable[..., Any]:
    """A kernel for strings made of one for whole numbers.

    Args:
        kernel: What moves the elements.
        texts: Which outputs are strings.
        single: Whether it returns its only output bare.
    """

    @functools.wraps(kernel)
    def moved(*args: Any, out: Any = None, **keywords: Any) -> Any:
        strings = [NOTHING]
        results = kernel(*(_numbered(arg, strings) for arg in args), **keywords)
        known = np.array(strings, object)
        values = [results] if single else results
        found = [
            _named(value, known) if is_text else value
            for value, is_text in zip(values, [*texts, *[False] * len(values)], strict=False)
        ]
        return found[0] if single else found

    return moved


def _numbered(value: Any, strings: list[str]) -> Any:
    """Places of strings that are added to a list; everything else as it is."""
    if isinstance(value, list):
        return [_numbered(item, strings) for item in value]
    start = len(strings)
    if isinstance(value, (str, bytes)):  # bytes come from initializers
        strings.append(value if isinstance(value, str) else value.decode())
        return start
    if not isinstance(value, np.ndarray):
        return value
    strings += value.reshape(-1).tolist()
    return torch.arange(start, len(strings)).reshape(value.shape)


def _named(value: Any, strings: Any) -> Any:
    """The strings at places."""
    if isinstance(value, (list, tuple)):
        return [_named(item, strings) for item in value]
    if value is None:
        return None
    return np.asarray(strings[value.numpy()], object)
