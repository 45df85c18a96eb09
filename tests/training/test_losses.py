"""Losses of a Trainer: by name, as blocks, as torch functions, as an output of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

from onnxtrain import Trainer, onnxblock
from onnxtrain.errors import LossError
from training.small import batch_of, mlp, model_of, normal

BATCH = batch_of()
TARGET = {"x": BATCH["x"], "target": np.abs(normal(6, 3, seed=8)).clip(0, 1)}


def trainer_of(model: onnx.ModelProto | None = None, **options) -> Trainer:
    return Trainer(model or mlp(), **{"device": "cpu", "seed": 0, **options})


NAMED = {
    "cross_entropy": (BATCH, lambda y, t: F.cross_entropy(y, t)),
    "mse": (TARGET, lambda y, t: F.mse_loss(y, t)),
    "l1": (TARGET, lambda y, t: F.l1_loss(y, t)),
    "bce": (TARGET, lambda y, t: F.binary_cross_entropy_with_logits(y, t)),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_loss_is_what_torch_says(name):
    batch, function = NAMED[name]
    trainer = trainer_of(loss=name)
    (wanted,) = trainer.loss_input_names
    expected = function(trainer.predict(batch)["y"], torch.tensor(batch[wanted]))
    np.testing.assert_allclose(float(trainer.loss(batch)), float(expected), rtol=1e-5)
    np.testing.assert_allclose(float(trainer.step(batch)), float(expected), rtol=1e-5)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_loss_has_the_gradients_of_torch(name):
    batch, function = NAMED[name]
    by_name = trainer_of(loss=name)
    (wanted,) = by_name.loss_input_names
    by_function = trainer_of(loss=lambda outputs, given: function(outputs["y"], given[wanted]))
    expected = by_function.gradients(batch)
    for parameter, grad in by_name.gradients(batch).items():
        torch.testing.assert_close(grad, expected[parameter], rtol=1e-4, atol=1e-6)


class Weighted(onnxblock.Block):
    """Cross entropy of one output and the mean square of another."""

    def build(self, scores, features):
        entropy = onnxblock.loss.CrossEntropyLoss()(scores)
        square = onnxblock.loss.MSELoss()(features, "goal")
        factor = onnxblock.blocks.Constant(0.5)()
        scaled = onnxblock.blocks.ReduceSum(keepdims=False)(onnxblock.blocks.Mul()(square, factor))
        return onnxblock.blocks.Add()(entropy, scaled)


def two_headed() -> onnx.ModelProto:
    """Scores, features, and the best class as a whole number."""
    return model_of(
        """(float[N,4] x) => (float[N,3] scores, float[N,5] features, int64[N] best) {
            h = MatMul(x, w1)
            features = Tanh(h)
            scores = MatMul(features, w2)
            best = ArgMax<axis=1, keepdims=0>(scores)
        }""",
        {"w1": normal(4, 5, seed=1), "w2": normal(5, 3, seed=2)},
    )


def test_a_block_takes_the_outputs_in_order():
    trainer = trainer_of(two_headed(), loss=Weighted(), outputs=["scores", "features"])
    assert trainer.loss_input_names == ["labels", "goal"]
    batch = {**BATCH, "goal": normal(6, 5, seed=9)}
    predicted = trainer.predict(batch)
    expected = F.cross_entropy(predicted["scores"], torch.tensor(batch["labels"]))
    expected += 0.5 * F.mse_loss(predicted["features"], torch.tensor(batch["goal"]))
    np.testing.assert_allclose(float(trainer.step(batch)), float(expected), rtol=1e-5)


def test_a_function_gets_all_outputs_and_the_batch_as_tensors():
    seen = {}

    def loss(outputs, batch):
        seen.update(outputs=outputs, batch=batch)
        return F.cross_entropy(outputs["scores"], batch["labels"])

    trainer = trainer_of(two_headed(), loss=loss)
    extra = {**BATCH, "names": ["a", "b"], "weights": [0.5, 1.5], "scale": 2.0, "thing": object()}
    trainer.step(extra)
    assert list(seen["outputs"]) == ["scores", "features", "best"]
    assert seen["outputs"]["best"].dtype == torch.int64
    assert seen["batch"]["names"] == ["a", "b"] and seen["batch"]["thing"] is extra["thing"]
    torch.testing.assert_close(seen["batch"]["weights"], torch.tensor([0.5, 1.5]))
    assert seen["batch"]["labels"].dtype == torch.int64


def combined(outputs, batch):
    """Uses both floating point outputs, and the whole numbers to choose among them."""
    right = (outputs["best"] == batch["labels"]).float()
    entropy = F.cross_entropy(outputs["scores"], batch["labels"], reduction="none")
    return (entropy * (2 - right)).mean() + outputs["features"].square().mean()


def expected_gradients(loss) -> dict[str, torch.Tensor]:
    w1 = torch.tensor(normal(4, 5, seed=1)).requires_grad_()
    w2 = torch.tensor(normal(5, 3, seed=2)).requires_grad_()
    features = torch.tanh(torch.tensor(BATCH["x"]) @ w1)
    scores = features @ w2
    outputs = {"scores": scores, "features": features, "best": scores.argmax(1)}
    loss(outputs, {name: torch.tensor(value) for name, value in BATCH.items()}).backward()
    return {"w1": w1.grad, "w2": torch.zeros_like(w2) if w2.grad is None else w2.grad}


def shared(outputs, batch):
    """Both outputs get the very same tensor as gradient, of stride 0."""
    return outputs["scores"].sum() + (outputs["features"][:, :3] + outputs["scores"]).sum()


def features_only(outputs, batch):
    return outputs["features"].pow(3).sum().reshape(1, 1)


@pytest.mark.parametrize("loss", [combined, shared, features_only])
def test_a_function_of_several_outputs_has_the_gradients_of_autograd(loss):
    trainer = trainer_of(two_headed(), loss=loss)
    expected = expected_gradients(loss)
    for _ in range(2):
        found = trainer.gradients(BATCH)
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


def test_the_same_gradient_for_two_outputs_is_not_overwritten_in_between():
    model = model_of(
        """(float[N,4] x) => (float[N,3] a, float[N,3] b) {
            m = MatMul(x, w) a = Sigmoid(m) n = MatMul(x, v) b = Tanh(n)
        }""",
        {"w": normal(4, 3, seed=1), "v": normal(4, 3, seed=2)},
    )
    trainer = trainer_of(model, loss=lambda outputs, _: (outputs["a"] + outputs["b"]).sum())
    x, w = torch.tensor(BATCH["x"]), torch.tensor(normal(4, 3, seed=1)).requires_grad_()
    v = torch.tensor(normal(4, 3, seed=2)).requires_grad_()
    (torch.sigmoid(x @ w) + torch.tanh(x @ v)).sum().backward()
    found = trainer.gradients({"x": BATCH["x"]})
    torch.testing.assert_close(found["w"], w.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["v"], v.grad, rtol=1e-4, atol=1e-6)


def test_a_function_takes_outputs_of_unknown_rank_behind_an_einsum_that_broadcasts():
    model = model_of(
        """(float[1,2] z, float[N,4] x, int64[K] sizes) => (float[a,b,c] y, float r) {
            y = Einsum<equation="il,ij,jk->ilk">(z, x, w)
            r = Reshape(y, sizes)
        }""",
        {"w": normal(4, 3, seed=1)},
    )
    model.graph.output[1].type.tensor_type.ClearField("shape")
    batch = {"x": BATCH["x"], "z": normal(1, 2, seed=2), "sizes": np.array([2, 18])}
    trainer = trainer_of(model, loss=lambda o, _: o["y"].square().sum() + o["r"][1].sum())
    x, z, w = torch.tensor(batch["x"]), torch.tensor(batch["z"]), torch.tensor(normal(4, 3, seed=1))
    y = torch.einsum("il,ij,jk->ilk", z.expand(6, 2), x, w.requires_grad_())
    (y.square().sum() + y.reshape(2, 18)[1].sum()).backward()
    torch.testing.assert_close(trainer.gradients(batch)["w"], w.grad, rtol=1e-4, atol=1e-6)


def test_outputs_that_a_function_keeps_stay_as_they_were():
    kept = {}

    def loss(outputs, batch):
        kept.update({name: (value, value.detach().clone()) for name, value in outputs.items()})
        return combined(outputs, batch)

    trainer = trainer_of(two_headed(), loss=loss)
    trainer.step(BATCH)
    for value, copied in kept.values():
        assert torch.equal(value.detach(), copied)


def test_a_function_may_take_some_outputs_only():
    seen = []

    def loss(outputs, batch):
        seen.append(list(outputs))
        return outputs["features"].square().mean()

    trainer = trainer_of(two_headed(), loss=loss, outputs=["features"])
    assert [d.name for d in trainer.decisions if d.trained] == ["w1"]
    trainer.step({"x": BATCH["x"]})
    trainer.loss({"x": BATCH["x"]})
    assert seen == [["features"]] * 2
    assert set(trainer.predict(BATCH)) == {"scores", "features", "best"}


def test_evaluation_with_a_function_builds_no_graph():
    trainer = trainer_of(two_headed(), loss=combined)
    value = trainer.loss(BATCH)
    assert not value.requires_grad and value.shape == ()
    parts = trainer.evaluate([BATCH, BATCH])
    np.testing.assert_allclose(parts, float(value), rtol=1e-6)


def test_a_module_of_torch_is_a_function():
    class Loss(torch.nn.Module):
        def forward(self, outputs, batch):
            return F.cross_entropy(outputs["y"], batch["labels"])

    by_module, by_name = trainer_of(loss=Loss()), trainer_of(loss="cross_entropy")
    for _ in range(3):
        torch.testing.assert_close(by_module.step(BATCH), by_name.step(BATCH))


def test_a_function_is_run_deterministically_if_asked():
    seen = []

    def loss(outputs, batch):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return outputs["y"].sum()

    trainer_of(loss=loss, deterministic=True).step(BATCH)
    trainer_of(loss=loss).step(BATCH)
    assert seen == [True, False]


def test_a_function_that_fails_leaves_the_parameters_alone():
    def loss(outputs, batch):
        raise ZeroDivisionError

    trainer = trainer_of(loss=loss)
    before = {name: tensor.clone() for name, tensor in trainer.parameters.items()}
    with pytest.raises(ZeroDivisionError):
        trainer.step(BATCH)
    assert trainer.steps == 0
    assert all(torch.equal(tensor, before[n]) for n, tensor in trainer.parameters.items())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, batch: outputs["y"], r"scalar tensor, it gave \[6, 3\]"),
        (lambda outputs, batch: 3.0, "scalar tensor, it gave float"),
        (lambda outputs, batch: torch.tensor(1.0), "does not depend on the model's outputs 'y'"),
        (lambda outputs, batch: outputs["y"].argmax().float(), "does not depend on"),
    ],
)
def test_what_a_function_may_not_give(loss, message):
    trainer = trainer_of(loss=loss)
    with pytest.raises(LossError, match=message):
        trainer.step(BATCH)


def test_the_model_may_compute_its_loss_itself():
    model = model_of(
        """(float[N,4] x, int64[N] labels) => (float loss, float[N,3] y) {
            y = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(y, labels)
        }""",
        {"w": normal(4, 3)},
    )
    trainer = trainer_of(model, loss=None)
    expected = F.cross_entropy(
        torch.tensor(BATCH["x"] @ normal(4, 3)), torch.tensor(BATCH["labels"])
    )
    np.testing.assert_allclose(float(trainer.step(BATCH)), float(expected), rtol=1e-5)
    assert trainer.loss_input_names == []


def test_a_loss_needs_an_output_of_the_model():
    with pytest.raises(LossError, match="no output 'z'\n  outputs  y\n  inner values  a, h"):
        trainer_of(loss="mse", outputs=["z"])
    with pytest.raises(LossError, match="list of outputs is empty"):
        trainer_of(loss="mse", outputs=[])


def classifier(lines: str, outputs: str = "float[N,3] p") -> onnx.ModelProto:
    text = f"(float[N,4] x) => ({outputs}) {{ s = MatMul(x, w)  {lines} }}"
    return model_of(text, {"w": normal(4, 3, seed=1)})


SCORES = classifier("p = Identity(s)")


@pytest.mark.parametrize(
    "model",
    [
        classifier("p = Softmax<axis = 1>(s)"),
        classifier("p = ArgMax<axis = 1, keepdims = 0>(s)", "int64[N] p"),
    ],
    ids=["Softmax", "ArgMax"],
)
@pytest.mark.parametrize("loss", ["cross_entropy", "function"])
def test_a_loss_may_take_a_value_inside_of_the_model(model, loss, tmp_path):
    def function(outputs, batch):
        return F.cross_entropy(outputs["s"], batch["labels"])

    trainer = trainer_of(model, loss=function if loss == "function" else loss, outputs=["s"])
    expected = trainer_of(SCORES, loss="cross_entropy")
    for _ in range(2):
        torch.testing.assert_close(trainer.step(BATCH), expected.step(BATCH))
    torch.testing.assert_close(trainer.parameters["w"], expected.parameters["w"])
    found = trainer.predict(BATCH)
    assert list(found) == ["p", "s"]
    torch.testing.assert_close(found["s"], expected.predict(BATCH)["p"])
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    assert [value.name for value in saved.graph.output] == ["p"]


def test_a_named_loss_needs_numbers_that_have_a_gradient():
    model = classifier("p = ArgMax<axis = 1, keepdims = 0>(s)", "int64[N] p")
    with pytest.raises(
        LossError, match=r"(?s)no output .* floating point.*inner values  s.*outputs="
    ):
        trainer_of(model, loss="cross_entropy")


def test_a_named_loss_takes_what_the_model_computes():
    """Not an input or a weight that a file gives back."""
    model = classifier("p = Identity(s)", "float[N,4] x, float[4,3] w, float[N,3] p")
    assert trainer_of(model, loss="cross_entropy").loss_output_names == ["p"]


def test_a_loss_that_does_not_fit_the_output_says_so():
    flat = model_of("(float[N,4] x) => (float[N] y) { y = MatMul(x, w) }", {"w": normal(4)})
    with pytest.raises(Exception, match="CrossEntropyLoss have 1 axes") as caught:
        trainer_of(flat, loss="cross_entropy")
    assert "shape (batch, classes, ...)" in str(caught.value)


def test_a_function_gets_outputs_that_are_tensors_of_numbers():
    of = model_of(
        """(float[N,2] x) => (float[N,2] y, seq(float[a,b]) rows, string[N,2] text, int64[N] best)
          <float[2,2] w = {1.0, 0.5, -0.5, 1.0}> {
            y = MatMul(x, w)  rows = SplitToSequence(y)  text = Cast <to = 8> (y)
            best = ArgMax <axis = 1, keepdims = 0> (y)
        }"""
    )
    seen = []

    def loss(outputs, batch):
        seen.append(list(outputs))
        return outputs["y"].square().mean()

    trainer = Trainer(of, loss=loss, device="cpu")
    trainer.step({"x": np.ones([3, 2], np.float32)})
    assert seen == [["y", "best"]]


@pytest.mark.parametrize("given", [None, 3, (), ("y", 1)], ids=repr)
def test_a_block_must_name_its_result(given):
    class Silent(onnxblock.Block):
        def build(self, output):
            del output
            return given

    with pytest.raises(LossError, match=r"build of Silent returned .*\n  return the name of"):
        trainer_of(loss=Silent())


def test_a_loss_of_an_operator_that_nobody_knows():
    class Unknown(onnxblock.Block):
        def build(self, output):
            self.base.graph.node.append(onnx.helper.make_node("Frob", [output], ["loss"]))
            return "loss"

    with pytest.raises(LossError, match=r"type of loss 'loss' of ai\.onnx::Frob is not known"):
        trainer_of(loss=Unknown())


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "momentum"])
def test_optimizers_do_not_depend_on_the_opset_of_the_model(optimizer, opset):
    given = {"loss": "mse", "optimizer": optimizer, "lr": 0.1, "clip_grad_norm": 0.1}
    old, new = (trainer_of(mlp(opset=number), **given) for number in (opset, 17))
    for _ in range(2):
        torch.testing.assert_close(old.step(TARGET), new.step(TARGET))
    for name, tensor in new.parameters.items():
        torch.testing.assert_close(old.parameters[name], tensor)
