"""Codecs of activations by Triton beside the portable ones: the same bits."""

import pytest
import torch
from torch import Tensor

from kernels.test_fast import drawn, module, on_devices
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
    assert torch.equal(packed, gist.pack1(x))
    bits = module("gist").unpack1(packed, x.dtype)
    assert torch.equal(bits, (x > 0).to(x.dtype).view(-1))


@on_devices
def test_a_shared_exponent(device: str, dtype: str) -> None:
    x = examples(device, dtype)
    packed = module("gist").pack_msfp15(x)
    assert torch.equal(packed, gist.pack_msfp15(x))
    true = gist.unpack_msfp15(packed, to=int(from_torch(x.dtype)))
    found = module("gist").unpack_msfp15(packed, x.dtype)
    assert torch.equal(found, true) and not bool((found.signbit() & (found == 0)).any())


@pytest.mark.gpu
def test_the_operators_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1 << 22, device="cuda")
    for encode, decode in ((gist.pack1, gist.unpack1), (gist.pack_msfp15, gist.unpack_msfp15)):
        more = {"out_shape": tuple(x.shape)} if decode is gist.unpack1 else {}
        found = decode(encode(x), to=1, **more)
        monkeypatch.setattr(gist.fast, "ready", lambda *_, **__: False)
        assert torch.equal(found, decode(encode(x), to=1, **more))
        monkeypatch.undo()
