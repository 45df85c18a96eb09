"""Launches that are in place before those that they follow have ended."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from kernels.fast import modules
from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early
from onnxtrain.kernels.fast.common.parted import Grouped
from onnxtrain.kernels.lasting import keeping

LATER = {"onnxtrain.kernels.fast.gather.crowded._long_runs"}
"""Kernels that read something before they wait: what the launch before the last one has left."""


def functions() -> dict[str, tuple[Any, bool]]:
    """The Python functions of all kernels, by module and name, and whether they are early."""
    found = {}
    for module in modules():
        for kernel in vars(module).values():
            if isinstance(kernel, Compiled | Grouped):
                function = getattr(kernel.function, "function", kernel.function).fn
                name = f"{function.__module__}.{function.__name__}"
                found[name] = function, isinstance(kernel, Early)
    return found


@pytest.mark.parametrize("name", functions())
def test_early_kernels_wait_before_they_do_anything_and_others_never(name: str) -> None:
    function, early = functions()[name]
    source = inspect.getsource(function)
    if name in LATER:
        assert early
        return
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.FunctionDef)
    described = ast.get_docstring(definition) is not None
    assert (ast.unparse(definition.body[described]) == "wait()") == early
    assert source.count("wait()") == early


def normalized(x: Tensor) -> list[Tensor]:
    ones = torch.ones(x.shape[1], device=x.device)
    dx, sums = fast.load("norm_grad").norm_grad(x, x, ones, x[:, 0].clone(), x[:, 1].clone())
    return [dx, *sums]


def lost(x: Tensor) -> list[Tensor]:
    labels = torch.arange(len(x), device=x.device) % x.shape[1]
    to = fast.load("labels").Labels(labels, None, -1, "mean")
    dy = torch.ones((), device=x.device)
    return [*fast.load("cross_entropy").loss_and_grad(x, to, dy, torch.float32)]


def clipped(x: Tensor) -> list[Tensor]:
    x = x.clone()
    assert fast.load("many_norms").clip([x], 0.5)
    return [x]


def added(x: Tensor, count: int) -> list[Tensor]:
    index = torch.arange(count, device=x.device) * 7 % 5000
    return [fast.load("gather.segments").sum_rows(index, x[:count], 5000)]


def activated(x: Tensor) -> Tensor:
    """Five short launches, of which each reads what the one before has just written."""
    scale, points = torch.ones(x.shape[1], device=x.device), fast.load("pointwise")
    for _ in range(2):
        x = points.gelu(x, None, "tanh")
        x = fast.load("norm").normalize(x, scale, None, 1e-5, centred=True).y
    return fast.load("softmax").softmax(x, 1, log=False)


CHAINS = {
    "normalization": normalized,
    "sums": lambda x: [fast.load("columns").column_sums(x, x.shape[1])],
    "loss": lost,
    "clipping": clipped,
    "few indices": lambda x: added(x, 1000),
    "indices": lambda x: added(x, 8000),
    "activations": lambda x: [activated(x)],
}
"""Operators of several launches, of which all but the first are early at least."""


@pytest.mark.gpu
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
def test_launches_see_what_was_copied_before_them(chain: str, recorded: bool) -> None:
    """Copies and zeros are waited for by the first launch, in order and in every replay."""
    torch.manual_seed(0)
    source, x = (torch.zeros(8192, 2048, device="cuda") for _ in range(2))
    operator, graph = CHAINS[chain], torch.cuda.CUDAGraph()

    def step() -> list[Tensor]:
        x.zero_()
        x.copy_(source)
        return operator(x)

    ours = step()
    torch.cuda.synchronize()
    if recorded:
        with keeping() as kept, torch.cuda.graph(graph):
            ours = step()
        assert kept or chain != "clipping"  # where its chunks are
    for _ in range(5):
        source.normal_()
        torch.cuda.synchronize()
        if recorded:
            graph.replay()
        else:
            ours = step()
        torch.cuda.synchronize()
        for found, true in zip(ours, operator(source), strict=True):
            assert torch.equal(found, true)


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
def test_launches_see_what_other_streams_have_written(recorded: bool) -> None:
    """A launch where streams meet waits for both, and the first one of a stream for its origin."""
    torch.manual_seed(0)
    source, graph = torch.zeros(512, 1024, device="cuda"), torch.cuda.CUDAGraph()
    side, points = torch.cuda.Stream(), fast.load("pointwise")

    def step(apart: bool) -> Tensor:
        here = torch.cuda.current_stream()
        long = source.double().cumsum(1).float()  # takes longer than a launch
        x = points.gelu(long, None, "tanh")
        if apart:
            side.wait_stream(here)
        with torch.cuda.stream(side if apart else here):
            y = activated(x)
            for _ in range(20):
                y = activated(y + x)
        z = activated(x * 2)
        if apart:
            here.wait_stream(side)
        return points.gelu_grad(y, z, None, "none")

    step(True)
    torch.cuda.synchronize()
    if recorded:
        with keeping(), torch.cuda.graph(graph):
            ours = step(True)
    for _ in range(5):
        source.normal_()
        torch.cuda.synchronize()
        if recorded:
            graph.replay()
        else:
            ours = step(True)
        torch.cuda.synchronize()
        assert torch.equal(ours, step(False))
