import json

import onnx
import pytest

from onnxtrain.kernels.library import default_registry
from onnxtrain.types import CPU, CUDA, DataType, dtype_name


@pytest.fixture(scope="module")
def listed():
    from typer.testing import CliRunner

    from onnxtrain.cli import app

    return json.loads(CliRunner().invoke(app, ["ops", "--json"]).stdout)


def test_the_list_has_every_operator(cli):
    output = cli("ops")
    assert "ai.onnx::Softmax " in output
    assert "com.microsoft::SoftmaxGrad_13 " in output
    assert "operators:" in output.splitlines()[-1]


def test_json_has_every_operator_of_onnx(listed):
    names = {row["op"] for row in listed if row["domain"] == "ai.onnx"}
    assert names >= {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}


def test_every_listed_combination_finds_a_kernel(listed):
    registry, dtypes = default_registry(), {dtype_name(t): t for t in DataType}
    count = 0
    for row in listed:
        domain = "" if row["domain"] == "ai.onnx" else row["domain"]
        for kernel in row["kernels"]:
            for types in kernel["types"]:
                parsed = {name: dtypes[text] for name, text in types.items()}
                for provider in (CPU, CUDA):
                    if provider.name in kernel["providers"]:
                        assert registry.find(domain, row["op"], kernel["since"], parsed, provider)
                        count += 1
    assert count > len(listed)


def test_every_kernel_is_listed(listed):
    assert sum(len(row["kernels"]) for row in listed) == len(default_registry())


@pytest.mark.parametrize("name", ["Softmax", "softmax", "ai.onnx::Softmax"])
def test_the_story_of_one_operator(cli, name):
    output = cli("ops", name)
    assert "since 13: input: T -> output: T" in output
    assert "axis: int = -1" in output
    assert "(kernels/activation/softmax.py:" in output
    assert "gradients/softmax.py:" in output


def test_an_operator_without_gradient_says_so(cli):
    assert "zero, declared" in cli("ops", "Shape")


def test_one_operator_as_json(cli):
    (row,) = json.loads(cli("ops", "ReluGrad", "--json"))
    assert row["domain"] == "com.microsoft"
    assert row["cpu"] is True


def test_unknown_operators_are_explained(cli):
    assert "did you mean Softmax" in cli("ops", "Softmx", code=1)
    assert "onnxtrain ops lists them all" in cli("ops", "qqqqqq", code=1)
