import json
import platform

import torch


def test_env_has_versions_devices_and_platform(cli):
    facts = json.loads(cli("env", "--json"))
    assert facts["torch"] == torch.__version__
    assert facts["machine"] == platform.machine()
    assert platform.python_version() in facts["python"]
    assert "threads" in facts["cpu"]
    assert {"onnx", "onnx-ir", "triton", "numpy", "onnxtrain", "cuda"} <= facts.keys()


def test_env_prints_a_table(cli):
    output = cli("env")
    assert torch.__version__ in output


def test_env_takes_no_arguments(cli):
    assert "unexpected extra argument" in cli("env", "everything", code=2)
