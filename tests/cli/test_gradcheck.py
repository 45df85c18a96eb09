"""Gradients of a user's model against central differences."""

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import proto
from onnxtrain.cli.differences import random_input
from onnxtrain.cli.doubles import in_double
from onnxtrain.errors import FeedError, GraphError
from onnxtrain.gradients import rules
from onnxtrain.graph.prepare import prepare

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "training"
WEIGHT = "<float[2,2] w = {1.0, -0.5, 0.25, 2.0}, float[2,2] v = {0.5, 1.0, -1.0, 0.3}>"
TANH = f"""(float[N,2] x) => (float[N,2] y) {WEIGHT} {{
    a = MatMul(x, w)  b = Tanh(a)  y = MatMul(b, v)
}}"""
RESIZE = """(float[1,1,2,2] x) => (float[1,1,4,4] y)
    <float[1,1,1,1] w = {2.0}, float[4] s = {1.0, 1.0, 2.0, 2.0}>"""


def errors(output: str) -> dict[str, float]:
    """The last column of the table by the first."""
    rows = [line.split() for line in output.splitlines() if len(line.split()) == 5]
    return {row[0]: float(row[-1]) for row in rows if row[1].replace(",", "").isdecimal()}


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for Tanh that forgets the slope."""
    rules.load_rules()
    wrong = rules.Rule("Tanh", "", lambda op, node, dy: [op.Identity(dy)])
    monkeypatch.setitem(rules._RULES, ("", "Tanh"), [wrong])


def test_the_gradients_of_a_model_with_dropout_are_right(folder, cli):
    output = cli("gradcheck", "model.onnx")
    found = errors(output)
    assert found.keys() == {"w1", "b1", "w2", "b2"}
    assert max(found.values()) < 1e-8
    assert "right: the worst error is" in output


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_the_gradients_of_exported_models_are_right(cli, name):
    found = errors(cli("gradcheck", GOLDEN / name / "model.onnx", "--samples", 1))
    assert len(found) >= 6 and max(found.values()) < 1e-6


def test_a_wrong_rule_is_found_and_the_parameter_named(folder, cli, wrong_tanh):
    onnx.save(proto(TANH), "wrong.onnx")
    output = cli("gradcheck", "wrong.onnx", code=1)
    found = errors(output)
    assert found["w"] > 1e-2 and found["v"] < 1e-8
    assert "error: the gradients of 1 of 2 parameters are off by more than 1e-06" in output
    assert "the worst is 'w'" in output


def test_the_bound_decides(folder, cli, wrong_tanh):
    onnx.save(proto(TANH), "wrong.onnx")
    assert "right" in cli("gradcheck", "wrong.onnx", "--bound", 10)


def test_a_weight_whose_path_is_cut_wrongly_is_found(folder, cli, monkeypatch):
    rules.load_rules()
    monkeypatch.setitem(rules._RULES, ("", "Tanh"), [rules.Rule("Tanh", "", None)])
    onnx.save(proto(TANH), "cut.onnx")
    assert errors(cli("gradcheck", "cut.onnx", code=1))["w"] > 0.5


def test_a_seed_repeats_a_check(folder, cli):
    first = cli("gradcheck", "model.onnx", "--seed", 3)
    assert cli("gradcheck", "model.onnx", "--seed", 3) == first
    assert cli("gradcheck", "model.onnx", "--seed", 4) != first


def test_names_that_look_like_gradients_do_not_matter(folder, cli):
    onnx.save(proto(TANH.replace("b", "w_grad")), "named.onnx")
    assert max(errors(cli("gradcheck", "named.onnx")).values()) < 1e-8


def test_one_value_can_be_differentiated(folder, cli):
    onnx.save(proto(TANH), "tanh.onnx")
    assert errors(cli("gradcheck", "tanh.onnx", "--loss", "b")).keys() == {"w"}
    assert "no value 'c' to return" in cli("gradcheck", "tanh.onnx", "--loss", "c", code=1)


def test_random_models_are_refused(folder, cli):
    nodes = "r = RandomNormalLike(x)  y = MatMul(r, w)"
    text = f"(float[2,2] x) => (float[2,2] y) {WEIGHT} {{ {nodes} }}"
    onnx.save(proto(text), "random.onnx")
    assert "output 'y' is another one each time" in cli("gradcheck", "random.onnx", code=1)


def test_narrow_types_constants_and_casts_become_double(folder, cli):
    text = f"""(float[2,2] x) => (float[2,2] y) {WEIGHT} {{
        h = Cast<to=10>(x)  f = Cast<to=1>(h)  a = MatMul(f, w)
        n = Shape(a)  z = ConstantOfShape<value = float[1] {{0.1}}>(n)
        b = Mul(a, z)  c = Exp(b)  y = Mul(c, v)
    }}"""
    onnx.save(proto(text), "casts.onnx")
    assert max(errors(cli("gradcheck", "casts.onnx")).values()) < 1e-8


def test_numbers_that_must_be_float_stay_float():
    text = f"{RESIZE} {{ a = Mul(x, w)  y = Resize(a, , s) }}"
    made = in_double(prepare(ir.from_proto(proto(text))))
    kinds = {name: value.dtype for name, value in made.graph.initializers.items()}
    assert kinds == {"w": ir.DataType.DOUBLE, "s": ir.DataType.FLOAT}
    assert made.graph.inputs[0].dtype == made.graph.outputs[0].dtype == ir.DataType.DOUBLE
    assert made.graph.outputs[0].shape == ir.Shape([1, 1, 4, 4])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("t = Identity(s)  y = Resize(a, , t)", "cannot turn the model into double\n.*Resize"),
        ("b = Mul(a, s)  y = Resize(b, , s)", "cannot turn 's' into double: some of its users"),
    ],
)
def test_operators_that_take_float_only_are_refused(nodes: str, message: str):
    model = prepare(ir.from_proto(proto(f"{RESIZE} {{ a = Mul(x, w)  {nodes} }}")))
    with pytest.raises(GraphError, match=message):
        in_double(model)


def test_operators_that_have_no_double_are_named(folder, cli):
    text = f"""(float[2,2] x) => (float[2,2] y) {WEIGHT} {{
        a = MatMul(x, w)  q, s, z = DynamicQuantizeLinear(a)  y = DequantizeLinear(q, s, z)
    }}"""
    onnx.save(proto(text), "float_only.onnx")
    output = cli("gradcheck", "float_only.onnx", code=1)
    assert "cannot turn the model into double: node" in output
    assert "(ai.onnx::DynamicQuantizeLinear) does not take it as input 0" in output


def test_operators_without_a_kernel_are_named(folder, cli):
    text = f"(float[2,2] x) => (float[2,2] y) {WEIGHT} {{ a = MatMul(x, w)  y = own.Mystery(a) }}"
    given = proto(text, own=1)
    onnx.save(given, "odd.onnx")
    assert "own::Mystery" in cli("gradcheck", "odd.onnx", code=1)


def test_inputs_are_made_up_by_type():
    rng = np.random.default_rng(0)
    text = "(int64[N,3] i, bool[2] b, string[2] s) => (bool[2] c) { c = Not(b) }"
    i, b, s = ir.from_proto(proto(text)).graph.inputs
    made = random_input(i, 5, rng)
    assert made.shape == (5, 3) and made.dtype == np.int64 and set(made.flat) == {0, 1}
    assert random_input(b, 5, rng).dtype == np.bool_
    with pytest.raises(FeedError, match=r"cannot make up input 's' of tensor\(string\)"):
        random_input(s, 5, rng)
