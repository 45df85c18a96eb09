"""Models of 16 bits trained through float32 weights, and quantised models."""

from __future__ import annotations

import pathlib

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from onnxtrain import LoraConfig, Trainer
from onnxtrain.cli.export import export
from onnxtrain.transforms.masters import add_masters
from onnxtrain.types import DataType
from training.small import WEIGHTS, batch_of, mlp, model_of, normal


def mean_square(outputs: dict, batch: dict) -> torch.Tensor:
    return outputs["y"].float().square().mean()


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def half(**options) -> Trainer:
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0}
    return Trainer(mlp(np.float16), **{**given, **options})


def test_updates_below_the_spacing_of_half_add_up(tmp_path: pathlib.Path):
    """At weights near 0.5 the spacing is 2⁻¹¹; each step of AdamW moves by 1e-5."""
    trainer = half(lr=1e-5)
    batch = batch_of(dtype=np.float16)
    trainer.step(batch)
    trainer.save(tmp_path / "one.onnx")
    for _ in range(199):
        trainer.step(batch)
    trainer.save(tmp_path / "many.onnx")
    before = weights(mlp(np.float16))["fc1.weight"].astype(np.float32)
    moved = trainer.parameters["fc1.weight"].numpy() - before
    assert np.abs(moved).max() > 1e-3
    saved = weights(onnx.load(tmp_path / "many.onnx"))["fc1.weight"]
    assert saved.dtype == np.float16
    np.testing.assert_array_equal(saved, (before + moved).astype(np.float16))


def test_everything_live_is_float32_and_the_file_is_half(tmp_path: pathlib.Path):
    trainer = half(lr=0.01)
    batch = batch_of(dtype=np.float16)
    trainer.step(batch)
    assert {p.dtype for p in trainer.parameters.values()} == {torch.float32}
    assert {g.dtype for g in trainer.gradients(batch).values()} == {torch.float32}
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    assert saved.graph.node == mlp(np.float16).graph.node
    feeds = {"x": batch["x"]}
    found = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, feeds)[0]
    np.testing.assert_allclose(found, trainer.predict(feeds)["y"], rtol=4e-3, atol=4e-3)


def test_bfloat16_comes_back_as_bfloat16(tmp_path: pathlib.Path):
    array = normal(4, 3).astype(ml_dtypes.bfloat16)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> small (float[N,4] x) => (float[N,3] y) {'
        " h = Cast<to=16>(x) p = MatMul(h, w) y = Cast<to=1>(p) }"
    )
    proto.graph.initializer.append(ir.to_proto(ir.Tensor(array, name="w")))
    trainer = Trainer(proto, loss=mean_square, device="cpu", lr=0.01)
    assert trainer.parameters["w"].dtype == torch.float32
    batch = {"x": normal(6, 4)}
    losses = [float(trainer.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "m.onnx")
    (saved,) = onnx.load(tmp_path / "m.onnx").graph.initializer
    assert saved.data_type == onnx.TensorProto.BFLOAT16


def test_training_goes_on_from_a_checkpoint_exactly(tmp_path: pathlib.Path):
    batch = batch_of(dtype=np.float16)
    first = half(lr=1e-4)
    first.step(batch)
    first.checkpoint(tmp_path / "c")
    second = half(lr=1e-4)
    second.resume(tmp_path / "c")
    first.step(batch)
    second.step(batch)
    for name in WEIGHTS:
        assert torch.equal(first.parameters[name], second.parameters[name])


def test_adapters_of_half_are_merged_as_half(tmp_path: pathlib.Path):
    trainer = half(lr=0.02, lora=LoraConfig(rank=2, alpha=4))
    batch = batch_of(dtype=np.float16)
    for _ in range(5):
        trainer.step(batch)
    feeds = {"x": batch["x"]}
    want = trainer.predict(feeds)["y"]
    trainer.save(tmp_path / "m.onnx")
    trainer.save_adapter(tmp_path / "a.onnx_adapter")
    found = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, feeds)[0]
    np.testing.assert_allclose(found, want, rtol=1e-2, atol=1e-2)
    adapter = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "a.onnx_adapter"))
    kinds = {value.data_type() for value in adapter.get_parameters().values()}
    assert kinds == {"tensor(float16)"}


def test_what_the_model_returns_and_other_types_stay():
    proto = model_of(
        "(float16[N,4] x) => (float16[N,4] y) { h = MatMul(x, w) y = Add(h, b) }",
        {"w": normal(4, 4, dtype=np.float16), "b": normal(4, dtype=np.float16)},
    )
    model = ir.from_proto(proto)
    model.graph.outputs.append(model.graph.initializers["w"])
    assert add_masters(model, {"w", "b"}) == {"b": DataType.FLOAT16}
    assert model.graph.initializers["w"].const_value.dtype == DataType.FLOAT16
    assert model.graph.initializers["b"].const_value.dtype == DataType.FLOAT


QDQ = """(float[N,4] x) => (float[N,3] y) {
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wq = QuantizeLinear(w, t, z) wd = DequantizeLinear(wq, t, z)
    h = MatMul(xd, wd) y = Add(h, b)
}"""
SCALES = {"s": np.float32(0.02), "t": np.float32(0.02), "z": np.int8(0)}


def fake_quantised(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, 0, -128, 127)


def test_float_weights_before_a_quantiser_train_straight_through(tmp_path: pathlib.Path):
    model = model_of(QDQ, {"w": normal(4, 3), "b": normal(3, seed=1), **SCALES})
    trainer = Trainer(model, loss=mean_square, device="cpu", lr=0.01)
    assert set(trainer.parameters) == {"w", "b"}
    batch = {"x": normal(6, 4, seed=2)}
    w, b = (torch.tensor(weights(model)[name]).requires_grad_() for name in "wb")
    y = fake_quantised(torch.tensor(batch["x"]), 0.02) @ fake_quantised(w, 0.02) + b
    y.square().mean().backward()
    found = trainer.gradients(batch)
    np.testing.assert_allclose(found["w"], w.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["b"], b.grad, rtol=1e-4, atol=1e-6)
    losses = [float(trainer.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    assert saved.graph.node == model.graph.node
    changed = {n for n, a in weights(saved).items() if not np.array_equal(a, weights(model)[n])}
    assert changed == {"w", "b"}


def test_weights_of_whole_numbers_stay_if_others_are_asked_for(tmp_path: pathlib.Path):
    body = QDQ.replace("wq = QuantizeLinear(w, t, z)", "").replace("(wq,", "(w,")
    codes = np.random.default_rng(0).integers(-50, 50, (4, 3), dtype=np.int8)
    model = model_of(body, {"w": codes, "b": normal(3, seed=1), **SCALES})
    batch = {"x": normal(6, 4, seed=2)}
    by_name = Trainer(model, loss=mean_square, device="cpu", trainable=["b", "t"], lr=0.001)
    by_name.step(batch)
    by_name.save(tmp_path / "m.onnx")
    saved = weights(onnx.load(tmp_path / "m.onnx"))
    assert {n for n in saved if not np.array_equal(saved[n], weights(model)[n])} == {"b", "t"}


def test_a_checkpoint_is_exported_as_half(tmp_path: pathlib.Path):
    onnx.save(mlp(np.float16), tmp_path / "model.onnx")
    trainer = half(lr=0.01)
    trainer.step(batch_of(dtype=np.float16))
    trainer.checkpoint(tmp_path / "c")
    trainer.save(tmp_path / "saved.onnx")
    export(tmp_path / "c", tmp_path / "model.onnx", tmp_path / "exported.onnx")
    saved, exported = (onnx.load(tmp_path / f"{name}.onnx") for name in ("saved", "exported"))
    assert saved == exported


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_optimizer_takes_half(optimizer: str):
    trainer = half(optimizer=optimizer, lr=0.05)
    batch = batch_of(dtype=np.float16)
    losses = [float(trainer.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
