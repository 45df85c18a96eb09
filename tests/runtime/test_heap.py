"""Memory that stays with the process when tensors are freed."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from onnxtrain.runtime import heap

FREED = """
import ctypes, resource, sys
import onnxtrain
from onnxtrain.demo.model import digits_cnn
options = onnxtrain.SessionOptions(enable_cpu_mem_arena=sys.argv[1] != "returned")
if sys.argv[1] == "trained":
    onnxtrain.Trainer(digits_cnn(), loss="cross_entropy", device="cpu")
else:
    onnxtrain.InferenceSession(digits_cnn(), options)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
before = held()
blocks = [libc.malloc(24 << 20) for _ in range(4)]
for block in blocks:
    ctypes.memset(block, 1, 24 << 20)
for block in reversed(blocks):
    libc.free(ctypes.c_void_p(block))
print(held() - before)
"""
"""How many of 96 MB the process still has when they are freed."""

on_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries have no such settings"
)


def run(code: str, *arguments: str, **settings: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC", "GLIBC"))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@on_glibc
@pytest.mark.parametrize("how", ["kept", "trained"])
def test_what_is_freed_is_kept(how: str) -> None:
    """By a session, and by a model that is trained."""
    assert int(run(FREED, how)) > 90


@on_glibc
def test_users_decide_by_an_option() -> None:
    assert int(run(FREED, "returned")) < 10


@on_glibc
@pytest.mark.parametrize(
    ("name", "text"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1024")],
)
def test_settings_of_a_user_are_left_alone(name: str, text: str) -> None:
    code = "import torch; from onnxtrain.runtime import heap; "
    code += "print(heap.keep_freed(torch.device('cpu')))"
    assert run(code, **{name: text}) == "False"
    assert run(code) == "True"


def test_nothing_is_set_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_keep", lambda: pytest.fail("the heap was set"))
    assert not heap.keep_freed(torch.device("cuda"))


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    heap._keep.cache_clear()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    try:
        assert not heap.keep_freed(torch.device("cpu"))
    finally:
        heap._keep.cache_clear()
