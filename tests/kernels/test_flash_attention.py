"""Backends of FlashAttention: all agree with plain products, dropout included."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from onnxtrain.kernels import blocks
from onnxtrain.kernels.attention import backends
from onnxtrain.kernels.attention.flash import flash_attention
from onnxtrain.kernels.devices import capability as capability_of

Backend = type[backends.Backend]


def _call(dtype: torch.dtype, device: str, mask: str | None = None, **given) -> backends.Call:
    random = torch.Generator().manual_seed(0)
    shape = {"q": (2, 4, 64, 32), "k": (2, 4, 64, 32), "v": (2, 4, 64, 32)}
    q, k, v = (torch.randn(s, generator=random).to(device, dtype) for s in shape.values())
    found = None
    if mask is not None:
        found = torch.rand((2, 1, 64, 64), generator=random) < 0.7
        found[..., 0] = True
        found = found.to(device)
        if mask == "added":
            found = torch.where(found, 0.5, -3.0).to(dtype)
    options = {"dropout": 0.0, "causal": False, "scale": None, "deterministic": False, **given}
    return backends.Call(q, k, v, found, **options)


def _both(backend: Backend, call: backends.Call, seed: int = 3) -> list[torch.Tensor]:
    rng = torch.Generator(call.q.device).manual_seed(seed)
    saved = backends.Saved(*backend.forward(call, rng))
    dy = torch.cos(torch.arange(saved.y.numel(), device=call.q.device)).reshape(saved.y.shape)
    masked = call.mask is not None and call.mask.is_floating_point()
    grads = backend.backward(call, dy.to(call.q.dtype), saved, masked)
    return [saved.y, saved.logsumexp, *(grad for grad in grads if grad is not None)]


def _double(call: backends.Call) -> backends.Call:
    q, k, v = (t.double() for t in (call.q, call.k, call.v))
    mask = call.mask
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    return dataclasses.replace(call, q=q, k=k, v=v, mask=mask)


def _assert_close(backend: Backend, call: backends.Call) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[call.q.dtype]
    truth = _both(backends.Plain, _double(call))
    for one, true in zip(_both(backend, call), truth, strict=True):
        assert (one.double() - true).abs().max() < tolerance * true.abs().max()


CALLS = {
    "causal": {"causal": True},
    "plain": {},
    "opened": {"mask": "opened"},
    "added": {"mask": "added"},
    "causal-added": {"mask": "added", "causal": True},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_products_in_every_type(name: str, dtype: torch.dtype) -> None:
    _assert_close(backends.Plain, _call(dtype, "cpu", **CALLS[name]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("size", [1, 1 << 13, 1 << 20], ids=["head", "heads", "all"])
def test_some_heads_at_once(
    size: int, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SIZE", size)
    _assert_close(backends.Heads, _call(dtype, "cpu", **CALLS[name]))


@pytest.mark.parametrize("name", CALLS)
def test_torchs_kernel_of_a_cpu(name: str) -> None:
    call = _call(torch.float32, "cpu", **CALLS[name])
    assert backends.choose(call) is backends.Blocks
    _assert_close(backends.Blocks, call)


@pytest.mark.parametrize("shape", [(6, 6), (4, 6, 6), (2, 1, 6, 6), (1, 4, 1, 6), (2, 4, 6, 6)])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_that_leave_nothing_or_are_huge(shape: tuple[int, ...], causal: bool) -> None:
    """Of torch's kernel such rows have wrong gradients, so products serve them."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, generator=random) for _ in range(3))
    for low in (-torch.inf, torch.finfo(torch.float32).min, -1e4):
        mask = torch.randn(shape, generator=random)
        mask[..., 0, :] = low
        call = backends.Call(q, k, v, mask, 0.0, causal, None, False)
        assert backends.choose(call) is backends.Heads
        y, _, *grads = _both(backends.Heads, call)
        expected, _, *others = _both(backends.Plain, call)
        for one, other in zip((y, *grads), (expected, *others), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("mask", [None, "opened", "added"])
def test_scales_that_are_not_positive(scale: float, mask: str | None) -> None:
    call = _call(torch.float32, "cpu", mask, causal=True, scale=scale)
    truth = _both(backends.Plain, _double(call))
    for one, true in zip(_both(backends.choose(call), call), truth, strict=True):
        torch.testing.assert_close(one, true.float(), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_mask_has_its_type() -> None:
    call = dataclasses.replace(_call(torch.bfloat16, "cpu"), mask=torch.randn(64, 64))
    found = _both(backends.choose(call), call)[-1]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, _both(backends.Plain, call)[-1])


@pytest.mark.parametrize("shape", [None, (1, 0), (8, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_without_keys_get_nothing(shape: tuple[int, ...] | None, causal: bool) -> None:
    q, none = torch.randn(2, 4, 8, 6), torch.randn(2, 4, 0, 6)
    mask = None if shape is None else torch.zeros(shape)
    call = backends.Call(q, none, none, mask, 0.0, causal, None, False)
    y, logsumexp, dq, dk, dv, *_ = _both(backends.choose(call), call)
    assert torch.equal(y, torch.zeros_like(q)) and torch.equal(dq, torch.zeros_like(q))
    assert dk.shape == dv.shape == none.shape and logsumexp.isneginf().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_chosen_agrees_with_products(name: str, dtype: torch.dtype) -> None:
    call = _call(dtype, "cuda", **CALLS[name])
    assert backends.choose(call) is not backends.Plain
    _assert_close(backends.choose(call), call)


def _sharing(call: backends.Call, in_rows: bool) -> backends.Call:
    """Two heads of keys and values for four of queries, which may lie side by side in memory."""
    tensors = [call.q, call.k[:, 2:], call.v[:, :2]]
    if in_rows:
        tensors = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    q, k, v = tensors
    return dataclasses.replace(call, q=q, k=k, v=v)


@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["cpu", "cuda"]
)
def test_heads_that_are_shared(device: str, name: str, in_rows: bool) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    call = _sharing(_call(dtype, device, **CALLS[name]), in_rows)
    k, v = (t.repeat_interleave(2, 1) for t in (call.k, call.v))
    ours, theirs = (
        _both(backends.choose(c), c) for c in (call, dataclasses.replace(call, k=k, v=v))
    )
    theirs[3:5] = (t.unflatten(1, (2, 2)).sum(2) for t in theirs[3:5])
    tolerance = 1e-5 if device == "cpu" else 2e-2
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "plain"])
def test_dropout_where_heads_are_shared(name: str) -> None:
    call = _sharing(_call(torch.bfloat16, "cuda", dropout=0.4, **CALLS[name]), True)
    _linear_in_values(backends.choose(call), call, 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "plain"])
def test_what_is_the_same_from_run_to_run(name: str) -> None:
    call = _call(torch.bfloat16, "cuda", deterministic=True, **CALLS[name])
    assert backends.choose(call) is backends.Flash
    _assert_close(backends.choose(call), call)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_dropout_is_drawn_from_the_generator_and_known_to_the_gradient(name: str) -> None:
    call = _call(torch.bfloat16, "cuda", dropout=0.4, **CALLS[name])
    _linear_in_values(backends.choose(call), call, 2e-2)
    default = torch.cuda.default_generators[0].get_state()
    first, again, other = (_both(backends.choose(call), call, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(default, torch.cuda.default_generators[0].get_state())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", [backends.Plain, backends.Heads])
def test_dropout_of_products(backend: Backend, name: str) -> None:
    _linear_in_values(backend, _call(torch.float32, "cpu", dropout=0.4, **CALLS[name]), 1e-4)


def test_dropout_of_some_heads_is_that_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIZE", 1 << 12)
    call = _call(torch.float32, "cpu", dropout=0.4, mask="added")
    assert backends.choose(call) is backends.Heads
    first, again, other = (_both(backends.Heads, call, seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])


def _linear_in_values(backend: Backend, call: backends.Call, tolerance: float) -> None:
    """y is linear in v with the same draws, so Σ dy·y = Σ dv·v; and dropout changes y."""
    rng = torch.Generator(call.q.device).manual_seed(5)
    saved = backends.Saved(*backend.forward(call, rng))
    dy = torch.randn_like(saved.y)
    _, _, dv, _ = backend.backward(call, dy, saved, False)
    one, other = (dy.double() * saved.y).sum(), (dv.double() * call.v).sum()
    size = (dy.double() * saved.y).abs().sum()
    assert abs(one - other) < tolerance * size
    whole = backend.forward(dataclasses.replace(call, dropout=0.0), rng)[0]
    assert (whole - saved.y).abs().mean() > 0.1 * whole.abs().mean()


def test_heads_that_cannot_be_shared_are_refused() -> None:
    call = _call(torch.float32, "cpu")
    with pytest.raises(ValueError, match="4 heads of queries cannot share 3 heads of keys"):
        backends.Plain.forward(dataclasses.replace(call, k=call.k[:, :3]), None)


CHOICES = [
    ((7, 5), torch.bfloat16, 64, "Plain"),
    ((7, 5), torch.float16, 64, "Efficient"),
    ((7, 5), torch.float16, 256, "Efficient"),
    ((8, 0), torch.bfloat16, 64, "Flash"),
    ((8, 0), torch.bfloat16, 256, "Flash"),
    ((8, 9), torch.bfloat16, 192, "Flash"),
    ((8, 9), torch.bfloat16, 256, "Efficient"),
    ((9, 0), torch.bfloat16, 128, "Cudnn"),
    ((9, 0), torch.float16, 256, "Flash"),
    ((12, 0), torch.float16, 128, "Flash"),
]


@pytest.mark.parametrize(("capability", "dtype", "size", "expected"), CHOICES)
def test_gpus_get_what_they_can_run(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    size: int,
    expected: str,
) -> None:
    capability_of.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    t = torch.zeros(1, 2, 8, size, dtype=dtype)
    call = backends.Call(t, t, t, None, 0.0, True, None, False)
    assert backends.choose(call).__name__ == expected
    assert backends.choose(dataclasses.replace(call, scale=-0.5)) is backends.Plain
    capability_of.cache_clear()


def test_gpus_of_others_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    capability_of.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    t = torch.zeros(1, 2, 8, 64, dtype=torch.float16)
    assert backends.choose(backends.Call(t, t, t, None, 0.0, True, None, False)) is backends.Plain
    capability_of.cache_clear()


UNFIT = {
    "queries have 8 elements each, but keys 6": [(2, 3, 4, 8), (2, 3, 5, 6), (2, 3, 5, 8)],
    "there are 5 keys, but 7 values": [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 7, 8)],
    "numbers of samples do not fit: 2, 3, 2, 1": [(2, 3, 4, 8), (3, 3, 5, 8), (2, 3, 5, 8)],
    "numbers of heads of keys and values do not fit: 3, 2": [
        *((2, 6, 4, 8), (2, 3, 5, 8), (2, 2, 5, 8)),
    ],
    "3 heads of queries cannot share 2 heads of keys": [
        *((2, 3, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
    ],
    "numbers of queries do not fit: 4, 3": [
        *((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8), (3, 5)),
    ],
}


@pytest.mark.parametrize("reason", UNFIT)
def test_operands_that_do_not_fit_are_refused(reason: str) -> None:
    """Torch's kernels would read what is not there."""
    with pytest.raises(ValueError, match=f"^{reason}$"):
        flash_attention(*(torch.ones(shape) for shape in UNFIT[reason]))
