"""Launches of clusters, and which rows are cut into parts of one."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from kernels.fast import module


class Kernel:
    """Stands for what Triton compiled: notes what is launched."""

    packed_metadata, function = (4, 1, 80), 99

    def __init__(self) -> None:
        self.launched: list[tuple[object, ...]] = []

    def run(self, *arguments: object) -> None:
        self.launched.append(arguments)


class Jit:
    """Stands for a Triton function."""

    arg_names = ("x", "size", "S")
    params = ()

    def __init__(self) -> None:
        self.kernel, self.compiled = Kernel(), list[dict[str, object]]()

    def warmup(self, *arguments: object, grid: tuple[int], **options: object) -> Kernel:
        self.compiled.append(options)
        return self.kernel


def test_all_launches_are_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, before which the kernel is compiled, like the later ones."""
    active = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda device: 7))
    cluster, compiled = module("common.cluster"), module("common.compiled")
    monkeypatch.setattr(compiled, "interpreted", lambda: False)
    for user in (cluster, compiled):
        monkeypatch.setattr(user, "driver", active)
    jit, x = Jit(), torch.zeros(4)
    function = compiled.Compiled(cluster.InClusters(jit, "S"))
    for rows in (3, 5):
        function[(rows,)](x, 20, 8, num_warps=4)
    assert jit.compiled == [{"num_warps": 4, "enable_fp_fusion": True}]
    shape = [(3, 1, 1, 7, 99, (4, 8, 80)), (5, 1, 1, 7, 99, (4, 8, 80))]
    assert [launched[:6] for launched in jit.kernel.launched] == shape
    first, second = (launched[-3:] for launched in jit.kernel.launched)
    assert first[0] is x and second[0] == x.data_ptr() and first[1:] == second[1:] == (20, 8)


def test_parts_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    axis, cpu = module("common.axis"), torch.device("cpu")
    monkeypatch.setattr(axis, "part_of", lambda size, most: min(axis.power(size), most))
    cut = axis.parts_of.__wrapped__
    found = {size: tuple(cut(size, 8192, 32768, (8192, 4), cpu)) for size in (16384, 20000)}
    assert found == {16384: (1, 16384, 1), 20000: (3, 8192, 1)}
    monkeypatch.setattr(axis, "largest", lambda device: 16)
    sizes = 300, 20000, 131072, 131073, 262145
    rows = [cut(size, 8192, 16384, (8192, 4), cpu) for size in sizes]
    assert rows == [(1, 512, 1), (4, 8192, 4), (16, 8192, 16), (16, 16384, 16), (36, 8192, 4)]
    assert [row.at_once for row in rows] == [True, True, True, True, False]
    assert tuple(cut(131073, 8192, 8192, (8192, 8), cpu)) == (24, 8192, 8)
    assert tuple(cut(262145, 8192, 16384, (16384, 2), cpu)) == (18, 16384, 2)


def test_parts_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters are for rows that are too long for one program, and for many long ones."""
    entropy = module("cross_entropy")
    monkeypatch.setattr(entropy, "interpreted", lambda: False)

    def plan(rows: int, classes: int, dtype: torch.dtype) -> tuple[int, int, int, bool]:
        found = entropy._plan(torch.empty(rows, classes, dtype=dtype), entropy.GRADIENT)
        return found.lanes, found.held, found.parts, found.clustered

    half, sizes = torch.float16, (50304, 128257, 262144, 270000)
    without = [(256, 25, 1, False), (256, 21, 3, False), (256, 22, 6, False), (256, 22, 6, False)]
    assert [plan(1, size, half) for size in sizes] == without
    assert plan(1025, 50304, half) == without[0]
    assert plan(1, 128257, torch.float32) == (128, 23, 11, False)
    monkeypatch.setattr(entropy, "largest", lambda device: 16)
    within = [(128, 16, 8, True), (128, 16, 16, True)]
    assert [plan(1, size, half) for size in sizes] == [without[0], *within, without[3]]
    assert plan(1025, 50304, half) == (128, 13, 4, True)
    assert plan(1025, 34000, half) == (256, 17, 1, False)
    assert plan(1, 128257, torch.float32) == (128, 16, 16, True)


def test_devices_without_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = module("common.cluster")
    largest, cuda = cluster.largest.__wrapped__, torch.device("cuda", 0)
    assert largest(torch.device("cpu")) == 1
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(cluster, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(cluster.triton, "__version__", "3.6.0")
    assert largest(cuda) == 16
    monkeypatch.setattr(cluster.triton, "__version__", "4.0.0")
    assert largest(cuda) == 1
    monkeypatch.setattr(cluster.triton, "__version__", "3.6.0")
    for capability in ((8, 9), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert largest(cuda) == 1
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(cluster, "multiprocessors", lambda device: 16)
    assert largest(cuda) == 1
