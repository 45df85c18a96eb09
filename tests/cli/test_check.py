import re

import pytest
from typer.testing import CliRunner

from onnxtrain.cli import app


def verdict(output: str) -> list[int]:
    """The numbers of the last line: examples that are right, examples, and perhaps gradients."""
    return [
        int(number.replace(",", "")) for number in re.findall(r"[\d,]+", output.splitlines()[-1])
    ]


def test_examples_and_gradients_of_operators_are_run(cli):
    output = cli("check", "--op", "Relu", "--op", "Gemm", "--device", "cpu")
    assert output.startswith("checking on cpu (")
    assert "gradients of 2 operators are right on cpu" in output
    done, all_of_them, right, gradients, operators = verdict(output)
    assert done == all_of_them >= 2 and right == gradients == operators == 2
    (row,) = [line.split() for line in output.splitlines() if line.strip().startswith("ai.onnx")]
    assert row == ["ai.onnx", "2", str(done), "-", "2", "-"]


@pytest.mark.parametrize("device", [[], ["--device", "cuda"], ["--device", "cuda:0"]])
@pytest.mark.gpu
def test_a_gpu_is_checked(cli, device):
    """With all that it has: pools of some kind are joined on a CPU alone."""
    assert "operators are right on cuda" in cli("check", "--op", "MaxPool*", *device)


def test_more_types_and_more_gradients_can_be_asked_for(cli):
    relu = ("check", "--op", "Relu", "--device", "cpu")
    assert verdict(cli(*relu, "--all-types"))[0] > verdict(cli(*relu))[0]
    assert verdict(cli(*relu, "--gradients", "all"))[2] >= verdict(cli(*relu))[2]
    assert "gradients" not in cli(*relu, "--gradients", "none").splitlines()[-1]
    assert "--gradients is some, all or none" in cli(*relu, "--gradients", "few", code=1)


def test_a_wrong_rule_is_found(monkeypatch):
    from onnxtrain.gradients import rules

    rules.load_rules()
    wrong = rules.Rule("Tanh", "", lambda op, node, dy: [op.Identity(dy)])
    monkeypatch.setitem(rules._RULES, ("", "Tanh"), [wrong])
    result = CliRunner().invoke(app, ["check", "--op", "Tanh", "--device", "cpu"])
    assert result.exit_code == 1
    assert "gradient of " in result.output and "by a difference" in result.output
    assert "; wrong: Tanh" in result.output


def test_a_wrong_kernel_is_found(monkeypatch):
    from onnxtrain.cli.checking import trials

    kept = trials.evaluate
    monkeypatch.setattr(trials, "evaluate", lambda *args: [v + 1 for v in kept(*args)])
    result = CliRunner().invoke(app, ["check", "--op", "Relu", "--device", "cpu"])
    assert result.exit_code == 1
    assert "; wrong: Relu" in result.output


def test_unknown_operators_are_refused(cli):
    assert "no example is for operator 'Frob'" in cli("check", "--op", "Frob", code=1)
