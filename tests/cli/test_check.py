from typer.testing import CliRunner

from onnxtrain.cli import app


def test_examples_of_operators_are_run(cli):
    output = cli("check", "--op", "Relu", "--op", "Gemm", "--device", "cpu")
    assert "examples of 2 operators are right on cpu" in output
    done, _, all_of_them = output.split()[:3]
    assert done == all_of_them and int(done) >= 2
    every = cli("check", "--op", "Relu", "--device", "cpu", "--all-types")
    assert int(every.split()[0]) > 1


def test_a_wrong_kernel_is_found(monkeypatch):
    from onnxtrain.testing import model

    kept = model.evaluate
    monkeypatch.setattr(model, "evaluate", lambda *args: [v + 1 for v in kept(*args)])
    result = CliRunner().invoke(app, ["check", "--op", "Relu", "--device", "cpu"])
    assert result.exit_code == 1
    assert "; wrong: Relu" in result.output


def test_unknown_operators_are_refused(cli):
    assert "no example is for operator 'Frob'" in cli("check", "--op", "Frob", code=1)
