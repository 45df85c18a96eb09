"""Gradients of a user's model against central differences."""

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import proto
from onnxtrain.cli.checking.doubles import in_double, in_type
from onnxtrain.errors import GraphError
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


def test_what_is_float_by_default_becomes_double():
    text = f"""(float[2,2] x) => (float[4,2] y) {WEIGHT} {{
        a = MatMul(x, w)  none = SequenceEmpty()
        one = SequenceInsert(none, a)  two = SequenceInsert(one, x)
        y = ConcatFromSequence<axis=0>(two)
    }}"""
    made = in_double(prepare(ir.from_proto(proto(text))))
    assert made.graph.outputs[0].dtype == ir.DataType.DOUBLE


def test_numbers_that_must_be_float_stay_float_if_they_are_moved_first():
    text = f"{RESIZE} {{ a = Mul(x, w)  t = Identity(s)  y = Resize(a, , t) }}"
    made = in_double(prepare(ir.from_proto(proto(text))))
    kinds = {name: value.dtype for name, value in made.graph.initializers.items()}
    assert kinds == {"w": ir.DataType.DOUBLE, "s": ir.DataType.FLOAT}
    assert made.graph.outputs[0].dtype == ir.DataType.DOUBLE


def test_ids_in_floating_point_are_cast_to_whole_numbers_in_either_type():
    text = f"""(float[2] ids) => (float[2,2] y) {WEIGHT} {{
        i = Cast<to=6>(ids)  a = Gather(w, i)  same = Equal(ids, ids)  m = Cast<to=1>(same)
        c = Unsqueeze(m, one)  y = Mul(a, c)
    }}""".replace("<", "<int64[1] one = {1}, ", 1)
    for dtype in (ir.DataType.DOUBLE, ir.DataType.FLOAT):
        made = in_type(prepare(ir.from_proto(proto(text))), dtype)
        assert made.graph.inputs[0].dtype == made.graph.outputs[0].dtype == dtype


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("t = Abs(s)  y = Resize(a, , t)", "cannot turn the model into double\n.*Resize"),
        (
            "t = Identity(s)  m = ReduceMax<keepdims = 0>(t)  b = Mul(a, m)  y = Resize(b, , t)",
            "cannot turn 's' into double: some of its users",
        ),
    ],
)
def test_operators_that_take_float_only_are_refused(nodes: str, message: str):
    model = prepare(ir.from_proto(proto(f"{RESIZE} {{ a = Mul(x, w)  {nodes} }}")))
    with pytest.raises(GraphError, match=message):
        in_double(model)


def test_a_constant_that_some_read_in_float_only_is_copied_for_them():
    nodes = "m = ReduceMax<keepdims = 0>(s)  b = Mul(a, m)  y = Resize(b, , s)"
    model = prepare(ir.from_proto(proto(f"{RESIZE} {{ a = Mul(x, w)  {nodes} }}")))
    made = in_double(model.clone())
    kinds = {name: value.dtype for name, value in made.graph.initializers.items()}
    double, single = ir.DataType.DOUBLE, ir.DataType.FLOAT
    assert kinds == {"w": double, "s": double, "s_float": single}
    with pytest.raises(GraphError, match="cannot turn 's' into double: some of its users"):
        in_type(model, double, ["s"])


def test_one_empty_constant_serves_as_both_roi_and_scales(folder, cli):
    text = """(float[1,1,2,2] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {2.0}, float[0] none = {}, int64[4] to = {1, 1, 4, 4}> {
        a = Mul(x, w)  y = Resize(a, none, none, to)
    }"""
    onnx.save(proto(text, 13), "resize.onnx")
    assert max(errors(cli("gradcheck", "resize.onnx")).values()) < 1e-8


FORGOTTEN = """(float[8,2] x) => (float[8,2] y) <float[2,2] w = {1.0, -0.5, 0.25, 2.0},
    float[2] b = {3000.0, -1000.0}, float[2] g = {1.0, 2.0}, float[2] c = {0.0, 0.5},
    float[2] mean = {0.0, 0.0}, float[2] var = {1.0, 1.0}> {
    a = MatMul(x, w)  k = Add(a, b)  n = BatchNormalization(k, g, c, mean, var)  y = Tanh(n)
}"""


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_error_where_the_gradient_is_zero(folder, cli, seed):
    onnx.save(proto(FORGOTTEN, 15), "noise.onnx")
    found = errors(cli("gradcheck", "noise.onnx", "--seed", seed))
    assert found["b"] == 0 and max(found.values()) < 1e-6


@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_a_small_gradient_that_is_called_zero_is_found(folder, cli, monkeypatch, size):
    rules.load_rules()
    monkeypatch.setitem(rules._RULES, ("", "Tanh"), [rules.Rule("Tanh", "", None)])
    text = f"""(float[N,2] x) => (float[N,2] y) {WEIGHT} {{
        small = Constant<value = float {{{size}}}>()
        a = MatMul(x, w)  b = Tanh(a)  c = Mul(b, small)  d = MatMul(x, v)  y = Add(c, d)
    }}"""
    onnx.save(proto(text), "cut.onnx")
    found = errors(cli("gradcheck", "cut.onnx", code=1))
    assert found["w"] > 1e-2 and found["v"] < 1e-8


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


def test_inputs_that_cannot_be_made_up_are_refused(folder, cli):
    text = f"(float[2,2] x, complex64[2] s) => (float[2,2] y) {WEIGHT} {{ y = MatMul(x, w) }}"
    onnx.save(proto(text), "text.onnx")
    message = "cannot make up input 's' of tensor(complex64)"
    assert message in cli("gradcheck", "text.onnx", code=1)
    assert message in cli("gradcheck", "text.onnx", "--size", 2, code=1)


@pytest.mark.parametrize("size", [2**44, 2**62])
def test_inputs_that_memory_cannot_hold_are_refused(folder, cli, size):
    text = f"(float[N,2] x) => (float[N,2] y) {WEIGHT} {{ y = MatMul(x, w) }}"
    onnx.save(proto(text), "large.onnx")
    message = f"cannot make up input 'x' of tensor(double) [{size}, 2]: "
    assert message in cli("gradcheck", "large.onnx", "--size", size, code=1)


def test_a_table_without_rows_is_no_crash(folder, cli):
    text = """(int64[N] i) => (float[N,2] y) <float[0,2] t = {}, float[2] b = {1.0, 2.0}> {
        rows = Gather(t, i)  y = Add(rows, b)
    }"""
    onnx.save(proto(text), "empty.onnx")
    assert "no made-up inputs fit the model" in cli("gradcheck", "empty.onnx", code=1)


IDS = """(int64[N,L] ids, int64[N] labels) => (float loss)
    <float[5,2] w = {1.0, -0.5, 0.25, 2.0, 0.5, 1.0, -1.0, 0.3, 0.7, -0.2}> {
    e = Gather(w, ids)  m = ReduceMean<axes=[1], keepdims=0>(e)
    loss = SoftmaxCrossEntropyLoss(m, labels)
}"""


def test_ids_and_labels_are_made_up_in_range(folder, cli):
    onnx.save(proto(IDS, 13), "ids.onnx")
    for seed in range(3):
        output = cli("gradcheck", "ids.onnx", "--loss", "loss", "--seed", seed)
        assert max(errors(output).values()) < 1e-8


def test_free_dimensions_get_a_size_that_fits_or_the_one_asked_for(folder, cli):
    text = f"""(float[N,K] x) => (float[N,2] y) {WEIGHT} <int64[2] s = {{-1, 2}}> {{
        r = Reshape(x, s)  y = MatMul(r, w)
    }}"""
    onnx.save(proto(text.replace("> <", ", ")), "free.onnx")
    assert "input 'x': 2x16" in cli("gradcheck", "free.onnx")
    assert "input 'x': 4x4" in cli("gradcheck", "free.onnx", "--size", 4)


def test_own_data_is_used_and_the_rest_made_up(folder, cli):
    text = f"""(float[N,2] x, float[M,2] z) => (float[N,2] y, float[M,2] u) {WEIGHT} {{
        a = Tanh(x)  y = MatMul(a, w)  u = MatMul(z, v)
    }}"""
    onnx.save(proto(text), "two.onnx")
    np.savez("own.npz", x=np.array([[0, 0], [0, 0], [1, 2]], np.float64))
    output = cli("gradcheck", "two.onnx", "--data", "own.npz")
    assert "input 'x': 3x2" in output and max(errors(output).values()) < 1e-8
    blind = cli("gradcheck", "two.onnx", "--data", "own.npz", "--rows", 2)
    row = next(line.split() for line in blind.splitlines() if line.split()[:1] == ["w"])
    assert row[2:] == ["0", "0", "0.0e+00"]
    np.savez("train.npz", x=np.ones((3, 2)), labels=np.zeros(3, int))  # as fit takes it
    assert "input 'x': 3x2" in cli("gradcheck", "two.onnx", "--data", "train.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 2))}, "the model has no input 'z' for the array of 'own.npz'"),
        ({"ids": np.full((2, 2), "a")}, "'ids' is tensor(int64), its array in the file has"),
        ({"ids": np.full((2, 2), 0.5)}, "input 'ids' is tensor(int64), not float64"),
        ({"ids": np.zeros((2, 2)), "labels": np.zeros(3)}, "SoftmaxCrossEntropyLoss"),
    ],
)
def test_data_that_does_not_fit_is_explained(folder, cli, arrays, message):
    onnx.save(proto(IDS, 13), "ids.onnx")
    np.savez("own.npz", **arrays)
    assert message in cli("gradcheck", "ids.onnx", "--data", "own.npz", code=1)


def test_inputs_are_checked_too_if_asked_or_if_there_is_nothing_else(folder, cli):
    onnx.save(proto(TANH), "tanh.onnx")
    assert errors(cli("gradcheck", "tanh.onnx", "--inputs")).keys() == {"w", "v", "x"}
    onnx.save(proto("(float[N,2] x) => (float[N,2] y) { y = Tanh(x) }"), "bare.onnx")
    assert errors(cli("gradcheck", "bare.onnx")).keys() == {"x"}
    onnx.save(proto("(int64[2] x) => (float[2] y) { y = Cast<to=1>(x) }"), "none.onnx")
    assert "nothing to differentiate by" in cli("gradcheck", "none.onnx", code=1)


def test_a_model_of_whole_numbers_has_nothing_to_differentiate(folder, cli):
    onnx.save(proto("(int64[2] x) => (int64[2] y) { y = Neg(x) }"), "whole.onnx")
    output = cli("gradcheck", "whole.onnx", code=1)
    assert "'y' (tensor(int64)) cannot be differentiated" in output and "--loss" in output


def test_operators_without_double_are_compared_in_float(folder, cli):
    text = """(int8[2,3] q) => (float[2,3] y) <float[3] w = {0.5, 1.0, 2.0}> {
        s = Exp(w)  y = DequantizeLinear<axis=1>(q, s)
    }"""
    onnx.save(proto(text), "scale.onnx")
    assert "compare in float with --float" in cli("gradcheck", "scale.onnx", code=1)
    assert max(errors(cli("gradcheck", "scale.onnx", "--float")).values()) < 1e-3


def test_a_model_that_gives_no_number_is_not_right(folder, cli):
    model = proto(TANH)
    weight = onnx.numpy_helper.from_array(np.full((2, 2), np.nan, np.float32), "w")
    model.graph.initializer[0].CopyFrom(weight)
    onnx.save(model, "nan.onnx")
    output = cli("gradcheck", "nan.onnx", code=1)
    assert "there is nothing to compare: no number of 'y' is finite" in output


def test_a_model_without_outputs_is_refused(folder, cli):
    model = onnx.load("model.onnx")
    del model.graph.output[:]
    onnx.save(model, "empty.onnx")
    assert "a model without outputs" in cli("gradcheck", "empty.onnx", code=1)
    assert "--seed 0, say" in cli("gradcheck", "model.onnx", "--seed", -1, code=2)
