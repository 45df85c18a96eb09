"""Launchers of kernels that Triton has a C compiler make, while it compiles the kernels themselves.

Triton 3.6 writes a little C for the types of a kernel's arguments and waits for a compiler, which
takes as long as the kernel does. Neither needs the other, so here both are made at once, and Triton
finds the launcher in its cache. Later versions have one launcher for all kernels.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import triton
from triton.runtime import driver

NAME = "__triton_launcher"
"""What Triton calls every launcher."""
_made: set[tuple[Any, ...]] = set()
"""Types of arguments for which there is one, or soon will be."""


def compile_both(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Compile a Triton function for some arguments, and a launcher if it is the first for such.

    Nothing is done if no launcher has to be made: Triton compiles the function when it launches it.
    """
    source = missing(function, arguments, options)
    if source is None:
        return
    building = threading.Thread(target=build, args=(source,), daemon=True)
    building.start()
    function.warmup(*arguments, grid=(1,), **options)
    building.join()


def missing(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """The launcher for such arguments, in C, if nobody has asked for it yet and it is made so."""
    if not takes_a_compiler():
        return None
    types = types_of(function, arguments, options)
    if types in _made:
        return None
    _made.add(types)
    return source_of(types)


def takes_a_compiler() -> bool:
    """Whether launchers are made in the way that is known here."""
    known = triton.__version__.startswith("3.6.")
    return known and bool(driver.active.get_current_target().backend == "cuda")


def types_of(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """The types that Triton gives to a function's arguments."""
    *_, bind = function.device_caches[driver.active.get_current_device()]
    _, kinds, _ = bind(*arguments, **options)
    return tuple(kind for kind, _ in kinds)


def source_of(types: tuple[Any, ...]) -> str:
    """The launcher for such arguments, in C."""
    from triton.backends.nvidia.driver import make_launcher

    source: str = make_launcher({}, dict(enumerate(types)), None)
    return source


def build(source: str) -> None:
    """Leave a launcher in Triton's cache; if that fails, Triton tries again and tells why."""
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime.build import compile_module_from_src

    with contextlib.suppress(Exception):
        places = nvidia.library_dirs(), nvidia.include_dirs, nvidia.libraries
        compile_module_from_src(source, NAME, *places)
