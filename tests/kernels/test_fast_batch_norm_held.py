"""Batch normalization of channels that several programs hold, against torch's.

An interpreter runs one program after the other, so that one holds all of a channel there.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.fast import aten, drawn, module, near
from onnxtrain.kernels import fast
from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.nn import batch_norm

EPSILON = 1e-5
SHAPES = {
    "a cluster": (8, 6, 64, 64),
    "a cluster of an odd number": (9, 4, 64, 64),
    "a cluster of which some have nothing": (26, 4, 64, 64),
    "words": (100, 12, 64, 64),
    "words and short groups": (103, 20, 50, 54),
    "words and shorter groups": (103, 20, 50, 55),
}
ALONE = (3, 5, 6, 4)
HOPPER = pytest.mark.skipif(
    module("common.cluster").largest(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    == 1,
    reason="there are no clusters here",
)
CASES = [
    *(pytest.param(ALONE, "cpu", of, id=f"alone-cpu-{of}") for of in ("float32", "float16")),
    *(
        pytest.param(shape, "cuda", of, id=f"{kind}-cuda-{of}", marks=pytest.mark.gpu)
        for kind, shape in SHAPES.items()
        for of in ("float32", "bfloat16")
    ),
]
in_cases = pytest.mark.parametrize(("shape", "device", "dtype"), CASES)


@pytest.fixture(autouse=True)
def one_program_where_it_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if interpreted():
        held = module("batch_norm_held")
        whole = held.Launch(128, 4, 64, 1)
        for launches in (held.TRAIN, held.GRAD):
            for of in launches:
                monkeypatch.setitem(launches, of, (whole, whole))


def images(shape: tuple[int, ...], device: str, dtype: str) -> tuple[Tensor, ...]:
    x = drawn(*shape, device=device, dtype=dtype)
    scale, shift = (drawn(n, shape[1], device=device, dtype="float32")[0] for n in (1, 2))
    return 2 * x + 3, x.flip(0), scale.abs() + 0.5, shift


def truth(x: Tensor, scale: Tensor, shift: Tensor, dy: Tensor) -> list[Tensor]:
    """y, mean and 1 / deviation, dx, dscale and dbias in float64."""
    x, scale, shift, dy = (t.double() for t in (x, scale, shift, dy))
    y, mean, _, inverse = batch_norm.train(x, scale, shift, EPSILON)
    grads = batch_norm.batch_normalization_grad(dy, x, scale, mean, inverse, epsilon=EPSILON)
    return [y, mean, inverse, *grads]


def torchs(x: Tensor, scale: Tensor, shift: Tensor, dy: Tensor) -> list[Tensor]:
    y, mean, inverse = aten.native_batch_norm(x, scale, shift, None, None, True, 0.1, EPSILON)
    given = (dy, x, scale, None, None, mean, inverse, True, EPSILON, [True] * 3)
    return [y, mean, inverse, *aten.native_batch_norm_backward(*given)]


def ours(
    x: Tensor, scale: Tensor, shift: Tensor, dy: Tensor, relu: bool = False
) -> tuple[Tensor, ...]:
    held = module("batch_norm_held")
    y, mean, _, inverse = held.train(x, scale, shift, EPSILON, relu, None, None)
    results = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
    held.grad(results, dy, x, (scale, shift, mean, inverse), relu)
    return y, mean, inverse, *results


@in_cases
def test_results_and_gradients(shape: tuple[int, ...], device: str, dtype: str) -> None:
    x, dy, scale, shift = images(shape, device, dtype)
    found = ours(x, scale, shift, dy)
    true, theirs = truth(x, scale, shift, dy), torchs(x, scale, shift, dy)
    for one, other, right in zip(found, theirs, true, strict=True):
        near(one, other.to(one.dtype), right)
    assert all(map(torch.equal, found, ours(x, scale, shift, dy)))


@in_cases
def test_a_relu_behind(shape: tuple[int, ...], device: str, dtype: str) -> None:
    x, dy, scale, shift = images(shape, device, dtype)
    found = ours(x, scale, shift, dy, relu=True)
    open_ = found[0] > 0
    given = x, scale, shift, torch.where(open_, dy, torch.zeros_like(dy))
    true, theirs = truth(*given), torchs(*given)
    near(found[0], theirs[0].relu(), true[0].relu())
    for one, other, right in zip(found[3:], theirs[3:], true[3:], strict=True):
        near(one, other.to(one.dtype), right)


@in_cases
def test_a_shortcut_and_running_statistics(shape: tuple[int, ...], device: str, dtype: str) -> None:
    held, quick = module("batch_norm_held"), fast.load("batch_norm")
    x, more, scale, shift = images(shape, device, dtype)
    old = [torch.rand_like(scale), torch.rand_like(scale)]
    moved = quick.Running(old[0].clone(), old[1].clone(), 0.75, 1.5)
    y, mean, variance, _ = held.train(x, scale, shift, EPSILON, False, more, moved)
    theirs = aten.native_batch_norm(x, scale, shift, None, None, True, 0.1, EPSILON)[0] + more
    near(y, theirs, truth(x, scale, shift, more)[0] + more.double())
    torch.testing.assert_close(moved.mean, old[0] * 0.75 + mean * 0.25)
    torch.testing.assert_close(moved.variance, old[1] * 0.75 + variance * 1.5 * 0.25)


@in_cases
def test_nothing_but_zeros(shape: tuple[int, ...], device: str, dtype: str) -> None:
    """Sums of zero are told as well."""
    x, _, scale, shift = images(shape, device, dtype)
    y, mean, _, *grads = ours(torch.zeros_like(x), scale, shift, torch.zeros_like(x))
    expected = shift.to(x.dtype).view(1, -1, 1, 1).expand_as(x)
    assert torch.equal(y, expected) and not mean.any() and not any(g.any() for g in grads)


@in_cases
def test_a_first_element_far_away(shape: tuple[int, ...], device: str, dtype: str) -> None:
    x, _, scale, shift = images(shape, device, dtype)
    x[0, :, 0, 0] = 1e4
    variance = module("batch_norm_held").train(x, scale, shift, EPSILON, False, None, None)[2]
    true = x.double().var((0, 2, 3), correction=0)
    assert ((variance - true).abs() <= 2e-6 * true).all()


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_the_operator_takes_them(kind: str, dtype: torch.dtype) -> None:
    held = module("batch_norm_held")
    x = torch.empty(SHAPES[kind], dtype=dtype, device="cuda")
    alone = kind.startswith("words")
    for launches, grad in ((held.TRAIN, False), (held.GRAD, True)):
        cut = held._cut_of(x, launches)
        assert held.takes(x, last=False, grad=grad) == (cut.group * dtype.itemsize >= 8)
        assert (cut.together == 1) == alone


@pytest.mark.gpu
def test_recorded_launches_are_replayed() -> None:
    x, dy, scale, shift = images(SHAPES["words"], "cuda", "bfloat16")
    expected = ours(x, scale, shift, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ours(x, scale, shift, dy)
    for _ in range(3):
        for result in found:
            result.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, found, expected))


def test_how_channels_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    held, cpu = module("batch_norm_held"), torch.device("cpu")
    cut, launches = held._cut.__wrapped__, {4: (4096, 8192), 2: (8192, 16384)}
    for of, sizes in launches.items():
        chosen = tuple(held.Launch(size, 4, 96, 5) for size in sizes)
        monkeypatch.setitem(held.TRAIN, of, chosen)
        monkeypatch.setitem(held.GRAD, of, chosen)

    def parts(images: int, plane: int, of: int = 4) -> tuple[int, ...]:
        found = cut(images, plane, of, held.TRAIN[of], cpu)
        return found.parts, found.together, found.launch.elements, found.group

    assert parts(49, 8192) == (49, 1, 8192, 4)  # without clusters
    monkeypatch.setattr(held, "largest", lambda _: 16)
    assert parts(49, 8192) == (49, 1, 8192, 4)
    assert parts(8, 4096) == (8, 8, 4096, 4)
    assert parts(9, 4096) == (5, 5, 8192, 4)  # sixteen would leave more room
    assert parts(13, 8192) == (16, 16, 8192, 4)
    assert parts(128, 196, 2) == (4, 4, 8192, 4)
    x = torch.empty(1)
    assert not held.takes(x.expand(8, 64, 64, 64), last=True, grad=False)
    monkeypatch.setattr(held, "interpreted", lambda: False)
    taken = {
        (8, 64, 64, 64): True,
        (8, 64, 63, 65): False,  # planes whose elements are read one by one
        (2, 64, 32, 32): False,  # one program would hold a channel
        (1024, 64, 128, 256): False,  # so many elements take 64 bits to count
    }
    assert {shape: held.takes(x.expand(shape), last=False, grad=True) for shape in taken} == taken
