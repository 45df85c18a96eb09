"""Rehearsals of steps: every kernel is asked for, and nothing else has happened."""

import collections
import contextlib
import functools
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.rehearsal import asking, rehearsing, remembered, request
from onnxtrain.runtime import program as programs
from onnxtrain.runtime import rehearsal
from onnxtrain.runtime.rehearsal import FEWEST, Imitated, offered, rehearse
from onnxtrain.testing import claims
from onnxtrain.testing.model import draw
from onnxtrain.testing.table import one_type, runs_on, table
from onnxtrain.training.trainer import Trainer
from training.small import model_of, normal

CPU = torch.device("cpu")
LASTING = {
    f"onnxtrain.kernels.{name}" for name in ("fast", "library", "summary", "vector_jacobian")
}
"""Modules whose caches hold no tensors, and take long to fill."""
BESIDE = Path(__file__).with_name("compile_ahead.py")
ROWS = 2
"""Of an operator that are tried on the CPU."""
everywhere = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def imitations() -> dict[int, weakref.ref[FakeTensor]]:
    """Tensors without memory that somebody holds."""
    gc.collect()
    return {id(t): weakref.ref(t) for t in gc.get_objects() if isinstance(t, FakeTensor)}


def held_since(before: dict[int, weakref.ref[FakeTensor]]) -> list[str]:
    """Those that somebody holds now and did not before, and who does."""
    found = [
        t for n, now in imitations().items() if (t := now()) is not None and _is_new(t, n, before)
    ]
    holders = [[type(r) for r in gc.get_referrers(t) if r is not found] for t in found]
    return [f"{t.shape} {t.dtype}: {who}" for t, who in zip(found, holders, strict=True)]


def _is_new(t: FakeTensor, number: int, before: dict[int, weakref.ref[FakeTensor]]) -> bool:
    return number not in before or before[number]() is not t


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What rehearsals ask for; nothing is compiled."""
    found: list[Any] = []

    @contextlib.contextmanager
    def compiling(_threads: int) -> Iterator[None]:
        with asking(lambda *wanted: found.append(wanted)):
            yield

    monkeypatch.setattr(fast, "load", lambda _: type("Ahead", (), {"compiling": compiling}))
    return found


def test_what_a_device_would_do_is_imitated() -> None:
    state = torch.ones(3)
    with Imitated(CPU):
        product = torch.empty(1 << 20, 1 << 20) @ torch.empty(1 << 20, 7)
        state.mul_(2)
        copied = state.new_zeros(4)
    assert product.shape == (1 << 20, 7) and isinstance(copied, FakeTensor)
    assert state.tolist() == [1, 1, 1]


def test_what_the_host_does_is_done() -> None:
    with Imitated(torch.device("cuda")):
        sizes = torch.tensor([2, 3]) * 2
        assert sizes.tolist() == [4, 6]


def test_a_rehearsal_changes_nothing(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where it ends early because a value would be needed, which only the log tells."""
    told: list[str] = []
    monkeypatch.setattr(rehearsal._log, "debug", lambda text, error: told.append(text % error))
    weights, generator = torch.ones(3), torch.Generator().manual_seed(7)
    before = generator.get_state()

    def step(x: Tensor) -> None:
        assert rehearsing()
        weights.add_(torch.rand(3, generator=generator) * x)
        request("first", (weights,), {})
        request("second" if float(weights.sum()) else "third", (), {})

    rehearse(step, [torch.ones(3)], CPU, [generator], 2)
    assert [name for name, *_ in asked] == ["first"]
    assert weights.tolist() == [1, 1, 1]
    assert torch.equal(generator.get_state(), before)
    assert not rehearsing()
    assert len(told) == 1 and "ended early" in told[0] and "_local_scalar_dense" in told[0]


def test_both_halves_of_a_step_are_rehearsed(asked: list[Any]) -> None:
    """What computes its loss elsewhere hands values out and waits for their gradients."""

    def step(x: Tensor) -> Generator[tuple[Tensor, ...], tuple[Tensor | None, ...], None]:
        gradient, none = yield x * 2, x > 0
        assert gradient is not None and gradient.shape == x.shape and none is None
        request("backward", (gradient,), {})

    rehearse(step, [torch.ones(3)], CPU, [], 2)
    assert [name for name, *_ in asked] == ["backward"]


def test_a_step_with_a_loss_in_torch_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here only until the host reads a value; then it gives what it ever gave."""
    batch, ends = {"x": normal(4, 768)}, list[str]()

    def step() -> float:
        def loss(outputs: dict[str, Tensor], _batch: Any) -> Tensor:
            return outputs["y"].square().mean()

        return float(Trainer(normalized(), loss=loss, seed=3, device="cpu").step(batch))

    @contextlib.contextmanager
    def at_once(step: Any, arguments: Any, *_: Any) -> Iterator[None]:
        with torch.no_grad(), Imitated(CPU), contextlib.suppress(Exception):
            rehearsal._through(step, arguments)
        ends.append(step.__name__)
        yield

    expected = step()
    monkeypatch.setattr(programs, "offered", at_once)
    assert step() == expected
    assert len(ends) == 2  # of the step and of the update


def test_what_is_made_in_a_rehearsal_is_not_remembered() -> None:
    made = remembered(4)(lambda count: torch.zeros(count))
    with asking(lambda *_: None), Imitated(CPU):
        assert isinstance(made(3), FakeTensor)
    assert made(3) is made(3)
    assert not isinstance(made(3), FakeTensor)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Whom to tell that a kernel was compiled, as if there were a GPU and nothing imported."""
    told: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def noticing(tell: Callable[[], None]) -> Iterator[None]:
        told.append(tell)
        yield

    monkeypatch.setattr(fast, "load", lambda _: type("Ahead", (), {"noticing": noticing}))
    monkeypatch.setattr(rehearsal, "_is_compiled_for", lambda _: True)
    monkeypatch.setattr(rehearsal, "IMPORTED", "not imported")
    monkeypatch.setattr(rehearsal.os, "cpu_count", lambda: 8)
    return told


def test_a_step_is_rehearsed_once(
    compiled: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first kernel was compiled, and not if there was none."""
    rehearsed: list[Any] = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda *given: rehearsed.append(given))
    with offered(print, [1], CPU, [], FEWEST):
        assert not rehearsed
        compiled[0]()
        compiled[0]()
    assert rehearsed == [(print, [1], CPU, [], 8)]


def test_small_steps_are_not_worth_it(
    compiled: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless torch has what it takes already."""
    with offered(print, [], CPU, [], FEWEST - 1):
        assert not compiled
    monkeypatch.setattr(rehearsal, "IMPORTED", "sys")
    with offered(print, [], CPU, [], FEWEST - 1):
        assert len(compiled) == 1


def test_one_core_compiles_one_kernel_at_a_time(
    compiled: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal.os, "cpu_count", lambda: 1)
    with offered(print, [], CPU, [], FEWEST):
        assert not compiled


def test_a_cpu_has_no_kernels_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(fast, "load", lambda _: pytest.fail("there is nothing to do"))
    with offered(print, [], CPU, [], FEWEST):
        pass


def _has_tensors(known: dict[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in known.values())


@functools.cache
def caches(name: str) -> tuple[list[Any], list[dict[Any, Any]]]:
    """Results of calls that a module keeps, and its tables."""
    found = vars(sys.modules[name])
    calls = [value for value in found.values() if isinstance(value, functools._lru_cache_wrapper)]
    own = {title: value for title, value in found.items() if not title.startswith("__")}
    return calls, [value for value in own.values() if isinstance(value, dict)]


def forget() -> None:
    """Empty the caches of kernels, which the first call of an operator has filled."""
    for name in [*sys.modules]:
        if name.startswith("onnxtrain.kernels.") and name not in LASTING:
            calls, tables = caches(name)
            for call in calls:
                call.cache_clear()
            for held in filter(_has_tensors, tables):
                held.clear()


@everywhere
def test_kernels_keep_nothing_of_a_rehearsal(device: str) -> None:
    """What a cache would hold after it would be taken for a tensor by the step itself."""
    there, held = torch.device(device, 0) if device == "cuda" else CPU, imitations()
    tried, rows = 0, collections.Counter[tuple[str, str]]()
    for case in table():
        dtype, operator = one_type(case), (case.domain, case.op)
        rows[operator] += 1
        few = device == "cuda" or rows[operator] <= ROWS
        if dtype is None or not few or not runs_on(case, device):
            continue
        call = claims.recorded(case, draw(case, dtype), device=device)
        args = call.inputs()
        before = [tensor.clone() for _, tensor in call.tensors(args)]
        forget()
        # many need values; what they did before must not be seen either
        with contextlib.suppress(Exception), asking(lambda *_: None), Imitated(there):
            call.run(args, **({"update": True} if call.kernel.updates else {}))
            tried += 1
        for (name, tensor), old in zip(call.tensors(args), before, strict=True):
            assert claims.identical(tensor, old), f"{case}: input '{name}' was changed"
        del args, before
    assert tried > 500
    assert held_since(held) == []


def test_kernels_are_compiled_once() -> None:
    """Ahead by several threads, for a GPU that is not there; launches then find all of them."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(BESIDE)],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    ahead, later = map(int, ran.stdout.split())
    assert ahead > 5 and later == 0


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Any]]:
    """Forgets every kernel; gives the list of those that are compiled from then on."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from onnxtrain.kernels.fast.common.compiled import Compiled

    def forget(number: int) -> list[Any]:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(number)))
        gc.unfreeze()  # what the tests hold from their beginning is not listed otherwise
        kernels = [found for found in gc.get_objects() if isinstance(found, Compiled)]
        gc.freeze()
        for kernel in kernels:
            kernel.known.clear()
            kernel._inner.device_caches.clear()
        compiled: list[Any] = []

        def listen(**about: Any) -> None:
            compiled.append((about["src"].name, about["cache_hit"]))

        monkeypatch.setattr(triton.knobs.compilation, "listener", listen)
        return compiled

    return forget


def normalized() -> onnx.ModelProto:
    """A model whose rows, if there are many, are normalized and dropped by Triton's kernels."""
    return model_of(
        """(float[N,768] x) => (float[N,3] y) {
            ratio = Constant<value_float=0.1>()
            a = LayerNormalization(x, scale, bias)
            b = Dropout(a, ratio)
            y = Gemm<transB=1>(b, weight, offset)
        }""",
        {
            "scale": normal(768, seed=1),
            "bias": normal(768, seed=2),
            "weight": normal(3, 768, seed=3),
            "offset": normal(3, seed=4),
        },
    )


@pytest.mark.gpu
def test_a_first_step_on_a_gpu(
    bare: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rehearsed or not it gives the same, dropout included, and compiles the same kernels."""
    batch = {"x": normal(8192, 768), "labels": np.arange(8192) % 3}
    results, kernels = [], []
    for number, threads in enumerate((1, 8)):
        compiled, held, seen = bare(number), imitations(), [0]

        def counted(*given: Any, seen: list[int] = seen, compiled: Any = compiled) -> None:
            seen.append(len(compiled) - 1)  # the kernel that set it off
            rehearse(*given)
            seen.append(len(compiled))

        monkeypatch.setattr(rehearsal, "MOST_THREADS", threads)
        monkeypatch.setattr(rehearsal, "FEWEST", 0)
        monkeypatch.setattr(rehearsal, "rehearse", counted)
        trainer = Trainer(normalized(), loss="cross_entropy", seed=3, device="cuda")
        losses = [float(trainer.step(batch)) for _ in range(4)]
        results.append((losses, {n: t.cpu() for n, t in trainer.parameters.items()}))
        kernels.append({name for name, _ in compiled})
        if threads > 1:
            # forward and backward, then the update; what was asked for is not compiled again
            assert len(seen) == 5
            pauses = zip(seen[::2], [*seen[1::2], len(compiled)], strict=True)
            assert all(hit for start, end in pauses for _, hit in compiled[start:end])
        else:
            assert seen == [0]
        assert len(kernels[0]) > 3
        assert held_since(held) == []
    (slow, before), (quick, after) = results
    assert slow == quick
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert kernels[0] == kernels[1]
