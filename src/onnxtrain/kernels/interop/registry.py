"""What nodes may call: autograd functions, Triton functions and Python objects, by name.

A model never makes the process import anything. What it names must be registered, or, for autograd
functions, stand under its qualified name in a module that the program itself has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_autograd_functions: dict[str, type[torch.autograd.Function]] = {}
_triton_functions: dict[str, Callable[..., Any]] = {}
_objects: dict[int, object] = {}


def qualified_name(cls: type) -> str:
    """The name under which PythonOp nodes refer to a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_autograd_function(
    cls: type[torch.autograd.Function], name: str | None = None
) -> type[torch.autograd.Function]:
    """Let PythonOp nodes call a function under a name, by default its qualified one."""
    _autograd_functions[name or qualified_name(cls)] = cls
    return cls


def autograd_function(name: str) -> type[torch.autograd.Function]:
    """The autograd function with a name.

    Raises:
        ValueError: if there is none.
    """
    found = _autograd_functions.get(name) or _imported(name)
    if not isinstance(found, type) or not issubclass(found, torch.autograd.Function):
        known = ", ".join(sorted(_autograd_functions)) or "none"
        raise ValueError(
            f"there is no torch.autograd.Function '{name}'\n  registered  {known}\n"
            "  import its module, or register it with register_autograd_function"
        )
    return found


def _imported(name: str) -> Any:
    """What a qualified name refers to, in modules that are imported already."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for part in parts[count:]:
                found = getattr(found, part, None)
            return found
    return None


def register_object(value: object) -> int:
    """Keep an object for ``input_pointer_scalars``; gives the number that stands for it."""
    _objects[id(value)] = value
    return id(value)


def registered_object(number: int) -> object:
    """The object that a number stands for.

    Raises:
        ValueError: if none was registered under it.
    """
    if number not in _objects:
        raise ValueError(
            f"no Python object is registered as {number}; keep it with register_object"
        )
    return _objects[number]


def register_triton_function(name: str, function: Callable[..., Any]) -> None:
    """Let TritonOp nodes call a function of tensors and keyword arguments under a name."""
    _triton_functions[name] = function


def triton_function(name: str) -> Callable[..., Any]:
    """The Triton function with a name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _triton_functions:
        known = ", ".join(sorted(_triton_functions)) or "none"
        raise ValueError(
            f"there is no Triton function '{name}'\n  registered  {known}\n"
            "  register it with register_triton_function"
        )
    return _triton_functions[name]
