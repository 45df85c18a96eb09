"""Launchers that are made beside the kernels that they launch."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from onnxtrain.kernels.fast.common import launcher


@triton.jit
def _fill(out, first, number, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), first + number)


class Function:
    """Stands for a Triton function, compiled only when its launcher is under way."""

    def __init__(self, building: threading.Event) -> None:
        self.building, self.compiled = building, 0
        self.device_caches = {0: (None, lambda *given, **options: (given, [("i32", "D")], options))}

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.compiled += self.building.wait(20)


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a launcher is being built, which takes no time."""
    active = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_target=lambda: SimpleNamespace(backend="cuda"),
    )
    begun = threading.Event()
    monkeypatch.setattr(launcher, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(launcher, "_made", set())
    monkeypatch.setattr(launcher, "source_of", str)
    monkeypatch.setattr(launcher, "build", lambda source: begun.set())
    return begun


def test_both_are_made_at_once(building: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    function = Function(building)
    launcher.compile_both(function, (7,), {"num_warps": 4})
    assert function.compiled == 1
    assert launcher.types_of(function, (7,), {}) == ("i32",)


def test_one_launcher_serves_all_arguments_of_the_same_types(
    building: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes may change with every batch: what is known costs nothing again."""
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    function = Function(building)
    for number in (7, 8):
        launcher.compile_both(function, (number,), {})
    assert function.compiled == 1


def test_other_versions_need_no_compiler(
    building: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    function = Function(building)
    launcher.compile_both(function, (7,), {})
    assert not function.compiled and not building.is_set()


def test_what_cannot_be_built_is_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that fails would only print what went wrong, and Triton tells it anyway."""
    from triton.backends.nvidia import driver

    tried: list[bool] = []

    def nowhere() -> list[str]:
        tried.append(True)
        raise AssertionError("there is no libcuda")

    monkeypatch.setattr(driver, "library_dirs", nowhere)
    launcher.build("this is not C")
    assert tried


@pytest.mark.gpu
def test_the_launcher_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built any more when the kernel is launched."""
    from triton.runtime import build

    if not launcher.takes_a_compiler():
        pytest.skip("this version of Triton makes no launchers")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launcher, "_made", set())
    out = torch.zeros(16, device="cuda")
    launcher.compile_both(_fill, (out, 2, 0.5, 16), {"num_warps": 1})
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("a launcher was built again"))
    _fill[(1,)](out, 2, 0.5, 16, num_warps=1)
    assert out.tolist() == [2.5] * 16
