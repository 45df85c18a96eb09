"""What a GPU refuses and a CPU does not, and what a GPU does with what is right."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onnxtrain.runtime.capture import CudaGraphs

pytestmark = pytest.mark.gpu
PRETENDED = "pretended.plugin" in sys.modules


def matrix(device: str = "cuda") -> Tensor:
    return torch.arange(9.0).reshape(3, 3).to(device)


def attention_of_the_cpu(x: Tensor) -> object:
    heads = x.reshape(1, 1, 3, 3)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(heads, heads, heads)


def refused(work: Callable[[], object], words: str) -> None:
    """A GPU has words of its own."""
    with pytest.raises(RuntimeError, match=words if PRETENDED else None):
        work()


MISTAKES = {
    "elementwise": (lambda x: x + torch.ones(3), "mixes devices"),
    "product": (lambda x: x @ torch.ones(3, 3), "mixes devices"),
    "joined": (lambda x: torch.cat([x, torch.ones(1, 3)]), "mixes devices"),
    "number of the host written": (lambda x: torch.zeros(()).add_(x.sum()), "mixes devices"),
    "values of the host stored": (lambda x: x.index_put_((x > 2,), torch.ones(6)), "mixes devices"),
    "kernel of the CPU": (attention_of_the_cpu, "runs on a CPU only"),
    "product of whole numbers": (lambda x: x.long() @ x.long(), "not implemented on CUDA"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    work, words = MISTAKES[name]
    refused(lambda: work(matrix()), words)


READS = {
    "number": lambda x: x.sum().item(),
    "truth": lambda x: bool((x > 2).all()),
    "copy": lambda x: x.cpu(),
    "copy into memory": lambda x: torch.empty(3, 3).copy_(x),
    "list": lambda x: x.tolist(),
    "comparison": lambda x: torch.equal(x, x + 0),
    "shape of nonzero": lambda x: x.nonzero(),
    "shape of a choice": lambda x: x[x > 2],
    "shape of repeats": lambda x: x.repeat_interleave(torch.ones_like(x[0]).long(), 0),
    "copy to the device": lambda x: x + torch.ones(3).to("cuda"),
    "constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device="cuda"),
    "numbers of the device": lambda x: torch.tensor([x[0, 0], x[1, 1]]),
    "write from the host": lambda x: x.copy_(torch.ones(3, 3)),
}


@pytest.mark.parametrize("name", READS)
def test_waits_are_refused_where_they_are_looked_for(name: str) -> None:
    x = matrix()
    READS[name](x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        refused(lambda: READS[name](x), "synchronizing")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not PRETENDED, reason="what breaks off leaves traces in the memory of a GPU")
@pytest.mark.parametrize("name", READS)
def test_waits_are_refused_in_recordings(name: str) -> None:
    x = matrix()
    record = CudaGraphs(x.device).record
    refused(lambda: record(lambda: [READS[name](x)], []), "recorded")
    assert torch.equal(x, matrix())


def test_what_is_right_gives_what_a_cpu_gives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    results = []
    for device in ("cpu", "cuda"):
        own, x = model.to(device), matrix(device)
        own.zero_grad()
        y = own(x * torch.tensor(0.5))[torch.tensor([2, 0])].softmax(-1)
        y[:, 0].log().sum().backward()
        assert {p.grad.device.type for p in own.parameters()} == {device}
        results.append([y.detach().cpu(), *(p.grad.cpu().clone() for p in own.parameters())])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_numbers_that_are_complex_and_views_of_themselves() -> None:
    results = []
    for device in ("cpu", "cuda"):
        x = matrix(device).requires_grad_()
        z = torch.view_as_complex(x[:, :2].contiguous())
        y = torch.view_as_real(z * z.conj() * 1j + (z.conj() * 2).resolve_conj())
        results.append([y.detach().cpu(), torch.autograd.grad(y.square().sum(), x)[0].cpu()])
        w = matrix(device).unsqueeze_(0).squeeze_(0).t_()
        results[-1] += [w.cpu(), (w @ w[0]).cpu()]
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_recording_does_nothing_and_replays_do_it_again() -> None:
    x, total = matrix(), torch.zeros(3, device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)

    def work() -> list[Tensor]:
        total.add_(x[1])
        rows = torch.ops.aten._unsafe_view(x, [9])  # a view that does not say so
        column = (rows[::3] * 2).unsqueeze_(0).squeeze_(0)
        return [column, torch.rand(3, generator=generator, device="cuda")]

    for _ in range(2):
        work()
    total.zero_()
    generator.manual_seed(3)
    drawn = [torch.rand(3, generator=generator, device="cuda").cpu() for _ in range(2)]
    generator.manual_seed(3)
    replay, (column, numbers) = CudaGraphs(x.device).record(work, [generator])
    assert not total.any() and torch.equal(x, matrix())
    assert not PRETENDED or column.isnan().all()
    for count in (1, 2):
        x.copy_(matrix() * count)
        replay()
        assert column.tolist() == [0.0, 6.0 * count, 12.0 * count]
        assert torch.equal(numbers.cpu(), drawn[count - 1])
    assert total.tolist() == [9.0, 12.0, 15.0]
