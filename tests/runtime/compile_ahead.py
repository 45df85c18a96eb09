"""Rehearses launches of Triton kernels for a GPU that is not there, then makes them.

Prints how many kernels were compiled ahead and how many by the launches.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import triton
from triton.runtime.jit import JITFunction

from kernels.compile_for import calls, stand_in
from onnxtrain.kernels.fast.common import ahead, launcher


def main() -> None:
    """Eight calls, some of which launch several kernels."""
    run = JITFunction.run
    stand_in(90)
    stand_ins, JITFunction.run = JITFunction.run, run
    launcher.takes_a_compiler = lambda: False  # it would look for a driver
    compiled: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        compiled.append(cache_hit)

    triton.knobs.compilation.listener = listen
    with ahead.compiling(4):
        for call in itertools.islice(calls(torch.bfloat16), 8):
            call()
    first = len(compiled)
    JITFunction.run = stand_ins
    for call in itertools.islice(calls(torch.bfloat16), 8):
        call()
    print(first, len(compiled) - first)


if __name__ == "__main__":
    main()
