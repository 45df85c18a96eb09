"""Bad input gets an error that names the thing, and leaves nothing half-written."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from onnxtrain import InferenceSession, OrtValue, errors, onnxblock
from refusals import LOADED, LOADERS, chain, generate, module_of, refused, train
from training.small import batch_of, load_module, mlp, model_of, normal, write_artifacts

BATCH = batch_of()


UNKNOWN = {
    "of onnx": (chain(helper.make_node("Frob", ["m"], ["y"], name="frob")), "ai.onnx::Frob"),
    "of others": (
        chain(helper.make_node("Frob", ["m"], ["y"], name="frob", domain="acme"), domains=["acme"]),
        "acme::Frob",
    ),
}


@pytest.mark.parametrize(("model", "name"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_operator(model, name, tmp_path):
    with refused(errors.NoKernelError, f"no CPU kernel for {name}", "node 'frob'", "@kernel"):
        InferenceSession(model)
    with refused(errors.NoKernelError, f"no CPU kernel for {name}", "node 'frob'"):
        module_of(model)
    for loss in ("cross_entropy", onnxblock.loss.MSELoss(), lambda outputs, batch: None):
        with refused(errors.NoGradientError, f"no gradient rule for {name}", "'frob'"):
            train(model, loss=loss)
    with refused(errors.NoGradientError, f"no gradient rule for {name}", "'frob'"):
        generate(model, tmp_path)
    assert not os.listdir(tmp_path)


def test_what_a_converter_left_over_is_named_as_that():
    told = "ONNX has no operator Frob: if a converter left it in the file, convert the model"
    model, _ = UNKNOWN["of onnx"]
    with refused(errors.NoGradientError, told, "@gradient('Frob')"):
        train(model)
    with refused(errors.NoKernelError, told, "@kernel"):
        InferenceSession(model)


def test_all_unknown_operators_are_named_at_once():
    model = chain(
        helper.make_node("Frob", ["m"], ["a"], name="frob"),
        helper.make_node("Wibble", ["a"], ["y"], name="wibble"),
    )
    with refused(errors.NoKernelError, "ai.onnx::Frob", "ai.onnx::Wibble"):
        InferenceSession(model)
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 3]))
    with refused(errors.NoGradientError, "ai.onnx::Frob", "ai.onnx::Wibble"):
        train(model)


def test_a_domain_that_is_not_imported(tmp_path):
    model = chain(helper.make_node("Frob", ["m"], ["y"], name="frob", domain="acme"))
    for load in (*LOADERS.values(), lambda given: generate(given, tmp_path)):
        with refused(errors.GraphError, "node 'frob'", "domain 'acme'", "does not import"):
            load(model)
    assert not os.listdir(tmp_path)


@LOADED
def test_a_value_that_nothing_defines(load):
    with refused(errors.GraphError, "node 'neg'", "reads 'lost'"):
        load(chain(helper.make_node("Neg", ["lost"], ["y"], name="neg")))
    with refused(errors.GraphError, "output 'y'", "never defined"):
        load(chain(helper.make_node("Neg", ["m"], ["z"], name="neg")))


@LOADED
def test_a_type_that_no_kernel_takes(load):
    model = chain(
        helper.make_node("Cast", ["m"], ["c"], name="cast", to=TensorProto.COMPLEX64),
        helper.make_node("Add", ["c", "c"], ["d"], name="sum"),
        helper.make_node("Neg", ["m"], ["y"], name="neg"),
    )
    model.graph.output.append(helper.make_tensor_value_info("d", TensorProto.COMPLEX64, ["N", 3]))
    with refused(errors.NoKernelError, "T=complex64", "node 'sum'", "have  Add 7+ on CPU"):
        load(model) if load is not train else train(model, loss=lambda outputs, batch: None)


def test_feeds_of_a_session():
    session = InferenceSession(mlp())
    x = BATCH["x"]
    with refused(errors.FeedError, "no value for input 'x'", "tensor(float)[N, 4]"):
        session.run(None, {})
    with refused(errors.FeedError, "no input 'y'", "inputs  'x'"):
        session.run(None, {"x": x, "y": x})
    with refused(errors.FeedError, "'x' must have shape [N, 4], got [6, 3]"):
        session.run(None, {"x": x[:, :3]})
    with refused(errors.FeedError, "'x' must be tensor(float), got tensor(double)"):
        session.run(None, {"x": x.astype(np.float64)})
    with refused(errors.FeedError, "cannot take a str for input 'x'"):
        session.run(None, {"x": "words"})
    with refused(errors.FeedError, "'x' must be tensor(float), got tensor(string)"):
        session.run(None, {"x": x.astype(str)})
    with refused(errors.FeedError, "'x' must be tensor(float), got a dict"):
        session.run(None, {"x": {}})
    with refused(errors.FeedError, "cannot take a list for the feeds", "a mapping of names"):
        session.run(None, [x])
    with refused(errors.FeedError, "no output 'z'", "outputs  y"):
        session.run(["z"], {"x": x})


def test_feeds_of_strings():
    node = helper.make_node("Identity", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "words", values[:1], values[1:]))
    session = InferenceSession(model)
    with refused(errors.FeedError, "'x' must be tensor(string), got tensor(int64)"):
        session.run(None, {"x": np.array([1, 2])})
    with refused(errors.FeedError, "'x' must have shape [2], got [1]"):
        session.run(None, {"x": np.array(["a"])})


@pytest.mark.parametrize("loss", ["cross_entropy", lambda outputs, batch: outputs["y"].sum()])
def test_feeds_of_a_trainer(loss):
    trainer = train(mlp(), loss=loss)
    before = {name: tensor.clone() for name, tensor in trainer.parameters.items()}
    for act in (trainer.step, trainer.gradients, trainer.loss, trainer.predict):
        with refused(errors.FeedError, "the batch has no 'x'", "it has    labels"):
            act({"labels": BATCH["labels"]} if act is not trainer.predict else {"labels": 1})
        with refused(errors.FeedError, "'x' must have shape [N, 4], got [6, 3]"):
            act({**BATCH, "x": BATCH["x"][:, :3]})
        # a list of batches is a step with accumulated gradients
        kind = "ndarray" if act == trainer.step else "list"
        with refused(errors.FeedError, "a batch is a mapping", f"not a {kind}"):
            act([BATCH["x"]])
    assert trainer.steps == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.parameters.items())


def test_feeds_of_a_module(tmp_path):
    module = load_module(write_artifacts(tmp_path))
    with refused(errors.FeedError, "expected 2 inputs (x, labels), got 1"):
        module(BATCH["x"])
    with refused(errors.FeedError, "'x' must have shape [N, 4], got [6, 3]"):
        module(BATCH["x"][:, :3], BATCH["labels"])


def test_labels_that_do_not_exist():
    trainer = train(mlp())
    with refused(
        errors.NodeError, "SoftmaxCrossEntropyLoss", "label value 7 at index 1", "float32"
    ):
        trainer.step({"x": BATCH["x"][:2], "labels": np.array([0, 7])})
    assert trainer.steps == 0


def test_a_parameter_that_does_not_exist(tmp_path):
    with refused(errors.ParameterError, "no parameter matches 'fc9.*'", "have  fc1.weight"):
        train(mlp(), trainable=["fc1.bias", "fc9.*"])
    with refused(errors.ParameterError, "no parameter 'fc9'", "fc1.weight"):
        generate(mlp(), tmp_path, requires_grad=["fc9"])
    assert not os.listdir(tmp_path)
    state = load_module(write_artifacts(tmp_path)).state
    with refused(errors.ParameterError, "no parameter 'fc9'", "have  fc1.weight"):
        state.parameters["fc9"]


def test_a_loss_that_is_not_a_scalar(tmp_path):
    with refused(errors.LossError, "loss 'y' must be a scalar", "['N', '3']", "ReduceMean"):
        train(mlp(), loss=None)
    with refused(errors.LossError, "must be a scalar, its shape is ['N', '3']"):
        train(mlp(), loss=onnxblock.loss.MSELoss(reduction="none"))
    with refused(errors.LossError, "must give a scalar tensor, it gave [6, 3]", ".mean()"):
        train(mlp(), loss=lambda outputs, batch: outputs["y"]).step(BATCH)
    with refused(errors.LossError, "loss 'y' must be a scalar"):
        generate(mlp(), tmp_path, loss=None)
    assert not os.listdir(tmp_path)


def test_a_loss_that_no_gradient_can_come_from():
    whole = model_of("(float[N,4] x) => (int64 k) { m = Mul(x, w) k = Size(m) }", {"w": normal(4)})
    with refused(errors.ParameterError, "no weight that could be trained", "'w'"):
        train(whole, loss=None)


def test_a_device_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = write_artifacts(tmp_path)
    for name, words in {
        "cuda": ("device 'cuda' is not available", "no CUDA device"),
        "cuda:3": ("device 'cuda:3' is not available",),
        "tpu": ("unknown device 'tpu'", "have  cpu, cuda"),
        "cuda:x": ("unknown device 'cuda:x'",),
    }.items():
        with refused(errors.DeviceError, *words):
            train(mlp(), device=name)
        with refused(errors.DeviceError, *words):
            load_module(folder, device=name)
        with refused(errors.DeviceError, *words):
            OrtValue.ortvalue_from_numpy(BATCH["x"], name)
    with refused(errors.DeviceError, "no provider is available", "no CUDA device"):
        InferenceSession(mlp(), providers=["CUDAExecutionProvider"])
    with refused(errors.DeviceError, "unknown provider 'TpuExecutionProvider'", "CPUExecution"):
        InferenceSession(mlp(), providers=["TpuExecutionProvider"])


def test_a_device_of_a_number_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refused(errors.DeviceError, "device 'cuda:2' is not there", "have 2"):
        train(mlp(), device="cuda:2")
    with refused(errors.DeviceError, "have 2"):
        InferenceSession(
            mlp(), providers=["CUDAExecutionProvider"], provider_options=[{"device_id": 5}]
        )
