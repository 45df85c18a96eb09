"""LoRA: insertion, training, merging, and the files that onnxruntime loads."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from onnxtrain import LoraConfig, Trainer
from onnxtrain.errors import OptionError, ParameterError
from onnxtrain.graph.loading.load import load_source
from onnxtrain.training.adapters import config_of
from onnxtrain.transforms.lora import initial_values
from onnxtrain.transforms.lora_layers import find_layers
from training.small import batch_of, mlp, model_of, normal

QUIET = onnxruntime.SessionOptions()
QUIET.log_severity_level = 3
# An optimised product with dequantised weights rounds the data to whole numbers too.
QUIET.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def dense(node: str, weights: dict, **options) -> onnx.ModelProto:
    return model_of(f"(float[N,8] x) => (float[N,8] y) {{ {node} }}", weights, **options)


def conv(attributes: str, weight: np.ndarray) -> onnx.ModelProto:
    return model_of(
        f"(float[N,4,7,7] x) => (float[N,M,H,W] y) {{ y = Conv<{attributes}>(x, w) }}",
        {"w": weight},
    )


def packed(operator: str, *, opset: int = 17) -> onnx.ModelProto:
    """A product with 16 columns packed into four bits each."""
    rng = np.random.default_rng(7)
    if operator == "MatMulNBits":
        codes = rng.integers(0, 256, (8, 1, 8), dtype=np.uint8)
        body = "K=16, N=8, bits=4, block_size=16"
    else:
        codes = rng.integers(0, 256, 64, dtype=np.uint8)
        body = "K=16, N=8, block_size=16, quant_type=1"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> packed '
        f"(float[N,16] x) => (float[N,8] y) {{ y = com.microsoft.{operator}<{body}>(x, w, s) }}"
    )
    scales = np.abs(normal(8, seed=9)) * 0.1
    for name, array in {"w": codes, "s": scales}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def quantised() -> onnx.ModelProto:
    codes = np.random.default_rng(7).integers(-128, 128, (8, 8), dtype=np.int8)
    return dense("d = DequantizeLinear(w, s) y = MatMul(x, d)", {"w": codes, "s": np.float32(0.01)})


WHOLE = np.random.default_rng(7).integers(-9, 9, (8, 8), dtype=np.int8)
SQUARE = normal(8, 8, seed=1)
MERGED = {
    "matmul": dense("y = MatMul(x, w)", {"w": SQUARE}),
    "matmul of three dimensions": model_of(
        "(float[N,3,8] x) => (float[N,3,5] y) { y = MatMul(x, w) }", {"w": normal(8, 5, seed=1)}
    ),
    "weight on the left": model_of(
        "(float[N,8,3] x) => (float[N,5,3] y) { y = MatMul(w, x) }", {"w": normal(5, 8, seed=1)}
    ),
    "gemm": dense("y = Gemm<alpha=0.5, beta=2.0>(x, w, b)", {"w": SQUARE, "b": normal(8, seed=2)}),
    "gemm transposed": dense("y = Gemm<transB=1, alpha=0.5>(x, w)", {"w": SQUARE}),
    "gemm of transposed data": model_of(
        "(float[8,N] x) => (float[N,5] y) { y = Gemm<transA=1>(x, w) }", {"w": normal(8, 5)}
    ),
    "weight behind a transpose": dense(
        "t = Transpose<perm=[1,0]>(w) i = Identity(t) y = MatMul(x, i)", {"w": SQUARE}
    ),
    "constant node": dense(
        "w = Constant<value=float[8,1] {1,2,3,4,5,6,7,8}>() h = MatMul(x, w) y = Mul(x, h)", {}
    ),
    "weight used twice": dense("h = MatMul(x, w) a = Tanh(h) y = MatMul(a, w)", {"w": SQUARE}),
    "convolution": conv("pads=[1,1,1,1], strides=[2,1]", normal(6, 4, 3, 3)),
    "dilated convolution": conv("pads=[2,2,2,2], dilations=[2,2]", normal(6, 4, 3, 3)),
    "convolution of equal size": conv('auto_pad="SAME_UPPER"', normal(6, 4, 2, 2)),
    "grouped convolution": conv("group=2", normal(6, 2, 3, 3)),
    "convolution in depth": conv("group=4", normal(4, 1, 3, 3)),
}
KEPT = {
    "MatMulNBits": packed("MatMulNBits"),
    "MatMulBnb4": packed("MatMulBnb4"),
    "whole numbers": quantised(),
    "whole numbers behind a cast": dense("f = Cast<to=1>(w) y = MatMul(x, f)", {"w": WHOLE}),
    "a weight cut to whole numbers": dense(
        "i = Cast<to=7>(w) f = Cast<to=1>(i) y = Gemm(x, f)", {"w": 9 * SQUARE}
    ),
    "weight used in another way": model_of(
        "(int64[N] i) => (float[N,9] y) { x = Gather(w, i) t = Transpose(w) y = MatMul(x, t) }",
        {"w": normal(9, 4)},
    ),
}


def mean_square(outputs: dict, batch: dict) -> torch.Tensor:
    return outputs["y"].square().mean()


def data_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    (given,) = model.graph.input
    if given.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return {given.name: np.arange(6)}
    return {given.name: normal(*(d.dim_value or 6 for d in given.type.tensor_type.shape.dim))}


def trained(model: onnx.ModelProto, **options) -> Trainer:
    config = {"rank": 3, "alpha": 6.0, **options}
    trainer = Trainer(
        model, loss=mean_square, device="cpu", seed=0, lr=0.05, lora=LoraConfig(**config)
    )
    batch = data_for(model)
    losses = [float(trainer.step(batch)) for _ in range(4)]
    assert losses[-1] < losses[0]
    return trainer


def run(path: pathlib.Path, feeds: dict, adapter: pathlib.Path | None = None) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, QUIET)
    options = onnxruntime.RunOptions()
    if adapter is not None:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    return session.run(None, feeds, options)[0]


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("name", [*MERGED, *KEPT])
def test_every_file_computes_what_was_trained(name: str, tmp_path: pathlib.Path):
    model = {**MERGED, **KEPT}[name]
    trainer = trained(model)
    feeds = data_for(model)
    want = trainer.predict(feeds)["y"].numpy()
    trainer.save(tmp_path / "m.onnx")
    trainer.save_adapter(tmp_path / "a.onnx_adapter", tmp_path / "base.onnx")
    before = onnxruntime.InferenceSession(model.SerializeToString(), QUIET).run(None, feeds)[0]
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(run(tmp_path / "m.onnx", feeds), want, **close)
    np.testing.assert_allclose(run(tmp_path / "base.onnx", feeds), before, **close)
    adapted = run(tmp_path / "base.onnx", feeds, tmp_path / "a.onnx_adapter")
    np.testing.assert_allclose(adapted, want, **close)
    assert np.abs(want - before).max() > 1e-2
    saved = onnx.load(tmp_path / "m.onnx")
    assert (ops(saved) == ops(model)) == (name in MERGED)
    assert [v.name for v in saved.graph.input] == [v.name for v in model.graph.input]


def test_opsets_without_broadcasting_are_merged_too(tmp_path: pathlib.Path):
    model = dense("y = MatMul(x, w)", {"w": SQUARE}, opset=6)
    trainer = trained(model)
    feeds = data_for(model)
    trainer.save(tmp_path / "m.onnx")
    want = trainer.predict(feeds)["y"]
    np.testing.assert_allclose(run(tmp_path / "m.onnx", feeds), want, rtol=1e-4, atol=1e-5)


def test_merging_changes_the_weight_alone(tmp_path: pathlib.Path):
    model = mlp()
    model.metadata_props.add(key="author", value="somebody")
    trainer = Trainer(
        model, loss="cross_entropy", device="cpu", seed=0, lora=LoraConfig(2, targets="fc1.*")
    )
    trainer.step(batch_of())
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    differing = [
        new.name
        for old, new in zip(model.graph.initializer, saved.graph.initializer, strict=True)
        if old != new
    ]
    assert differing == ["fc1.weight"]
    for field in ("node", "input", "output"):
        assert getattr(saved.graph, field) == getattr(model.graph, field)
    assert saved.metadata_props == model.metadata_props


def test_gradients_are_those_of_autograd():
    trainer = Trainer(
        mlp(), loss="cross_entropy", device="cpu", seed=0, lr=0.05, lora=LoraConfig(2, alpha=6)
    )
    batch = batch_of()
    trainer.step(batch)
    w = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in mlp().graph.initializer}
    p = {name: value.clone().requires_grad_() for name, value in trainer.parameters.items()}

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = f"{name}.weight"
        added = 3 * x @ p[f"{weight}.lora_A"] @ p[f"{weight}.lora_B"]
        return F.linear(x, w[weight], w[f"{name}.bias"]) + added

    scores = layer(torch.relu(layer(torch.tensor(batch["x"]), "fc1")), "fc2")
    F.cross_entropy(scores, torch.tensor(batch["labels"])).backward()
    found = trainer.gradients(batch)
    assert found.keys() == p.keys()
    for name, grad in found.items():
        np.testing.assert_allclose(grad, p[name].grad, rtol=1e-4, atol=1e-6)


def test_named_parameters_are_trained_besides_the_adapters(tmp_path: pathlib.Path):
    config = LoraConfig(rank=2, targets=["fc1.weight"])
    trainer = Trainer(
        mlp(), loss="cross_entropy", device="cpu", seed=0, lora=config, trainable=["fc2.*"]
    )
    adapters = {"fc1.weight.lora_A", "fc1.weight.lora_B"}
    assert set(trainer.parameters) == adapters | {"fc2.weight", "fc2.bias"}
    batch = batch_of()
    for _ in range(3):
        trainer.step(batch)
    feeds = {"x": batch["x"]}
    want = trainer.predict(feeds)["y"].numpy()
    trainer.save(tmp_path / "m.onnx")
    trainer.save_adapter(tmp_path / "a.onnx_adapter", tmp_path / "base.onnx")
    np.testing.assert_allclose(run(tmp_path / "m.onnx", feeds), want, rtol=1e-5, atol=1e-6)
    adapted = run(tmp_path / "base.onnx", feeds, tmp_path / "a.onnx_adapter")
    np.testing.assert_allclose(adapted, want, rtol=1e-5, atol=1e-6)


def test_running_statistics_stay_as_they_are():
    ones = np.ones(8, np.float32)
    model = dense(
        "h = MatMul(x, w) y = BatchNormalization(h, s, b, m, v)",
        {"w": SQUARE, "s": ones, "b": ones, "m": 0 * ones, "v": ones},
    )
    trainer = trained(model)
    assert trainer.mutable == ["w.lora_A", "w.lora_B"]


def test_a_model_with_adapters_takes_no_others(tmp_path: pathlib.Path):
    trained(quantised()).save(tmp_path / "m.onnx")
    with pytest.raises(ParameterError, match=r"model has 'w\.lora_A' already\n  train those"):
        trained(onnx.load(tmp_path / "m.onnx"))
    again = Trainer(
        tmp_path / "m.onnx", loss=mean_square, trainable=["*.lora_A", "*.lora_B"], device="cpu"
    )
    assert list(again.parameters) == ["w.lora_A", "w.lora_B"]


def test_adapters_without_elements_are_refused_with_the_reason():
    model = model_of("(float[N,8] x) => (float[N,0] y) { y = MatMul(x, w) }", {"w": normal(8, 0)})
    with pytest.raises(ParameterError, match=r"'w\.lora_B': has no elements$"):
        trained(model)


@pytest.mark.parametrize("opset", [10, 17])
def test_dropout_works_in_training_only(opset: int):
    model = dense("y = MatMul(x, w)", {"w": SQUARE}, opset=opset)
    trainer = trained(model, dropout=0.5)
    batch = data_for(model)
    assert len({float(trainer.step(batch)) for _ in range(3)}) == 3
    trainer.lr = 0.0
    assert float(trainer.step(batch)) != float(trainer.step(batch))
    assert float(trainer.loss(batch)) == float(trainer.loss(batch))


def test_adapters_that_the_loss_does_not_need_are_loaded_too(tmp_path: pathlib.Path):
    """They keep the values of the file, for the outputs that they belong to."""
    heads = model_of(
        "(float[N,8] x) => (float[N,3] y, float[N,2] z) { y = MatMul(x, v) z = MatMul(x, w) }",
        {"v": normal(8, 3, seed=1), "w": normal(8, 2, seed=2)},
    )
    config, x = LoraConfig(rank=2, alpha=3.0), normal(4, 8, seed=3)
    options = {"device": "cpu", "lora": config, "lr": 0.1}
    both = Trainer(
        heads, loss=lambda out, _: sum(v.square().mean() for v in out.values()), **options
    )
    both.step({"x": x})
    both.step({"x": x})
    both.save_adapter(tmp_path / "both.onnx_adapter")
    one = Trainer(heads, loss="mse", outputs=["y"], **options)
    one.predict({"x": x})
    one.load_adapter(tmp_path / "both.onnx_adapter")
    one.save(tmp_path / "one.onnx")
    merged = onnxruntime.InferenceSession(tmp_path / "one.onnx", QUIET).run(None, {"x": x})
    expected, found = both.predict({"x": x}), one.predict({"x": x})
    for name, result in zip(("y", "z"), merged, strict=True):
        assert torch.allclose(found[name], expected[name], atol=1e-6)
        assert torch.allclose(torch.from_numpy(result), expected[name], atol=1e-6)


def test_nothing_but_adapters_is_in_a_checkpoint(tmp_path: pathlib.Path):
    def fresh() -> Trainer:
        config = LoraConfig(rank=2)
        return Trainer(mlp(), loss="cross_entropy", device="cpu", seed=0, lora=config)

    first, batch = fresh(), batch_of()
    first.step(batch)
    first.checkpoint(tmp_path / "c")
    second = fresh()
    second.resume(tmp_path / "c")
    assert float(first.step(batch)) == float(second.step(batch))


@pytest.mark.parametrize(
    ("model", "across"),
    [
        (dense("y = MatMul(x, w)", {"w": normal(8, 8)}), 8),
        (model_of("(float[5,N] x) => (float[8,N] y) { y = MatMul(w, x) }", {"w": normal(8, 5)}), 5),
        (conv("pads=[1,1,1,1]", normal(6, 4, 3, 3)), 36),
    ],
    ids=["right", "left", "conv"],
)
def test_first_values_are_as_large_as_inputs_are_few(model: onnx.ModelProto, across: int):
    layers = find_layers(ir.from_proto(model), "*")
    values = initial_values(layers, rank=64, seed=0)
    largest = np.abs(values[layers[0].a]).max()
    assert 0.95 < largest * np.sqrt(across) <= 1
    assert not values[layers[0].b].any()


@pytest.mark.parametrize(
    ("node", "mergeable"),
    [
        ("y = Gemm(x, w)", True),
        ("y = Gemm(x, w, w)", False),
        ("t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)", True),
        ("y = MatMul(x, w) z = Relu(w)", False),
    ],
)
def test_a_weight_that_is_used_in_another_way_too_is_not_merged(node: str, mergeable: bool):
    (layer,) = find_layers(ir.from_proto(dense(node, {"w": normal(8, 8)})), "*")
    assert layer.mergeable == mergeable


def test_a_weight_is_seen_as_its_layer_sees_it():
    body = "a = Transpose<perm=[{}]>(w) y = MatMul(x, a)"
    for perm, transposed in (("0,1", False), ("1,0", True)):
        model = dense(body.format(perm), {"w": normal(8, 8)})
        (layer,) = find_layers(ir.from_proto(model), "*")
        assert layer.weight.transposed == transposed
    turned = packed("MatMulBnb4")
    turned.graph.node[0].attribute.append(onnx.helper.make_attribute("transB", 0))
    with pytest.raises(ParameterError, match="no layer for an adapter matches"):
        find_layers(ir.from_proto(turned), "*")


@pytest.mark.parametrize("name", ["matmul", "weight on the left", "grouped convolution"])
def test_a_file_tells_the_rank_of_its_adapters(name: str, tmp_path: pathlib.Path):
    trained(MERGED[name], rank=3).save_adapter(tmp_path / "a")
    found = config_of(load_source(MERGED[name]), tmp_path / "a")
    assert (found.rank, found.scale, found.targets) == (3, 1.0, ["w"])


def test_a_model_for_adapters_is_of_a_version_that_has_defaults(tmp_path: pathlib.Path):
    model = dense("y = MatMul(x, w)", {"w": normal(8, 8)})
    model.ir_version = 3
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [8, 8]))
    trainer = Trainer(model, loss=mean_square, device="cpu", lora=LoraConfig())
    trainer.save_adapter(tmp_path / "a", tmp_path / "base.onnx")
    assert onnx.load(tmp_path / "base.onnx").ir_version >= 4


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ParameterError, match=r"no layer .* matches 'attn\.\*'") as info:
        Trainer(mlp(), loss="mse", device="cpu", lora=LoraConfig(targets="attn.*"))
    assert "fc1.weight" in str(info.value)
    with pytest.raises(ParameterError, match="list of targets is empty"):
        Trainer(mlp(), loss="mse", device="cpu", lora=LoraConfig(targets=[]))


@pytest.mark.parametrize(
    "options",
    [
        *({"rank": rank} for rank in (0, 2.5, "8", True)),
        *({"dropout": dropout} for dropout in (1.0, "0.1")),
        *({"alpha": alpha} for alpha in (0.0, "16")),
    ],
)
def test_impossible_settings_are_refused(options: dict):
    with pytest.raises(OptionError):
        LoraConfig(**options)


def test_a_trainer_without_adapters_has_none_to_save(tmp_path: pathlib.Path):
    trainer = Trainer(mlp(), loss="cross_entropy", device="cpu")
    with pytest.raises(OptionError, match="no adapter"):
        trainer.save_adapter(tmp_path / "a")


def test_the_given_model_is_not_changed():
    model = ir.from_proto(mlp())
    before = ir.to_proto(model).SerializeToString()
    trainer = Trainer(model, loss="cross_entropy", device="cpu", lora=LoraConfig(rank=2))
    trainer.step(batch_of())
    assert ir.to_proto(model).SerializeToString() == before
