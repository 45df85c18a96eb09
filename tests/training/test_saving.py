"""What a Trainer saves: the file that was given, with other weights in it."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onnxtrain import Trainer
from onnxtrain.formats.models import save_model
from training.small import batch_of, mlp, model_of, normal

BATCH = batch_of()


def trained(model, steps: int = 2, **options) -> Trainer:
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0, "lr": 0.05}
    trainer = Trainer(model, **{**given, **options})
    for _ in range(steps):
        trainer.step(BATCH)
    return trainer


def notes(proto, key: str) -> None:
    proto.metadata_props.add(key=key, value=f"{key} value")


def annotated() -> onnx.ModelProto:
    """A model with everything that a file may carry besides operators and weights."""
    weight = numpy_helper.from_array(normal(4, 3), "w")
    weight.doc_string = "the weight"
    notes(weight, "tensor")
    bias = onnx.TensorProto(name="b", dims=[3], data_type=1, float_data=[0.5, -0.5, 0.25])
    product = helper.make_node("MatMul", ["x", "w"], ["m"], name="product", doc_string="times")
    notes(product, "node")
    graph = helper.make_graph(
        [
            product,
            helper.make_node("Add", ["m", "b"], ["s"]),
            helper.make_node("Twice", ["s"], ["y"], domain="own"),
            helper.make_node("Identity", ["m"], ["unused"], name="dead"),
        ],
        "the graph",
        [helper.make_tensor_value_info("x", 1, ["batch", 4], doc_string="the input")],
        [helper.make_tensor_value_info("y", 1, ["batch", 3], doc_string="the output")],
        [weight, bias],
        doc_string="a graph",
        value_info=[helper.make_tensor_value_info("m", 1, ["batch", 3])],
    )
    graph.input[0].type.denotation = "FEATURES"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    notes(graph.input[0], "input")
    notes(graph, "graph")
    annotation = graph.quantization_annotation.add(tensor_name="w")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    twice = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    twice.doc_string = "2 a"
    model = helper.make_model(
        graph,
        functions=[twice],
        opset_imports=[helper.make_opsetid("own", 1), helper.make_opsetid("", 17)],
        ir_version=9,
        producer_name="a tool",
        producer_version="1.2",
        domain="org.example",
        model_version=7,
        doc_string="a model",
    )
    for key in ("z", "a"):
        notes(model, key)
    model.training_info.add()
    return model


def without_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all numbers taken out of its weights."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    constants = [n.attribute[0].t for n in bare.graph.node if n.op_type == "Constant"]
    for tensor in (*bare.graph.initializer, *constants):
        for field in ("raw_data", "float_data", "int32_data", "double_data"):
            tensor.ClearField(field)
    return bare


@pytest.mark.parametrize("source", ["proto", "bytes", "path"])
def test_everything_but_the_weights_is_as_it_was(source, tmp_path):
    model = annotated()
    onnx.save(model, tmp_path / "model.onnx")
    given = {"proto": model, "bytes": model.SerializeToString(), "path": tmp_path / "model.onnx"}
    trainer = trained(given[source])
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    assert without_values(saved) == without_values(model)
    for tensor in saved.graph.initializer:
        np.testing.assert_array_equal(
            numpy_helper.to_array(tensor), trainer.parameters[tensor.name].numpy()
        )
        before = next(t for t in model.graph.initializer if t.name == tensor.name)
        assert (numpy_helper.to_array(tensor) != numpy_helper.to_array(before)).any()


def test_an_onnx_ir_model_comes_back_as_onnx_ir_writes_it(tmp_path):
    model = ir.from_proto(annotated())
    trained(model).save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    expected = ir.to_proto(model)
    (_, again) = expected.graph.initializer[0].metadata_props  # onnx-ir writes them twice
    expected.graph.initializer[0].metadata_props.remove(again)
    expected.metadata_props.reverse()  # and sorted
    assert without_values(saved) == without_values(expected)


def test_saving_without_a_step_gives_the_same_numbers(tmp_path):
    trained(mlp(), steps=0).save(tmp_path / "same.onnx")
    assert onnx.load(tmp_path / "same.onnx") == mlp()


def test_saved_files_run_in_onnxruntime(tmp_path):
    trainer = trained(annotated())
    trainer.save(str(tmp_path / "trained.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-5, atol=1e-6)


def constant_weights() -> onnx.ModelProto:
    """Weights in Constant nodes: a tensor, a list of numbers, and a number."""
    model = model_of(
        """(float[N,4] x) => (float[N,3] y) {
            b = Constant<value_floats=[0.5, -0.5, 0.25]>()
            half = Constant<value_float=0.5>()
            m = MatMul(x, w)
            s = Add(m, b)
            y = Mul(s, half)
        }""",
        {"w": normal(4, 3)},
    )
    model.graph.initializer.pop()
    node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(normal(4, 3), "t"))
    model.graph.node.insert(0, node)
    return model


@pytest.mark.parametrize("kind", [lambda m: m, ir.from_proto], ids=["proto", "onnx-ir"])
def test_weights_in_constant_nodes_are_trained_and_stay_there(kind, tmp_path):
    trainer = trained(kind(constant_weights()), trainable=["w", "b", "half"])
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    assert [node.op_type for node in saved.graph.node] == [
        node.op_type for node in constant_weights().graph.node
    ]
    values = {n.output[0]: n.attribute[0] for n in saved.graph.node if n.op_type == "Constant"}
    assert {name: a.name for name, a in values.items()} == {
        "w": "value",
        "b": "value_floats",
        "half": "value_float",
    }
    assert values["w"].t.name == "t" or kind is ir.from_proto
    np.testing.assert_array_equal(
        numpy_helper.to_array(values["w"].t), trainer.parameters["w"].numpy()
    )
    np.testing.assert_array_equal(
        np.array(values["b"].floats, np.float32), trainer.parameters["b"].numpy()
    )
    assert np.float32(values["half"].f) == trainer.parameters["half"].numpy() != 0.5
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-5, atol=1e-6)


def test_branches_that_use_the_same_names_are_saved_as_they_were(tmp_path):
    model = model_of(
        """(float[N,4] x) => (float[N,3] y) {
            m = MatMul(x, w)
            none = Constant<value_int=0>()
            yes = Cast<to=9>(none)
            factor = If(yes) <
                then_branch = first () => (int64 f) { c = Constant<value=int64 {2}>() f = Neg(c) },
                else_branch = other () => (int64 f) { c = Constant<value=int64 {3}>() f = Abs(c) }
            >
            scale = Cast<to=1>(factor)
            y = Mul(m, scale)
        }""",
        {"w": normal(4, 3)},
    )
    before = model.SerializeToString()
    trainer = trained(model)
    assert model.SerializeToString() == before
    trainer.save(tmp_path / "trained.onnx")
    assert without_values(onnx.load(tmp_path / "trained.onnx")) == without_values(model)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-5, atol=1e-6)


def external(folder: pathlib.Path) -> pathlib.Path:
    """A model whose weights lie in a file beside it."""
    folder.mkdir(exist_ok=True)
    onnx.save(
        mlp(),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return folder / "model.onnx"


@pytest.mark.parametrize("kind", [lambda p: p, ir.load], ids=["path", "onnx-ir"])
def test_external_data_is_read_and_the_saved_file_needs_no_other(kind, tmp_path):
    path = external(tmp_path / "original")
    data = (tmp_path / "original" / "weights.bin").read_bytes()
    trainer = trained(kind(path), trainable=["fc2.*"])
    (tmp_path / "elsewhere").mkdir()
    trainer.save(tmp_path / "elsewhere" / "trained.onnx")
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["trained.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "elsewhere" / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-5, atol=1e-6)
    assert (tmp_path / "original" / "weights.bin").read_bytes() == data


@pytest.mark.parametrize("limit", [1, 2**30])
@pytest.mark.parametrize("fate", ["removed", "replaced"])
def test_external_data_is_what_was_loaded_whatever_becomes_of_its_file(
    fate, limit, tmp_path, monkeypatch
):
    monkeypatch.setattr("onnxtrain.formats.models.EXTERNAL_BYTES", limit)
    trainer = trained(external(tmp_path), trainable=["fc2.*"])
    data = tmp_path / "weights.bin"
    size = data.stat().st_size
    data.unlink()
    if fate == "replaced":
        data.write_bytes(bytes(size))
    (tmp_path / "elsewhere").mkdir()
    trainer.save(tmp_path / "elsewhere" / "trained.onnx")
    saved = onnx.load(tmp_path / "elsewhere" / "trained.onnx").graph.initializer
    for before, after in zip(mlp().graph.initializer, saved, strict=True):
        same = np.array_equal(numpy_helper.to_array(before), numpy_helper.to_array(after))
        assert same == before.name.startswith("fc1.")


def test_a_model_may_replace_its_own_file(tmp_path):
    path = external(tmp_path)
    trainer = trained(path)
    for _ in range(2):
        trainer.save(path)
        trainer.step(BATCH)
    trainer.save(path)
    again = Trainer(path, loss="cross_entropy", device="cpu")
    assert float(again.loss(BATCH)) == float(trainer.loss(BATCH))


def test_large_models_are_saved_with_external_data(tmp_path, monkeypatch):
    monkeypatch.setattr("onnxtrain.formats.models.EXTERNAL_BYTES", 1)
    trainer = trained(external(tmp_path / "original"), trainable=["fc1.*"])
    (tmp_path / "elsewhere").mkdir()
    trainer.save(tmp_path / "elsewhere" / "trained.onnx")
    assert {p.name for p in (tmp_path / "elsewhere").iterdir()} == {
        "trained.onnx",
        "trained.onnx.data",
    }
    again = Trainer(tmp_path / "elsewhere" / "trained.onnx", loss="cross_entropy", device="cpu")
    assert float(again.loss(BATCH)) == float(trainer.loss(BATCH))
    session = onnxruntime.InferenceSession(tmp_path / "elsewhere" / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-5, atol=1e-6)


def test_a_model_that_was_saved_with_external_data_still_holds_its_weights(tmp_path):
    model = ir.from_proto(mlp())
    path = tmp_path / "model.onnx"
    save_model(model, path, external_bytes=1)
    proto = onnx.load(path, load_external_data=False)
    places = [int(e.value) for t in proto.graph.initializer for e in t.external_data[1:2]]
    assert places == [0, 4096, 8192, 12288]  # readers map pages of files
    for file in tmp_path.iterdir():
        file.unlink()
    for tensor in mlp().graph.initializer:
        held = model.graph.initializers[tensor.name].const_value
        np.testing.assert_array_equal(held.numpy(), numpy_helper.to_array(tensor))


def test_moved_statistics_are_saved(tmp_path):
    model = model_of(
        """(float[N,4] x) => (float[N,4] y) {
            y = BatchNormalization(x, scale, shift, mean, var)
        }""",
        {name: np.ones(4, np.float32) for name in ("scale", "shift", "mean", "var")},
    )
    trainer = trained(model)
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(scores, trainer.predict(BATCH)["y"].numpy(), rtol=1e-4, atol=1e-5)
    saved = {
        t.name: numpy_helper.to_array(t)
        for t in onnx.load(tmp_path / "trained.onnx").graph.initializer
    }
    assert (saved["mean"] != 1).all() and (saved["var"] != 1).all()
