"""Trainer: step, loss, gradients, evaluate, predict, options, dropout, batch normalisation."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from onnxtrain import Trainer, onnxblock
from onnxtrain.errors import FeedError, LossError, OptionError, ParameterError
from training.small import WEIGHTS, batch_of, mlp, model_of, normal

BATCH = batch_of()


def trainer_of(model: onnx.ModelProto | None = None, **options) -> Trainer:
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0}
    return Trainer(model or mlp(), **{**given, **options})


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in trainer.parameters.items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def torch_forward(weights: dict[str, torch.Tensor], batch=BATCH):
    hidden = torch.relu(torch.tensor(batch["x"]) @ weights["fc1.weight"].T + weights["fc1.bias"])
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"]


def torch_weights(model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return {name: torch.tensor(array).requires_grad_() for name, array in tensors.items()}


def test_a_step_gives_the_loss_before_it_and_lowers_it():
    trainer = trainer_of(lr=0.05)
    expected = F.cross_entropy(torch_forward(torch_weights(mlp())), torch.tensor(BATCH["labels"]))
    losses = [float(trainer.step(BATCH)) for _ in range(20)]
    np.testing.assert_allclose(losses[0], expected.item(), rtol=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.steps == 20


def test_gradients_are_those_of_autograd_and_nothing_changes():
    trainer = trainer_of()
    before = arrays(trainer)
    weights = torch_weights(mlp())
    F.cross_entropy(torch_forward(weights), torch.tensor(BATCH["labels"])).backward()
    for _ in range(2):
        found = trainer.gradients(BATCH)
        assert found.keys() == set(WEIGHTS)
        for name, grad in found.items():
            torch.testing.assert_close(grad, weights[name].grad, rtol=1e-4, atol=1e-6)
    assert same(arrays(trainer), before) and trainer.steps == 0


def test_sgd_makes_the_step_of_the_gradients():
    trainer = trainer_of(optimizer="sgd", lr=0.5)
    before, grads = arrays(trainer), trainer.gradients(BATCH)
    trainer.step(BATCH)
    for name, value in arrays(trainer).items():
        np.testing.assert_allclose(value, before[name] - 0.5 * grads[name].numpy(), atol=1e-6)


def test_gradients_of_steps_do_not_add_up():
    trainer = trainer_of(optimizer="sgd", lr=0.0)
    trainer.step(BATCH)
    once = {n: p.grad for n, p in trainer.state.parameters if p.requires_grad}
    trainer.step(BATCH)
    for name, grad in once.items():
        np.testing.assert_array_equal(trainer.state.parameters[name].grad, grad)


def test_loss_evaluate_and_predict_change_nothing():
    trainer = trainer_of()
    before = arrays(trainer)
    scores = trainer.predict({"x": BATCH["x"]})["y"]
    loss = float(trainer.loss(BATCH))
    expected = F.cross_entropy(scores, torch.tensor(BATCH["labels"]))
    np.testing.assert_allclose(loss, float(expected), rtol=1e-5)
    torch.testing.assert_close(scores, torch_forward(torch_weights(mlp())).detach())
    assert trainer.predict(BATCH)["y"].shape == (6, 3)
    assert same(arrays(trainer), before) and trainer.steps == 0


def test_predictions_follow_the_training():
    trainer = trainer_of(lr=0.1)
    before = trainer.predict(BATCH)["y"]
    trainer.step(BATCH)
    after = trainer.predict(BATCH)["y"]
    expected = torch_forward(trainer.parameters)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)
    assert (after - before).abs().max() > 1e-3


def test_evaluate_weighs_batches_by_their_samples():
    trainer = trainer_of()
    large = batch_of(samples=9)
    parts = [{name: value[s] for name, value in large.items()} for s in (slice(7), slice(7, 9))]
    np.testing.assert_allclose(trainer.evaluate(parts), float(trainer.loss(large)), rtol=1e-5)
    np.testing.assert_allclose(trainer.evaluate(iter(parts)), trainer.evaluate(parts))
    with pytest.raises(FeedError, match="no batch"):
        trainer.evaluate([])


def test_several_batches_of_any_size_are_one_step_over_all_samples():
    large = batch_of(samples=9)
    cuts = (slice(0, 5), slice(5, 7), slice(7, 9))
    parts = [{name: value[cut] for name, value in large.items()} for cut in cuts]
    whole, several = (trainer_of(optimizer="sgd", lr=0.5) for _ in range(2))
    np.testing.assert_allclose(float(several.step(parts)), float(whole.step(large)), rtol=1e-6)
    for name, tensor in whole.parameters.items():
        torch.testing.assert_close(several.parameters[name], tensor, rtol=1e-5, atol=1e-7)


def test_parameters_are_live_tensors():
    trainer = trainer_of()
    assert list(trainer.parameters) == list(WEIGHTS)
    trainer.parameters["fc2.weight"].zero_()
    scores = trainer.predict(BATCH)["y"]
    torch.testing.assert_close(scores, trainer.parameters["fc2.bias"].expand(6, 3))


def test_the_learning_rate_can_be_changed():
    trainer = trainer_of(lr=0.25)
    assert trainer.lr == 0.25
    trainer.lr = 0.0
    before = arrays(trainer)
    trainer.step(BATCH)
    assert same(arrays(trainer), before) and trainer.steps == 1


def test_weight_decay_shrinks_and_clipping_limits():
    decayed = trainer_of(weight_decay=0.5, lr=0.01, trainable=["fc2.weight"])
    plain = trainer_of(lr=0.01, trainable=["fc2.weight"])
    before = plain.parameters["fc2.weight"].clone()
    for trainer in (decayed, plain):
        trainer.step(BATCH)
    expected = plain.parameters["fc2.weight"] - 0.01 * 0.5 * before
    torch.testing.assert_close(decayed.parameters["fc2.weight"], expected)
    clipped = trainer_of(optimizer="sgd", lr=1.0, clip_grad_norm=1e-3)
    before = arrays(clipped)
    clipped.step(BATCH)
    moved = [arrays(clipped)[name] - before[name] for name in before]
    np.testing.assert_allclose(np.sqrt(sum((m**2).sum() for m in moved)), 1e-3, rtol=2e-2)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_named_optimizers_are_those_of_torch(name):
    """Gradients far below 1 tell where epsilon stands."""
    scaled = {**BATCH, "x": BATCH["x"] * 1e-7}
    trainer = trainer_of(optimizer=name, lr=0.01, weight_decay=0.1, clip_grad_norm=1.0)
    weights = torch_weights(mlp())
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    optimizer = kinds[name](weights.values(), lr=0.01, weight_decay=0.1)
    for _ in range(5):
        trainer.step(scaled)
        optimizer.zero_grad()
        scores = torch_forward(weights, scaled)
        F.cross_entropy(scores, torch.tensor(BATCH["labels"])).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
    for key, tensor in trainer.parameters.items():
        torch.testing.assert_close(tensor, weights[key].detach(), rtol=1e-5, atol=1e-6)


def test_an_optimizer_block():
    by_block = trainer_of(optimizer=onnxblock.optim.AdamW(betas=(0.5, 0.9)), lr=0.01)
    by_name = trainer_of(lr=0.01)
    for _ in range(2):
        by_block.step(BATCH)
        by_name.step(BATCH)
    assert not same(arrays(by_block), arrays(by_name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "magic"}, "unknown optimizer 'magic'"),
        ({"optimizer": 3}, "not int"),
        ({"optimizer": onnxblock.optim.SGD(), "clip_grad_norm": 1.0}, "to the optimizer block"),
        ({"batch_norm": "eval"}, "batch_norm is one of train, freeze, not 'eval'"),
        ({"lr": -0.1}, "lr must be a finite number of at least 0, not -0.1"),
        ({"lr": "0.1"}, "lr must be a finite number of at least 0, not '0.1'"),
        ({"lr": None}, "lr must be a finite number"),
        ({"weight_decay": float("nan")}, "weight_decay must be a finite number"),
        ({"clip_grad_norm": [1.0]}, r"clip_grad_norm must be a number .* not \[1.0\]"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        trainer_of(**options)


def test_every_kind_of_model_source(tmp_path):
    onnx.save(mlp(), tmp_path / "model.onnx")
    sources = [
        mlp(),
        mlp().SerializeToString(),
        ir.from_proto(mlp()),
        str(tmp_path / "model.onnx"),
        tmp_path / "model.onnx",
    ]
    losses = [float(trainer_of(source).step(BATCH)) for source in sources]
    assert len(set(losses)) == 1


def test_the_given_model_is_left_as_it_was():
    proto, model = mlp(), ir.from_proto(mlp())
    before = proto.SerializeToString(), ir.to_proto(model).SerializeToString()
    for source in (proto, model):
        trainer = trainer_of(source)
        trainer.step(BATCH)
        trainer.predict(BATCH)
    assert (proto.SerializeToString(), ir.to_proto(model).SerializeToString()) == before


def test_training_is_reproducible_in_deterministic_mode():
    runs = []
    for _ in range(2):
        trainer = trainer_of(dropout_net(), deterministic=True, seed=11)
        runs.append([float(trainer.step(BATCH)) for _ in range(4)])
    assert runs[0] == runs[1]
    assert not torch.are_deterministic_algorithms_enabled()


def dropout_net(opset: int = 17) -> onnx.ModelProto:
    """A wide hidden layer with Dropout in inference form."""
    drop = "Dropout(h, rate)" if opset >= 12 else "Dropout<ratio=0.75>(h)"
    weights = {"w1": normal(4, 64, seed=1), "w2": normal(64, 3, seed=2)}
    if opset >= 12:
        weights["rate"] = np.float32(0.75)
    return model_of(
        f"(float[N,4] x) => (float[N,3] y) {{ h = MatMul(x, w1) d = {drop} y = MatMul(d, w2) }}",
        weights,
        opset=opset,
        ir_version=8,
    )


@pytest.mark.parametrize("opset", [9, 10, 12, 17])
def test_dropout_saved_for_inference_drops_in_training_only(opset):
    trainer = trainer_of(dropout_net(opset), optimizer="sgd", lr=0.0)
    grads = trainer.gradients(batch_of(samples=1))["w2"]
    dropped = (grads == 0).all(dim=1)
    assert 36 <= dropped.sum() <= 60  # 48 of 64 are expected
    random = {float(trainer.step(BATCH)) for _ in range(4)}
    assert len(random) == 4
    calm = {float(trainer.loss(BATCH)) for _ in range(4)}
    assert len(calm) == 1
    exact = onnxruntime.InferenceSession(dropout_net(opset).SerializeToString())
    (scores,) = exact.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(trainer.predict(BATCH)["y"].numpy(), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 17])
def test_dropout_can_be_left_off(opset):
    trainer = trainer_of(dropout_net(opset), optimizer="sgd", lr=0.0, dropout=False)
    losses = {float(trainer.step(BATCH)) for _ in range(3)}
    assert losses == {float(trainer.loss(BATCH))}


def test_dropout_follows_the_seed():
    def losses(seed):
        trainer = trainer_of(dropout_net(), seed=seed)
        return [float(trainer.step(BATCH)) for _ in range(3)]

    assert losses(1) == losses(1) != losses(2)


def test_gradients_leave_the_random_numbers_alone():
    quiet, asked = (trainer_of(dropout_net(), seed=4) for _ in range(2))
    first = asked.gradients(BATCH)
    assert all(torch.equal(first[name], grad) for name, grad in asked.gradients(BATCH).items())
    assert float(asked.step(BATCH)) == float(quiet.step(BATCH))


def batch_norm_net() -> onnx.ModelProto:
    return model_of(
        """(float[N,4] x) => (float[N,3] y) {
            h = MatMul(x, w1)
            n = BatchNormalization<momentum=0.9>(h, scale, shift, mean, var)
            y = MatMul(n, w2)
        }""",
        {
            "w1": normal(4, 5, seed=1),
            "scale": np.ones(5, np.float32),
            "shift": np.zeros(5, np.float32),
            "mean": normal(5, seed=2),
            "var": np.full(5, 2, np.float32),
            "w2": normal(5, 3, seed=3),
        },
    )


def statistics(trainer: Trainer) -> list[np.ndarray]:
    return [trainer.state.parameters[name].data for name in ("mean", "var")]


def test_batch_norm_trains_on_the_batch_and_moves_its_statistics():
    trainer = trainer_of(batch_norm_net(), lr=0.0)
    hidden = BATCH["x"] @ normal(4, 5, seed=1)
    loss = float(trainer.step(BATCH))
    normed = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    scores = torch.tensor(normed @ normal(5, 3, seed=3))
    expected = F.cross_entropy(scores, torch.tensor(BATCH["labels"]))
    np.testing.assert_allclose(loss, float(expected), rtol=1e-4)
    mean, var = statistics(trainer)
    np.testing.assert_allclose(mean, 0.9 * normal(5, seed=2) + 0.1 * hidden.mean(0), rtol=1e-4)
    np.testing.assert_allclose(var, 0.9 * 2 + 0.1 * hidden.var(0), rtol=1e-4)


def test_gradients_leave_the_statistics_alone():
    trainer = trainer_of(batch_norm_net())
    before = statistics(trainer)
    trainer.gradients(BATCH)
    with pytest.raises(FeedError):
        trainer.gradients({"x": BATCH["x"]})
    for old, new in zip(before, statistics(trainer), strict=True):
        np.testing.assert_array_equal(old, new)


def test_frozen_batch_norm_uses_its_statistics_and_still_trains(tmp_path):
    trainer = trainer_of(batch_norm_net(), lr=0.01, batch_norm="freeze")
    first = float(trainer.loss(BATCH))
    np.testing.assert_allclose(float(trainer.step(BATCH)), first, rtol=1e-6)
    assert set(trainer.parameters) == {"w1", "scale", "shift", "w2"}
    trainer.save(tmp_path / "trained.onnx")
    saved = {t.name: t for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    for name in ("mean", "var"):
        before = next(t for t in batch_norm_net().graph.initializer if t.name == name)
        assert saved[name] == before


def test_batch_norm_in_training_form_can_be_frozen_too():
    model = batch_norm_net()
    plain = trainer_of(model, batch_norm="freeze")
    node = model.graph.node[1]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    node.output.extend(["mean_out", "var_out"])
    frozen = trainer_of(model, batch_norm="freeze")
    assert float(frozen.step(BATCH)) == float(plain.step(BATCH))
    assert float(frozen.loss(BATCH)) == float(plain.loss(BATCH))


def test_names_and_patterns_choose_what_trains():
    assert list(trainer_of(trainable="fc2.*").parameters) == list(WEIGHTS[2:])
    assert list(trainer_of(trainable=["fc1.bias", "*.weight"]).parameters) == [
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
    ]
    trainer = trainer_of(trainable=["fc1.bias"], lr=0.1)
    frozen = trainer.predict(BATCH)["y"]
    trainer.step(BATCH)
    assert list(trainer.gradients(BATCH)) == ["fc1.bias"]
    assert (trainer.predict(BATCH)["y"] - frozen).abs().max() > 1e-4
    with pytest.raises(ParameterError, match="no parameter matches 'fc3'"):
        trainer_of(trainable=["fc3"])


def test_a_misspelt_input_is_noticed():
    trainer = trainer_of()
    with pytest.raises(FeedError, match="the batch has 'label', which the step does not take"):
        trainer.step({**BATCH, "label": BATCH["labels"]})
    with pytest.raises(FeedError, match=r"no 'labels'\n  it has    x\n  it needs  x, labels"):
        trainer.step({"x": BATCH["x"]})
    assert trainer.steps == 0


def test_parameters_can_be_assigned():
    trainer = trainer_of()
    kept = copy.deepcopy(trainer.parameters)
    for given in (np.zeros(3, np.float32), torch.ones(3)):
        trainer.parameters["fc2.bias"] = given
        assert trainer.parameters["fc2.bias"].tolist() == given.tolist()
    with pytest.raises(ParameterError, match=r"'fc2.bias' is torch.float32 \[3\], cannot take"):
        trainer.parameters["fc2.bias"] = np.zeros(4, np.float32)
    with pytest.raises(ParameterError, match="there is no parameter 'fc3'"):
        trainer.parameters["fc3"] = np.zeros(3, np.float32)
    trainer.parameters.update(kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in trainer.parameters.items())


def test_what_is_no_loss():
    with pytest.raises(LossError, match="unknown loss 'crossentropy'"):
        trainer_of(loss="crossentropy")
    with pytest.raises(LossError, match="not int"):
        trainer_of(loss=1)
