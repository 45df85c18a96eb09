"""Training and evaluation form of BatchNormalization and Dropout."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession, Trainer
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
from training.small import model_of, normal

STATISTICS = {
    "scale": np.full(4, 2, np.float32),
    "shift": np.ones(4, np.float32),
    "mean": normal(4, seed=1),
    "var": np.full(4, 3, np.float32),
}
X = normal(6, 4, seed=2)


def batch_norm(
    outputs: str = "y", attributes: str = "", opset: int = 17, extra: str = ""
) -> ir.Model:
    text = f"""(float[N,4] x) => (float[N,4] z{extra}) {{
        {outputs} = BatchNormalization{attributes}(x, scale, shift, mean, var)
        z = Relu(y)
    }}"""
    return prepare(ir.from_proto(model_of(text, STATISTICS, opset=opset)))


TRAINING = {"outputs": "y, m, v", "attributes": "<training_mode=1, momentum=0.8, epsilon=0.001>"}


def only(model: ir.Model, op_type: str) -> ir.Node:
    (node,) = (n for n in model.graph.all_nodes() if n.op_type == op_type)
    return node


def run(model: ir.Model, **feeds):
    return InferenceSession(ir.to_proto(model)).run(None, feeds or {"x": X})


def normalised(mean, var, epsilon=1e-5):
    return np.maximum((X - mean) / np.sqrt(var + epsilon) * 2 + 1, 0)


def test_batch_norm_normalises_with_the_batch_in_training_form():
    model = batch_norm(attributes="<momentum=0.8, epsilon=0.01>")
    result = TrainingForm()(model)
    assert result.modified
    node = only(model, "BatchNormInternal")
    assert node.domain == "com.microsoft" and len(node.outputs) == 5
    assert node.attributes.get_int("training_mode") == 1
    np.testing.assert_allclose(node.attributes.get_float("momentum"), 0.8)
    np.testing.assert_allclose(node.attributes.get_float("epsilon"), 0.01)
    assert node.outputs[0].name == "y"
    (z,) = run(prepare(model))
    np.testing.assert_allclose(z, normalised(X.mean(0), X.var(0), 0.01), rtol=1e-4, atol=1e-5)


def test_batch_norm_that_was_saved_in_training_form_keeps_its_outputs():
    model = batch_norm(**TRAINING, extra=", float[4] m, float[4] v")
    TrainingForm()(model)
    assert [v.name for v in only(model, "BatchNormInternal").outputs[:3]] == ["y", "m", "v"]
    _, mean, var = run(prepare(model))
    np.testing.assert_allclose(mean, 0.8 * STATISTICS["mean"] + 0.2 * X.mean(0), rtol=1e-4)
    np.testing.assert_allclose(var, 0.8 * 3 + 0.2 * X.var(0), rtol=1e-4)


@pytest.mark.parametrize(
    "model",
    [batch_norm(**TRAINING), batch_norm("y, m, v, s, t", "<epsilon=0.001>", opset=9)],
    ids=["opset 17", "opset 9"],
)
@pytest.mark.parametrize("form", [EvaluationForm(), TrainingForm(batch_norm=False)], ids=str)
def test_batch_norm_uses_its_statistics_in_evaluation_form_or_if_it_is_frozen(model, form):
    model = model.clone()
    assert form(model).modified
    node = only(model, "BatchNormalization")
    assert "training_mode" not in node.attributes and len(node.outputs) == 1
    (z,) = run(prepare(model))
    np.testing.assert_allclose(z, normalised(STATISTICS["mean"], 3, 0.001), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [EvaluationForm(), TrainingForm(batch_norm=False)], ids=str)
def test_batch_norm_in_inference_form_is_left_alone(form):
    assert not form(batch_norm()).modified


def test_statistics_that_the_model_returns_are_the_saved_ones_in_evaluation():
    text = """(float[N,4] x) => (float[N,4] y, float[4] m, float[4] v, float[4] sum) {
        y, m, v = BatchNormalization<training_mode=1>(x, scale, shift, mean, var)
        sum = Add(m, v)
    }"""
    model = prepare(ir.from_proto(model_of(text, STATISTICS)))
    EvaluationForm()(model)
    assert [value.name for value in model.graph.outputs] == ["y", "m", "v", "sum"]
    _, mean, var, total = run(prepare(model))
    np.testing.assert_array_equal(mean, STATISTICS["mean"])
    np.testing.assert_array_equal(var, STATISTICS["var"])
    np.testing.assert_array_equal(total, STATISTICS["mean"] + STATISTICS["var"])


def dropout(opset: int, call: str, **weights) -> ir.Model:
    text = f"(float[N,4] x) => (float[N,4] z) {{ {call} z = Relu(y) }}"
    return prepare(ir.from_proto(model_of(text, weights, opset=opset)))


def test_dropout_of_newer_opsets_gets_its_third_input():
    model = dropout(17, "y = Dropout(x, rate)", rate=np.float32(0.25))
    assert TrainingForm(dropout=True)(model).modified
    node = only(model, "Dropout")
    assert node.inputs[1].name == "rate"
    assert node.inputs[2].const_value.numpy() == np.array(True)
    assert EvaluationForm()(model).modified
    assert [value.name for value in node.inputs] == ["x", "rate"]
    assert not EvaluationForm()(model).modified


def test_dropout_without_a_rate_gets_its_third_input():
    model = dropout(13, "y = Dropout(x)")
    TrainingForm(dropout=True)(model)
    first, rate, training = only(model, "Dropout").inputs
    assert first.name == "x" and rate is None and training is not None


def test_dropout_of_older_opsets_becomes_one_that_can_drop():
    model = dropout(10, "y = Dropout<ratio=0.75>(x)")
    assert TrainingForm(dropout=True)(model).modified
    node = only(model, "BitmaskDropout")
    assert node.outputs[0].name == "y"
    assert [float(value.const_value.numpy()) for value in node.inputs[1:]] == [0.75, 1.0]
    (z,) = run(prepare(model), x=np.ones((64, 4), np.float32))
    assert set(np.unique(z)) == {0, 4}


def test_an_older_dropout_without_a_ratio_drops_half():
    model = dropout(10, "y = Dropout(x)")
    TrainingForm(dropout=True)(model)
    assert float(only(model, "BitmaskDropout").inputs[1].const_value.numpy()) == 0.5


def test_an_older_dropout_whose_mask_is_used_is_left_alone():
    model = dropout(10, "d, mask = Dropout(x) m = Cast<to=1>(mask) y = Mul(d, m)")
    assert not TrainingForm(dropout=True)(model).modified


def test_dropout_stays_as_it_is_unless_asked():
    assert not TrainingForm(dropout=False)(dropout(17, "y = Dropout(x)")).modified


def test_evaluation_form_reaches_into_branches():
    model = prepare(
        ir.from_proto(
            model_of(
                """(bool c, float[4] x) => (float[4] y) {
                    y = If(c) <
                        then_branch = a () => (float[4] p) { p = Dropout(x, rate, on) },
                        else_branch = b () => (float[4] q) { q = Neg(x) }
                    >
                }""",
                {"rate": np.float32(0.9), "on": np.array(True)},
            )
        )
    )
    EvaluationForm()(model)
    (y,) = run(model, c=np.array(True), x=np.ones(4, np.float32))
    np.testing.assert_array_equal(y, np.ones(4))


def test_batch_norm_by_place_trains_like_one_of_flat_data():
    rows, places = (_trained(shape) for shape in ((6,), (2, 3)))
    for name, value in rows.items():
        np.testing.assert_array_equal(places[name].ravel(), value.ravel())
    assert places["mean"].shape == (2, 3) and places["mean"].any()


def _trained(shape):
    sizes, spatial = ",".join(map(str, shape)), int(len(shape) == 1)
    text = f"""<ir_version: 8, opset_import: ["": 8]> places (float[n,{sizes}] x) => (float[n,2] y)
        {{ a = Mul(x, k) b = BatchNormalization<spatial={spatial}>(a, scale, shift, mean, var)
           r = Relu(b) f = Flatten(r) y = MatMul(f, head) }}"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    values = {name: random.uniform(0.5, 2, shape) for name in ("k", "scale", "shift", "var")}
    values |= {"mean": np.zeros(shape), "head": random.normal(size=(6, 2))}
    for name, value in values.items():
        tensor = onnx.numpy_helper.from_array(value.astype(np.float32), name)
        proto.graph.initializer.append(tensor)
    trainer = Trainer(proto, loss="cross_entropy", lr=0.05, device="cpu")
    x = random.normal(size=(8, *shape)).astype(np.float32)
    for _ in range(3):
        trainer.step({"x": x, "labels": np.arange(8) % 2})
    return {p.name: p.tensor.numpy() for p in trainer.state.parameters.in_order()}
