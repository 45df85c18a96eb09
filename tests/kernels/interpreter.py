"""Triton's interpreter without what it does again and again, and what nobody sees.

A third of its time goes into each call of a function inside a kernel: all of Triton's language is
searched for functions to replace, though the launch has replaced them. A quarter is spent on sums
and products a second time in 64 bits, for an assertion that is only made while debugging.
"""

import dataclasses
import functools
import inspect
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

PARTS = ("_patch_lang", "_LangPatchScope", "_get_np_dtype", "interpreter_builder")
"""What is replaced or used here; versions of Triton that do not have it stay as they are."""


def hurry() -> None:
    """Replace these parts; results stay the same."""
    if not all(hasattr(interpreter, name) for name in PARTS):
        return
    interpreter._patch_lang = functools.partial(_patched, interpreter._patch_lang)
    interpreter._get_np_dtype = functools.partial(_kept, {}, interpreter._get_np_dtype)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patched(patch: Any, function: Any) -> Any:
    """What was replaced for a function; nothing if a launch around it has replaced everything."""
    done = map(_is_patched, _languages(function))
    return interpreter._LangPatchScope() if all(done) else patch(function)


@functools.cache
def _languages(function: Any) -> list[ModuleType]:
    """The names by which a function may reach the language."""
    seen = function.__globals__.values()
    return [value for value in seen if inspect.ismodule(value) and value in (tl, tl.core)]


def _is_patched(language: Any) -> bool:
    return not any(map(tl.core.is_builtin, (language.load, language.tensor.__add__)))


def _kept(known: dict[Any, Any], find: Any, kind: Any) -> Any:
    """The type of numpy for a plain type, which is found by a table that is made each time."""
    if type(kind) is not tl.dtype:
        return find(kind)
    if kind.name not in known:
        known[kind.name] = find(kind)
    return known[kind.name]
