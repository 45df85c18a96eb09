"""Codecs of activations by Triton beside the portable ones: the same bits."""

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, module, on_devices
from onnxtrain.kernels import gist
from onnxtrain.kernels.dtypes import from_torch

EDGES = [0.0, -0.0, 1e-40, -1e-38, 3e38, -1.0, 0.5, 2.0**-120]


def examples(device: str, dtype: str) -> Tensor:
    x = drawn(40, 24, device=device, dtype=dtype) * 100
    x[0, :8] = torch.tensor(EDGES, device=device)
    x[0, 8] = float("inf")
    x[0, 16] = float("nan")
    x[1] *= 1e-6
    x[2] = torch.tensor(2.0**-126, device=device)
    return x


@on_devices
def test_one_bit(device: str, dtype: str) -> None:
    x = examples(device, dtype)
    packed = module("gist").pack1(x)
    assert torch.equal(packed.cpu(), gist.pack1(x.cpu()))
    bits = module("gist").unpack1(packed, x.dtype)
    assert torch.equal(bits, (x > 0).to(x.dtype).view(-1))


@on_devices
def test_a_shared_exponent(device: str, dtype: str) -> None:
    x = examples(device, dtype)
    packed = module("gist").pack_msfp15(x)
    assert torch.equal(packed.cpu(), gist.pack_msfp15(x.cpu()))
    true = gist.unpack_msfp15(packed.cpu(), to=int(from_torch(x.dtype)))
    found = module("gist").unpack_msfp15(packed, x.dtype).cpu()
    assert torch.equal(found, true) and not bool((found.signbit() & (found == 0)).any())


@on_devices
def test_a_byte_of_its_own(device: str, dtype: str) -> None:
    x = examples(device, dtype)
    x[3, :6] = torch.tensor([57344.0, 61440.0, -65504.0, 2.0**-16, 2.0**-17, 1.125 * 2.0**-14])
    x[4] = -x[0]
    codes = module("gist").to_byte(x).cpu()
    true = gist.pack8(x.cpu())
    known = ~x.cpu().isnan()
    assert torch.equal(codes[known], true[known])
    found = module("gist").of_byte(true.to(device), x.dtype).cpu()
    expected = gist.unpack8(true, to=int(from_torch(x.dtype)))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    every = torch.arange(256, dtype=torch.uint8, device=device)
    found = module("gist").of_byte(every, x.dtype).cpu()
    expected = every.cpu().view(torch.float8_e5m2).to(x.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert module("gist").of_byte(codes[~known].to(device), x.dtype).isnan().all()


@on_devices
def test_signs_and_other_types(device: str, dtype: str) -> None:
    x = examples(device, dtype)
    assert torch.equal(module("gist").positive(x), x > 0)
    for given, kind in ((x > 0, x.dtype), (x, torch.float16), (x.half(), x.dtype)):
        found = module("gist").converted(given, kind)
        torch.testing.assert_close(found, given.to(kind), rtol=0, atol=0, equal_nan=True)


CODECS = [
    (gist.pack1, gist.unpack1),
    (gist.pack8, gist.unpack8),
    (gist.pack16, gist.unpack16),
    (gist.pack_msfp15, gist.unpack_msfp15),
    (gist.binarize, gist.unbinarize),
]


@pytest.mark.gpu
def test_the_operators_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1 << 22, device="cuda")
    for encode, decode in CODECS:
        more = {"out_shape": tuple(x.shape)} if decode is gist.unpack1 else {}
        found = decode(encode(x), to=1, **more)
        monkeypatch.setattr(gist.fast, "ready", lambda *_, **__: False)
        monkeypatch.setattr(gist.fast, "serves", lambda _: False)
        assert torch.equal(found, decode(encode(x), to=1, **more))
        monkeypatch.undo()
