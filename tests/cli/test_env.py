import json
import platform
from types import SimpleNamespace

import torch

from onnxtrain.kernels import fast


def test_env_has_versions_devices_and_platform(cli):
    facts = json.loads(cli("env", "--json"))
    assert facts["torch"] == torch.__version__
    assert facts["machine"] == platform.machine()
    assert platform.python_version() in facts["python"]
    assert "threads" in facts["cpu"]
    assert {"onnx", "onnx-ir", "triton", "numpy", "onnxtrain", "cuda"} <= facts.keys()


def test_env_tells_whose_kernels_a_gpu_runs(cli, monkeypatch):
    found = SimpleNamespace(name="T4", total_memory=15 << 30, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    monkeypatch.setattr(fast, "serves", lambda index: index == 1)
    facts = json.loads(cli("env", "--json"))
    assert facts["cuda:0"] == "T4, 15.0 GiB, capability 7.5, kernels of torch alone"
    assert facts["cuda:1"].endswith("kernels of Triton and torch")


def test_env_prints_a_table(cli):
    output = cli("env")
    assert torch.__version__ in output


def test_env_takes_no_arguments(cli):
    assert "unexpected extra argument" in cli("env", "everything", code=2)
