"""Launches that are in place before those that they follow have ended."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.parted import Parted

LATER = {"_long_runs": "what it reads was there when the launch before it could announce it"}
"""Kernels that do something before they wait, and why they may."""


def kernels() -> dict[str, Any]:
    """The Python functions of all kernels, by module and name."""
    found = {}
    for _, module, _ in pkgutil.iter_modules(fast.__path__):
        for kernel in vars(fast.load(module)).values():
            if isinstance(kernel, Compiled | Parted):
                function = getattr(kernel.function, "function", kernel.function)
                found[f"{module}.{function.fn.__name__}"] = function.fn
    return found


def first_call(function: Any) -> str:
    """The first statement of a function behind its description."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    described = ast.get_docstring(definition) is not None
    return ast.unparse(definition.body[described])


@pytest.mark.parametrize("name", kernels())
def test_kernels_wait_before_they_do_anything(name: str) -> None:
    function = kernels()[name]
    if function.__name__ in LATER:
        assert "wait()" in inspect.getsource(inspect.getmodule(function)._clear_tallies.fn)
    else:
        assert first_call(function) == "wait()"


def test_generated_kernels_wait_too() -> None:
    line = type("Line", (), {"op": "Neg", "alpha": 1.0, "operands": (0,)})()
    text = fast.load("generated").source((line,), ((),))
    assert text.splitlines()[1].strip() == "wait()"


@pytest.mark.gpu
@pytest.mark.parametrize("before", ["nothing", "a kernel", "zeros", "a copy", "another stream"])
def test_recorded_launches_behind_anything(before: str) -> None:
    """Each sees what is before it, whatever that is, in every replay."""
    source, x = (torch.empty(1 << 22, device="cuda") for _ in range(2))
    other = torch.cuda.Stream()
    ways = {
        "nothing": lambda: None,
        "a kernel": lambda: torch.add(source, 1, out=x),
        "zeros": lambda: x.zero_(),
        "a copy": lambda: x.copy_(source),
        "another stream": lambda: elsewhere(other, x, source),
    }

    def step() -> list[torch.Tensor]:
        ways[before]()
        found = [fast.load("pointwise").gelu(x, None, "tanh")]
        return [*found, fast.load("pointwise").gelu(found[0], None, "tanh")]

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for turn in range(4):
        source.fill_(turn)
        x.fill_(-turn)
        graph.replay()
        given = {"nothing": -turn, "a kernel": turn + 1, "zeros": 0}.get(before, turn)
        true = torch.nn.functional.gelu(torch.tensor(float(given)), approximate="tanh")
        again = torch.nn.functional.gelu(true, approximate="tanh")
        for ours, value in zip(recorded, (true, again), strict=True):
            torch.testing.assert_close(ours.cpu(), value.expand(ours.shape), rtol=1e-5, atol=1e-6)


def elsewhere(stream: torch.cuda.Stream, x: torch.Tensor, source: torch.Tensor) -> None:
    """Copy on another stream, which begins and ends with this one."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.copy_(source)
    torch.cuda.current_stream().wait_stream(stream)
