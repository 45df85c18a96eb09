"""Compiles ``native.cpp`` into ``build/`` when it is first needed, and loads it.

That must happen before torch is imported: torch asks once whether there are hooks for CUDA.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import zlib

SOURCE = pathlib.Path(__file__).with_name("native.cpp")
BUILD = pathlib.Path(__file__).parents[2] / "build" / "pretended"


class CannotPretend(RuntimeError):
    """This machine or this build of torch cannot pretend to have a GPU."""


def obstacle() -> str | None:
    """Why there can be no pretended GPU here; None if there can."""
    if not sys.platform.startswith("linux"):
        return "a GPU is pretended on Linux only"
    if runpy.run_path(str(_torch() / "version.py"))["cuda"] is not None:
        return (
            "a GPU is pretended in a build of torch without CUDA only, and this one has it: "
            "install torch from https://download.pytorch.org/whl/cpu in another environment"
        )
    if _compiler() is None:
        return "there is no C++ compiler to pretend a GPU with: install g++, or set CXX"
    return None


def load() -> None:
    """Let torch believe that there is one GPU, from its import to the end of the process."""
    if reason := obstacle():
        raise CannotPretend(reason)
    if "torch" in sys.modules:
        raise CannotPretend("a GPU cannot be pretended: torch has been imported already")
    ctypes.CDLL(str(_built()), mode=ctypes.RTLD_GLOBAL)


def _torch() -> pathlib.Path:
    """Where torch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise CannotPretend("a GPU cannot be pretended: torch is not installed")
    return pathlib.Path(spec.origin).parent


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("c++") or shutil.which("g++")


def _built() -> pathlib.Path:
    """The library for this source and this torch; processes that build it at once do not meet."""
    torch = _torch()
    parts = SOURCE.read_text(), (torch / "version.py").read_text(), str(torch)
    library = BUILD / f"{zlib.crc32(''.join(parts).encode()):08x}.so"
    if library.exists():
        return library
    BUILD.mkdir(parents=True, exist_ok=True)
    own = library.with_suffix(f".{os.getpid()}")
    command = [str(_compiler()), "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(own)]
    command += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"]
    done = subprocess.run(
        [*command, "-lc10", "-ltorch_cpu"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotPretend(
            f"a GPU cannot be pretended: {SOURCE.name} does not compile\n"
            f"  {' '.join(done.args)}\n{done.stderr[:2000]}"
        )
    own.replace(library)
    return library
