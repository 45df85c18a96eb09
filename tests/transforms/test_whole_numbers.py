"""Weights that a file stores as whole numbers."""

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import decide
from onnxtrain.transforms.weights.whole_numbers import Stored, stored_weights, unpack
from onnxtrain.types import DataType

HEAD = '<ir_version: 10, opset_import: ["": 21]> quantised (float[N,6] x) => (float[N,4] y) '
DENSE = (
    HEAD
    + """{
    xq = QuantizeLinear(x, xs, xz)
    xd = DequantizeLinear(xq, xs, xz)
    wd = DequantizeLinear<axis=1>(w, ws, wz)
    bd = DequantizeLinear<axis=0>(b, bs)
    p = MatMul(xd, wd)
    y = Add(p, bd)
}"""
)
TYPES = ["int8", "uint8", "int16", "uint16", "int4", "uint4"]


def quantised(kind: str = "int8") -> onnx.ModelProto:
    """A dense layer as a static quantiser writes it, with a scale for each output."""
    proto = onnx.parser.parse_model(DENSE)
    rng = np.random.default_rng(0)
    signed = not kind.startswith("u")
    middle, reach = (0 if signed else 7), (5 if kind.endswith("4") else 90)
    low = -reach if signed else 0
    scale = np.array([0.03, 0.05, 0.02, 0.04], np.float32)
    of = getattr(onnx.TensorProto, kind.upper())
    whole = rng.integers(low, reach, (6, 4))
    proto.graph.initializer.extend(
        [
            onnx.helper.make_tensor("xs", onnx.TensorProto.FLOAT, [], [0.02]),
            onnx.helper.make_tensor("xz", onnx.TensorProto.UINT8, [], [128]),
            onnx.helper.make_tensor("w", of, [6, 4], whole.ravel().tolist()),
            onnx.helper.make_tensor("ws", onnx.TensorProto.FLOAT, [4], scale.tolist()),
            onnx.helper.make_tensor("wz", of, [4], [middle] * 4),
            onnx.helper.make_tensor("b", onnx.TensorProto.INT32, [4], [100, -200, 30, 0]),
            onnx.helper.make_tensor(
                "bs", onnx.TensorProto.FLOAT, [4], (0.02 * scale).astype(np.float32).tolist()
            ),
        ]
    )
    return proto


def held(proto: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


@pytest.mark.parametrize("kind", TYPES)
def test_a_model_without_a_float_weight_is_trained(kind: str, tmp_path: pathlib.Path) -> None:
    proto = quantised(kind)
    trainer = Trainer(proto, loss="mse", lr=3e-2, device="cpu", seed=0)
    assert set(trainer.parameters) == {"w", "b"}
    x = torch.rand(16, 6) * 2 - 1
    batch = {"x": x, "target": x[:, :4] * 0.5 + 1}
    first = float(trainer.loss(batch))
    for _ in range(60):
        trainer.step(batch)
    assert float(trainer.loss(batch)) < 0.3 * first

    path = tmp_path / "trained.onnx"
    trainer.save(path)
    saved = onnx.load(path)
    onnx.checker.check_model(saved, full_check=True)
    assert [node.op_type for node in saved.graph.node] == [n.op_type for n in proto.graph.node]
    for name in ("w", "b"):
        assert held(saved, name).data_type == held(proto, name).data_type
        assert held(saved, name).SerializeToString() != held(proto, name).SerializeToString()
    for name in ("ws", "wz", "bs", "xs", "xz"):
        assert held(saved, name) == held(proto, name)
    (theirs,) = onnxruntime.InferenceSession(saved.SerializeToString()).run(None, {"x": x.numpy()})
    ours = trainer.predict({"x": x})["y"].numpy()
    # of a bias, half a step is rounded off when it is written
    assert np.abs(theirs - ours).max() <= 0.51 * 0.02 * 0.05


def test_the_model_computes_what_it_did_before() -> None:
    proto = quantised()
    x = np.random.rand(5, 6).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    found = Trainer(proto, loss="mse", device="cpu").predict({"x": x})["y"].numpy()
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_the_numbers_that_are_stood_for() -> None:
    proto = quantised()
    trainer = Trainer(proto, loss="mse", device="cpu")
    x = torch.rand(3, 6)
    found = trainer.gradients({"x": x, "target": torch.zeros(3, 4)})
    forms = stored_weights(load_model(proto).graph)
    w, b = (
        torch.tensor(form.floats(onnx.numpy_helper.to_array(held(proto, name)))).requires_grad_()
        for name, form in ((name, forms[name]) for name in ("w", "b"))
    )
    rounded = (x / 0.02).round().clamp(-128, 127) * 0.02
    (rounded @ w + b).square().mean().backward()
    assert torch.allclose(found["w"], w.grad, rtol=1e-5)
    assert torch.allclose(found["b"], b.grad, rtol=1e-5)


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_not_trained_is_written_as_it_was(kind: str) -> None:
    proto = quantised(kind)
    form = stored_weights(load_model(proto).graph)["w"]
    whole = onnx.numpy_helper.to_array(held(proto, "w"))
    again = form.whole(form.floats(whole))
    assert again.dtype == whole.dtype and np.array_equal(again.astype(int), whole.astype(int))


def test_only_what_is_asked_for_becomes_floats() -> None:
    trainer = Trainer(quantised(), loss="mse", trainable=["b"], device="cpu")
    assert list(trainer.parameters) == ["b"]
    model = load_model(quantised())
    assert unpack(model, ["ws", "xs"]) == {}
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 1


def test_blocks_of_numbers_have_scales_of_their_own() -> None:
    text = HEAD + "{ d = DequantizeLinear<axis=0, block_size=4>(w, s)  y = MatMul(x, d) }"
    proto = onnx.parser.parse_model(text)
    whole = np.arange(24).reshape(6, 4) - 12
    scale = np.arange(1, 9).reshape(2, 4) / 8
    proto.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(whole.astype(np.int8), "w"),
            onnx.numpy_helper.from_array(scale.astype(np.float32), "s"),
        ]
    )
    form = stored_weights(load_model(proto).graph)["w"]
    wanted = whole * np.repeat(scale, 4, 0)[:6]
    assert np.array_equal(form.floats(whole), wanted)
    x = np.eye(6, dtype=np.float32)
    assert np.allclose(Trainer(proto, loss="mse", device="cpu").predict({"x": x})["y"], wanted)


def test_decisions_say_how_a_weight_is_stored() -> None:
    decisions = {d.name: d for d in decide(load_model(quantised()))}
    assert decisions["w"].reason == "weight stored as int8"
    assert decisions["b"].reason == "weight stored as int32"
    assert not decisions["ws"].trained and not decisions["xs"].trained


def test_constants_that_were_quantised_too_are_not_trained() -> None:
    text = (
        HEAD
        + """{
        wd = DequantizeLinear(w, s)  cd = DequantizeLinear(c, s)  fd = DequantizeLinear(f, s)
        xs = Mul(x, cd)  p = MatMul(xs, wd)
        axes = Constant<value_ints=[1]>()  n = Shape<start=0, end=1>(x)
        last = Squeeze(n)  first = Constant<value_int=0>()  by = Constant<value_int=1>()
        counted = Range(first, last, by)  at = Cast<to=1>(counted)  a = Unsqueeze(at, axes)
        t = Mul(a, fd)  turns = Cos(t)  y = Mul(p, turns)
    }"""
    )
    proto = onnx.parser.parse_model(text)
    arrays = {"w": np.arange(24).reshape(6, 4), "c": np.array(7), "f": np.array([9, 3, 2, 1])}
    proto.graph.initializer.extend(
        [onnx.numpy_helper.from_array(array.astype(np.int8), key) for key, array in arrays.items()]
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "s"))
    decisions = {d.name: d for d in decide(prepare(load_model(proto)))}
    assert decisions["w"].trained
    assert decisions["c"].reason == "single number in ai.onnx::Mul"
    assert decisions["f"].reason == "frequencies of a position encoding"
    assert decisions["c"].possible and not decisions["c"].trained and not decisions["f"].trained


def test_numbers_of_32_bits_keep_all_of_their_digits() -> None:
    whole = np.array([2**24 + 1, -(2**30) - 1], np.int32)
    stored = Stored((), DataType.INT32, np.float64(1e-6), np.zeros(()), 0, 0)
    np.testing.assert_array_equal(stored.whole(stored.floats(whole)), whole)


def test_numbers_that_are_read_otherwise_stay_as_they_are() -> None:
    text = HEAD + "{ d = DequantizeLinear(w, s)  c = Cast<to=1>(w)  e = Add(d, c)  y = Mul(x, e) }"
    proto = onnx.parser.parse_model(text.replace("[N,4] y", "[N,6] y"))
    proto.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.ones(6, np.int8), "w"),
            onnx.numpy_helper.from_array(np.float32(0.5), "s"),
        ]
    )
    assert stored_weights(load_model(proto).graph) == {}


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2"])
def test_floats_of_eight_bits_are_trained(kind, tmp_path):
    model = quantised(kind)
    trainer = Trainer(model, loss=lambda y, _: y["y"].square().mean(), device="cpu", lr=0.2)
    batch = {"x": np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)}
    losses = [float(trainer.step(batch)) for _ in range(4)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    assert held(saved, "w").raw_data != held(model, "w").raw_data
    assert held(saved, "w").data_type == held(model, "w").data_type
    options = onnxruntime.SessionOptions()  # optimised, it takes these layers for whole numbers
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(saved.SerializeToString(), options)
    want = trainer.predict(batch)["y"].numpy()
    half_a_step_of_the_bias = 0.5 * onnx.numpy_helper.to_array(held(model, "bs")).max()
    assert np.abs(session.run(None, batch)[0] - want).max() <= half_a_step_of_the_bias
