"""Dropout by Triton beside the portable kernels: the same masks for a seed, fair ones without."""

import pytest
import torch

from onnxtrain.kernels.activation.dropout import (
    bias_dropout,
    bitmask_dropout,
    dropout,
    dropout_grad,
)

pytest.importorskip("triton", reason="Triton is not installed")


def quick():
    import onnxtrain.kernels.fast.dropout as module

    return module


@pytest.mark.parametrize("shape", [(5, 700), (3, 11), (4096,)])
@pytest.mark.parametrize("seed", [7, 12345678901])
def test_masks_of_a_seed(device: str, shape: tuple[int, ...], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(shape, generator=generator).half() for _ in range(2))
    bias = torch.randn(shape[-1:], generator=generator).half()
    y, mask = dropout(x, 0.3, True, seed=seed)
    _, words = bitmask_dropout(x, 0.3, True, seed=seed)
    whole, _ = bias_dropout(x, bias, residual, 0.3, True, seed=seed)
    x, bias, moved = (t.to(device) for t in (x, bias, residual))
    for packed, expected in ((False, mask), (True, words.view(torch.int32))):
        found, kept = quick().drop(x, 0.3, seed, None, packed=packed)
        seen = kept.view(torch.int32) if packed else kept
        assert torch.equal(found.cpu(), y) and torch.equal(seen.cpu(), expected)
        gradient = quick().drop_grad(moved, kept, 0.3)
        assert torch.equal(gradient.cpu(), dropout_grad(residual, mask, 0.3, True))
    found, _ = quick().drop(x, 0.3, seed, None, bias=bias, residual=moved)
    assert torch.equal(found.cpu(), whole)


def test_masks_of_a_generator(device: str) -> None:
    rng = torch.Generator(device).manual_seed(3)
    x = torch.ones(30000, device=device)
    first, second = (quick().drop(x, 0.25, None, rng)[1] for _ in range(2))
    assert abs(first.float().mean().item() - 0.75) < 0.02 and not torch.equal(first, second)
    rng.manual_seed(3)
    assert torch.equal(quick().drop(x, 0.25, None, rng)[1], first)


def test_draws_of_a_generator_are_words_of_philox() -> None:
    """The first is the published answer of Philox 4x32-10 for a key and a counter of zeros."""
    found = quick().draws(0, 0)
    assert len(set(found)) == quick().AHEAD and found[0] == 0x6627E8D5E169C58D & (1 << 63) - 1
    assert quick().draws(0, 1)[0] not in found and quick().draws(1, 0)[0] != found[0]


@pytest.mark.gpu
def test_recorded_draws_are_those_of_the_host() -> None:
    device = "cuda"
    rng = torch.Generator(device).manual_seed(1 << 40)
    for number in range(3):
        rng.set_offset(number * quick().OFFSETS)
        drawn = torch.empty(1, dtype=torch.int64, device=device).random_(generator=rng)
        assert rng.get_offset() == (number + 1) * quick().OFFSETS
        assert drawn.item() == quick().draws(1 << 40, 0)[number]


@pytest.mark.gpu
def test_masks_of_replayed_draws() -> None:
    """Each replay has the mask that an ordinary call would have had in its place."""
    x = torch.ones(5000, device="cuda", dtype=torch.bfloat16)
    rng = torch.Generator("cuda").manual_seed(9)
    expected = [quick().drop(x, 0.5, None, rng)[1].clone() for _ in range(3)]
    rng.manual_seed(9)
    quick().drop(x, 0.5, 7, None)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    quick().drop(x, 0.5, None, torch.Generator("cuda"))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        mask = quick().drop(x, 0.5, None, rng)[1]
    for wanted in expected:
        graph.replay()
        assert torch.equal(mask, wanted)


def test_a_seed_that_is_no_key_stays_with_the_portable_kernel() -> None:
    assert [quick().takes(seed) for seed in (None, 0, -1, 1 << 63)] == [True, True, False, False]
