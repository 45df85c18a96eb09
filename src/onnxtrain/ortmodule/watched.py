"""What a call of a module reads besides tensors, and does besides giving results.

Numbers, flags and text that a module has as attributes are constants in a graph: it serves for as
long as they are the same. What else a call leaves behind, a graph does not.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxtrain.errors import GraphError
from onnxtrain.ortmodule.layout import PLAIN

SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""What stands for a size while a module is traced for any size."""
Settings = dict[str, dict[str, Any]]
"""Values of attributes, by the path of the module that has them."""
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}


def reads_of(module: nn.Module) -> contextlib.AbstractContextManager[Settings]:
    """With: plain attributes that are read, with their values, of the module and those in it."""
    return _Reads(module)


class _Reads(contextlib.ExitStack):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._paths = {id(part): path for path, part in module.named_modules()}
        self._classes = {type(part) for part in module.modules()}
        self._read: Settings = {}

    def __enter__(self) -> Any:
        usual = {cls: cls.__getattribute__ for cls in self._classes}
        for cls, original in usual.items():
            with contextlib.suppress(TypeError):  # classes that are not Python's are left alone
                self._replace(cls, self._watching(original))
        return self._read

    def _replace(self, cls: type, function: Any) -> None:
        own = cls.__dict__.get("__getattribute__")
        cls.__getattribute__ = function  # type: ignore[assignment]
        if own is None:
            self.callback(delattr, cls, "__getattribute__")
        else:
            self.callback(setattr, cls, "__getattribute__", own)

    def _watching(self, original: Any) -> Any:
        paths, read = self._paths, self._read

        def getattribute(self: nn.Module, name: str) -> Any:
            value = original(self, name)
            if isinstance(value, PLAIN) and id(self) in paths and name[:2] != "__":
                known = read.setdefault(paths[id(self)], {})
                if name not in known and _is_stored(self, original(self, "__dict__"), name):
                    known[name] = value
            return value

        return getattribute


def _is_stored(module: nn.Module, own: dict[str, Any], name: str) -> bool:
    """Whether an attribute is a value of a module or its class, and not computed."""
    return name in own or isinstance(inspect.getattr_static(type(module), name, ...), PLAIN)


def are_unchanged(parts: Mapping[str, nn.Module], settings: Settings) -> bool:
    """Whether modules, given by their paths, have the values that one was exported with."""
    for path, values in settings.items():
        part = parts.get(path)
        for name, value in values.items():
            now = getattr(part, name, None)
            if now is not value and not _is_same(now, value):
                return False
    return True


def attributes_of(module: nn.Module) -> Settings:
    """All attributes of a module and of those in it, lists and dicts with what is in them now.

    Torch's own modules only keep what torch knows of, such as lists of their weights.
    """
    return {
        path: {name: _held(value) for name, value in vars(part).items() if name not in _OF_TORCH}
        for path, part in module.named_modules()
        if not type(part).__module__.startswith("torch.nn.")
    }


def _held(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def refuse_changes(before: Settings, after: Settings) -> None:
    """Raise GraphError if a call has changed attributes, which a graph does not.

    New ones are what is computed once and kept, unless there are tensors or sizes in them.
    """
    for path, values in after.items():
        for name, value in values.items():
            known = before.get(path, {})
            is_kept = _is_same(known[name], value) if name in known else not _is_traced(value)
            if not is_kept:
                raise GraphError(
                    f"a call changes the attribute '{'.'.join(filter(None, (path, name)))}', which "
                    "a graph does not\n  give it as a result, or register it as a buffer"
                )


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(_is_same(old[key], new[key]) for key in old)
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_is_same, old, new))
    # of other objects it is not known whether they are the same
    return bool(old == new) if isinstance(old, PLAIN) else not _is_traced(new)


def _is_traced(value: Any) -> bool:
    """Whether tensors or sizes of the call that is traced are in a value."""
    if isinstance(value, dict):
        return any(map(_is_traced, value.values()))
    if isinstance(value, list):
        return any(map(_is_traced, value))
    return isinstance(value, (Tensor, *SIZES))


@contextlib.contextmanager
def without_other_draws() -> Iterator[None]:
    """With: raise GraphError if random numbers are drawn that are not torch's."""
    before = random.getstate(), np.random.get_state()
    yield
    numbers = np.random.get_state()
    same = all(np.array_equal(a, b) for a, b in zip(before[1], numbers, strict=True))
    if random.getstate() != before[0] or not same:
        random.setstate(before[0])
        np.random.set_state(before[1])
        raise GraphError(
            "a call draws random numbers of Python or NumPy, which a graph has once and for all\n"
            "  draw them with torch, or give them as an argument"
        )
