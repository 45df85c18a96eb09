"""Launches that find their kernel by the kind of their arguments."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from onnxtrain.kernels.fast.common import compiled


class Kernel:
    """Stands for what Triton compiled: notes what is launched."""

    packed_metadata, function = (4, 1, 0), 99

    def __init__(self) -> None:
        self.launched: list[tuple[object, ...]] = []

    def run(self, x, y, z, stream, function, metadata, *rest):
        assert (function, metadata, rest[:3]) == (self.function, self.packed_metadata, (None,) * 3)
        self.launched.append(((x, y, z), rest[3:], stream))


class Jit:
    """Stands for a Triton function, which compiles one kernel."""

    def __init__(self) -> None:
        self.kernel, self.compiled = Kernel(), 0
        self.params: list[SimpleNamespace] = []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.compiled += 1
            return self.kernel

        return launch


@pytest.fixture
def jit(monkeypatch: pytest.MonkeyPatch) -> Jit:
    active = SimpleNamespace(get_current_stream=lambda device: 7)
    monkeypatch.setattr(compiled, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(compiled, "interpreted", lambda: False)
    monkeypatch.setattr(compiled, "compile_both", lambda *_: None)
    return Jit()


def test_a_kernel_is_compiled_once_for_each_kind_of_arguments(jit: Jit) -> None:
    function = compiled.Compiled(jit)
    room = torch.zeros(32)
    function[(3,)](room, 16, 0.5, True, num_warps=4)
    later = (room[4:], 16, 0.7, True)
    function[(5, 2)](*later, num_warps=4)
    ((grid, arguments, stream),) = jit.kernel.launched
    assert (grid, stream, jit.compiled) == ((5, 2, 1), 7, 1)
    assert arguments == (room[4:].data_ptr(), 16, 0.7, True)
    kinds = [
        (room[1:], 16, 0.5, True),
        (room.half(), 16, 0.5, True),
        (room, 17, 0.5, True),
        (room, 16, 0.5, False),
    ]
    for number, arguments in enumerate(kinds):
        function[(3,)](*arguments, num_warps=4)
        assert jit.compiled == 2 + number
    function[(3,)](room, 16, 0.5, True, num_warps=8)
    assert jit.compiled == 6 and len(jit.kernel.launched) == 1


def test_tensors_that_are_not_given_are_none_at_the_end(jit: Jit) -> None:
    function = compiled.Compiled(jit)
    first, second = torch.zeros(32), torch.zeros(32)
    kinds = [(first, None, None), (first, second, None), (first, second, first)]
    for number, tensors in enumerate(kinds):
        for factor in (0.5, 0.7):
            function[(3,)](*tensors, 16, factor, True, num_warps=4)
        _, arguments, _ = jit.kernel.launched[-1]
        places = [None if t is None else t.data_ptr() for t in tensors]
        assert arguments == (*places, 16, 0.7, True)
        assert jit.compiled == len(jit.kernel.launched) == number + 1


def test_kernels_are_compiled_for_numbers_that_are_constants(jit: Jit) -> None:
    jit.params = [
        SimpleNamespace(num=number, do_not_specialize=False, is_constexpr=number == 1)
        for number in range(3)
    ]
    function = compiled.Compiled(jit)
    for constant, factor in [(0.5, 1.0), (0.7, 1.0), (0.5, 2.0), (0.7, 2.0)]:
        function[(3,)](torch.zeros(4), constant, factor, num_warps=4)
    assert jit.compiled == len(jit.kernel.launched) == 2


def test_kinds_are_forgotten_before_they_are_too_many(
    jit: Jit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MOST_KINDS", 2)
    function = compiled.Compiled(jit)
    room = torch.zeros(1)
    for size in range(5):
        function[(1,)](room, size, num_warps=1)
    assert len(function.known) <= 2 and jit.compiled == 5


def test_a_tensor_elsewhere_is_another_kind(jit: Jit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton says what it thinks of a tensor in the host's memory; an address alone does not."""
    function = compiled.Compiled(jit)
    places = iter([0, 0, 0, -1, 0, 0, 0])
    monkeypatch.setattr(compiled, "_device_of", lambda tensor: next(places))
    for _ in range(3):
        function[(1,)](torch.zeros(4), torch.zeros(4), num_warps=1)
    assert jit.compiled == 2 and len(jit.kernel.launched) == 1


def test_nothing_is_asked_of_a_launcher_that_has_nothing_else_to_do(
    jit: Jit, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Launcher:
        __module__ = "triton.backends.nvidia.driver"
        launch_cooperative_grid, launch_pdl = False, True
        global_scratch_size = profile_scratch_size = 0

        def __init__(self) -> None:
            self.launched: list[tuple[object, ...]] = []

        def launch(self, *arguments):
            self.launched.append(arguments)

        def __call__(self, *arguments):
            self.launched.append(())

    launcher, room = Launcher(), torch.zeros(4)
    monkeypatch.setattr(jit.kernel, "run", launcher)
    monkeypatch.setattr(compiled, "triton", SimpleNamespace(__version__="3.6.0"))
    function = compiled.Compiled(jit)
    for size in (0, 0, 8, 8):
        launcher.global_scratch_size = size
        function[(3, 2)](room, size, num_warps=4)
    scratch, hooks = (None, None), (None, None, None)
    fixed = (3, 2, 1, 7, 99, False, True, *scratch, (4, 1, 0), *hooks)
    assert launcher.launched == [(*fixed, room.data_ptr(), 0), ()]


def test_tensors_come_first(jit: Jit) -> None:
    with pytest.raises(TypeError, match="first arguments"):
        compiled.Compiled(jit)[(1,)](torch.zeros(1), 1, torch.zeros(1), num_warps=1)
