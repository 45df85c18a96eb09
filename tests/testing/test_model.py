import pytest
import torch

from onnxtrain.runtime import options
from onnxtrain.testing.model import provider_on
from onnxtrain.types import CPU, CUDA


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_devices_have_providers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    provider, device = options.choose_provider([provider_on(name)], None)
    assert provider is (CPU if name == "cpu" else CUDA)
    assert device == torch.device("cuda:0" if name == "cuda" else name)
