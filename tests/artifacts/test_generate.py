"""generate_artifacts: names of losses and optimizers, arguments, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import artifacts, onnxblock, optim
from onnxtrain.api import CheckpointState
from onnxtrain.errors import GraphError, LossError, ParameterError
from training.small import (
    WEIGHTS,
    batch_of,
    load_module,
    mlp,
    model_of,
    normal,
    write_artifacts,
)

W = normal(4, 3)
FILES = ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
OUTPUTS = {"ContrastiveLoss": 2, "CosineEmbeddingLoss": 2, "InfoNCELoss": 2, "TripletMarginLoss": 3}


def test_numbers_of_the_reference():
    reference = {"MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4}
    assert reference.items() <= {kind.name: kind.value for kind in artifacts.LossType}.items()
    assert (artifacts.OptimType.AdamW.value, artifacts.OptimType.SGD.value) == (1, 2)


def heads(count: int, rank: int) -> onnx.ModelProto:
    """A model with so many outputs, whose parameters are ``w0``, ``w1``, ..."""
    axes = "T,N" if rank == 3 else "N"
    outputs = ", ".join(f"float[{axes},3] y{i}" for i in range(count))
    nodes = "\n".join(f"y{i} = MatMul(x, w{i})" for i in range(count))
    body = f"(float[{axes},4] x) => ({outputs}) {{ {nodes} }}"
    return model_of(body, {f"w{i}": normal(4, 3, seed=i) for i in range(count)})


@pytest.mark.parametrize("kind", artifacts.LossType)
def test_every_loss_by_name(kind, tmp_path):
    count = OUTPUTS.get(kind.name, 1)
    model = heads(count, rank=3 if kind.name == "CTCLoss" else 2)
    artifacts.generate_artifacts(
        model,
        requires_grad=[f"w{i}" for i in range(count)],
        loss=kind,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    training = onnx.load(tmp_path / "training_model.onnx")
    assert training.graph.input[-1].name == "lazy_reset_grad"
    assert not training.graph.output[0].type.tensor_type.shape.dim


def test_a_loss_of_some_outputs_only(tmp_path):
    artifacts.generate_artifacts(
        heads(3, 2),
        requires_grad=["w1"],
        loss=artifacts.LossType.MSELoss,
        loss_input_names=["y1"],
        additional_output_names=["y2"],
        artifact_directory=tmp_path,
        prefix="my_",
        nominal_checkpoint=True,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "my_checkpoint",
        "my_eval_model.onnx",
        "my_nominal_checkpoint",
        "my_training_model.onnx",
    ]
    graph = onnx.load(tmp_path / "my_training_model.onnx").graph
    assert [value.name for value in graph.output][1:] == ["y2", "w1_grad.accumulation.out"]
    assert CheckpointState.load_checkpoint(tmp_path / "my_nominal_checkpoint").parameters.nominal


def test_a_loss_written_by_hand(tmp_path):
    class Cubed(onnxblock.Block):
        def build(self, output, target="wanted"):
            target = onnxblock.blocks.InputLike(output)(target)
            distance = onnxblock.blocks.Abs()(onnxblock.blocks.Sub()(output, target))
            return onnxblock.blocks.ReduceMean(keepdims=False)(onnxblock.blocks.Pow(3.0)(distance))

    folder = write_artifacts(tmp_path, loss=Cubed())
    module = load_module(folder)
    assert module.input_names() == ["x", "wanted"]
    x, wanted = batch_of()["x"], normal(6, 3, seed=4)
    value, y = module(x, wanted)
    np.testing.assert_allclose(value, (np.abs(y - wanted) ** 3).mean(), rtol=1e-5)


def test_an_input_cannot_be_trained(tmp_path):
    with pytest.raises(ParameterError, match="cannot train 'x': an input has no value"):
        artifacts.generate_artifacts(
            mlp(),
            requires_grad=["fc1.weight", "x"],
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=tmp_path,
        )
    assert not list(tmp_path.iterdir())


def test_unknown_kinds_are_refused_before_anything_is_written(tmp_path):
    wrong = [({"loss": kind}, RuntimeError) for kind in ("mse", onnxblock.loss.MSELoss)]
    kinds = ("sgd", onnxblock.optim.SGD, optim.SGDConfig)
    for options, error in [*wrong, *(({"optimizer": kind}, TypeError) for kind in kinds)]:
        with pytest.raises(error, match="unknown"):
            write_artifacts(tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["requires_grad", "frozen_params", "loss_input_names"])
def test_one_string_is_no_list_of_names(argument, tmp_path):
    with pytest.raises(RuntimeError, match="give a list of names, not the string 'w0'"):
        artifacts.generate_artifacts(heads(1, 2), **{argument: "w0"}, artifact_directory=tmp_path)
    with pytest.raises(RuntimeError, match="give a list of names, not 3"):
        artifacts.generate_artifacts(heads(1, 2), **{argument: 3}, artifact_directory=tmp_path)


@pytest.mark.parametrize("prefix", [None, 3])
def test_a_prefix_is_a_string(prefix, tmp_path):
    with pytest.raises(RuntimeError, match="prefix must be a string, got"):
        write_artifacts(tmp_path, prefix=prefix)
    assert not list(tmp_path.iterdir())


def test_outputs_may_be_named_again(tmp_path):
    class WithScores(onnxblock.Block):
        def build(self, output):
            return onnxblock.loss.MSELoss()(output), output

    loss = WithScores()
    folder = write_artifacts(tmp_path, loss=loss, additional_output_names=["y", "a"])
    module = load_module(folder)
    for mode in (module.train(), module.eval()):
        assert mode.output_names()[1:] == ["y", "y", "a"]
        _, first, again, hidden = mode(batch_of()["x"], normal(6, 3))
        np.testing.assert_array_equal(first, again)
        assert hidden.shape == (6, 5)


def test_frozen_parameters_that_the_model_does_not_have_are_left_out(tmp_path):
    with pytest.warns(UserWarning, match="cannot freeze 'folded': the model has no such"):
        folder = write_artifacts(
            tmp_path, requires_grad=["fc2.weight"], frozen_params=["folded", "fc1.bias"]
        )
    parameters = CheckpointState.load_checkpoint(folder / "checkpoint").parameters
    assert [name for name, _ in parameters] == ["fc1.bias", "fc2.weight"]


def test_a_loss_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    body = "(float[N,4] x) => (float[N,3] y, float[N,2] z) { y = MatMul(x, w) z = MatMul(x, v) }"
    model = model_of(body, {"w": normal(4, 3), "v": normal(4, 2)})
    told = r"target 'z' has shape \[N, 2\] and prediction 'y' \[N, 3\]: the loss cannot compare"
    with pytest.raises(LossError, match=told):
        artifacts.generate_artifacts(
            model, ["w", "v"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
        )

    class Product(onnxblock.Block):
        def build(self, y, z):
            return onnxblock.blocks.ReduceMean(keepdims=False)(onnxblock.blocks.Mul()(y, z))

    with pytest.raises(LossError, match=r"the loss does not fit the model: .*Incompatible dim"):
        artifacts.generate_artifacts(model, ["w", "v"], loss=Product(), artifact_directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_labels_whose_name_the_model_has_for_its_scores(tmp_path):
    model = model_of("(float[N,4] x) => (float[N,3] labels) { labels = MatMul(x, w) }", {"w": W})
    given = {"loss": artifacts.LossType.CrossEntropyLoss, "artifact_directory": tmp_path}
    told = r"(?s)whole numbers, but 'labels' of the model is float.*\['labels', 'truth'\]"
    with pytest.raises(LossError, match=told):
        artifacts.generate_artifacts(model, ["w"], **given)
    assert not list(tmp_path.iterdir())
    artifacts.generate_artifacts(model, ["w"], **given, loss_input_names=["labels", "truth"])
    assert load_module(tmp_path).input_names() == ["x", "truth"]


@pytest.mark.parametrize("names", [WEIGHTS[::-1], set(WEIGHTS)], ids=["reversed", "set"])
def test_gradients_are_in_the_order_of_the_parameters(names, tmp_path):
    folder = write_artifacts(tmp_path, requires_grad=names, frozen_params=None)
    graph = onnx.load(folder / "training_model.onnx").graph
    assert [v.name for v in graph.input][2:] == [
        *WEIGHTS,
        *(f"{name}_grad.accumulation.buffer" for name in WEIGHTS),
        "lazy_reset_grad",
    ]
    assert [v.name for v in graph.output][-4:] == [f"{n}_grad.accumulation.out" for n in WEIGHTS]


@pytest.mark.parametrize(
    "argument", ["requires_grad", "frozen_params", "loss_input_names", "additional_output_names"]
)
def test_tensors_are_no_names(argument, tmp_path):
    given = {argument: list(mlp().graph.initializer)}
    with pytest.raises(RuntimeError, match=f"{argument}: give a list of names, not of TensorProto"):
        write_artifacts(tmp_path, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("count", "given"), [(3, "'y0', 'y1', 'y2'"), (1, "'y0'")])
def test_a_loss_is_given_as_many_values_as_it_takes(count, given, tmp_path):
    class Product(onnxblock.Block):
        def build(self, first, second):
            product = onnxblock.blocks.Mul()(first, second)
            return onnxblock.blocks.ReduceMean(keepdims=False)(product)

    model = heads(count, rank=2)
    told = rf"(?s)Product takes \(first, second\), but is given {given}.*loss_input_names"
    options = {"loss": Product(), "requires_grad": ["w0"], "frozen_params": None}
    options["additional_output_names"] = None
    with pytest.raises(TypeError, match=told):
        write_artifacts(tmp_path, model, **options)
    assert not list(tmp_path.iterdir())
    write_artifacts(tmp_path, model, **options, loss_input_names=["y0", "y0"])
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_models_without_trained_parameters_take_the_switch_too(tmp_path):
    """1.19.2 feeds it to every training model, and refuses one without it."""
    given = {"requires_grad": None, "frozen_params": list(WEIGHTS), "optimizer": None}
    module = load_module(write_artifacts(tmp_path, **given))
    inputs = onnx.load(tmp_path / "training_model.onnx").graph.input
    assert [value.name for value in inputs] == ["x", "labels", *WEIGHTS, "lazy_reset_grad"]
    batch = batch_of().values()
    np.testing.assert_array_equal(module(*batch)[0], module.eval()(*batch)[0])


def test_an_optimizer_needs_parameters_to_train(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)parameters to train.*name them in requires_grad"):
        write_artifacts(tmp_path, requires_grad=None)
    assert not list(tmp_path.iterdir())


def test_a_loss_must_name_its_result(tmp_path):
    class Nothing(onnxblock.Block):
        def build(self, output):
            del output

    with pytest.raises(TypeError, match="build of Nothing returned None"):
        write_artifacts(tmp_path, loss=Nothing())


def test_a_parameter_that_the_exporter_stored_transposed_is_found_by_its_name(tmp_path):
    """As in a model from torch whose linear layer has an input of three dimensions."""
    model = ir.from_proto(heads(count=2, rank=2))
    for name, made_of in {"w0": ["layer.weight", "val_1"], "w1": ["other.weight"]}.items():
        value = model.graph.initializers[name]
        value.metadata_props["pkg.onnxscript.optimizer.folded_from"] = repr(made_of)
    proto = ir.to_proto(model)
    names = ["other.weight", "layer.weight", "val_1"]
    given = {"loss": artifacts.LossType.CosineEmbeddingLoss, "artifact_directory": tmp_path}
    artifacts.generate_artifacts(proto, requires_grad=names, **given)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert [name for name, p in state.parameters if p.requires_grad] == ["w0", "w1"]
    artifacts.generate_artifacts(proto, requires_grad=names[:1], **given)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert [name for name, p in state.parameters if p.requires_grad] == ["w1"]
    with pytest.raises(ParameterError, match="no parameter 'third'"):
        artifacts.generate_artifacts(proto, requires_grad=["third"], **given)


def test_an_unknown_parameter_is_told_what_could_be_trained(tmp_path):
    body = "(float[N,3] x) => (float[N,3] y) { h = Reshape(x, s) y = MatMul(h, w) }"
    sizes = np.array([-1, 3])
    model = model_of(body, {"s": sizes, "v": normal(3, 3), "w": normal(3, 3)})
    given = {"loss": artifacts.LossType.MSELoss, "artifact_directory": tmp_path}
    with pytest.raises(ParameterError, match=r"no parameter 'wt'\n  have  w, v$"):
        artifacts.generate_artifacts(model, requires_grad=["wt"], **given)
    with pytest.raises(ParameterError, match="cannot train 's': it is int64, not floating point"):
        artifacts.generate_artifacts(model, requires_grad=["s", "w"], **given)
    with pytest.raises(GraphError, match=r"no value 'hh' to return\n  outputs  y\n.*values  h$"):
        artifacts.generate_artifacts(
            model, requires_grad=["w"], additional_output_names=["hh"], **given
        )


@pytest.mark.parametrize("named", [["w"], ["w", "turned"], ["turned"]])
def test_a_weight_that_the_exporter_also_stored_transposed_is_one_weight(named, tmp_path):
    """An embedding that gives the scores too; who names both forms trains them apart."""
    w = normal(5, 3)
    body = "(int64[N] i) => (float[N,5] y) { h = Gather(w, i) y = MatMul(h, turned) }"
    model = ir.from_proto(model_of(body, {"w": w, "turned": w.T}))
    told = {
        "w": ("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"),
        "turned": ("pkg.onnxscript.optimizer.folded_from", repr(["w"])),
    }
    for name, (key, text) in told.items():
        model.graph.initializers[name].metadata_props[key] = text
    write_artifacts(
        tmp_path,
        ir.to_proto(model),
        requires_grad=named,
        frozen_params=None,
        additional_output_names=None,
    )
    module = load_module(tmp_path)
    indices = np.array([0, 2])
    module(indices, np.array([1, 1]))
    changed = {name: np.abs(p.grad).sum(1) > 0 for name, p in module.state.parameters}
    assert set(changed) == set(named)
    if named == ["w"]:  # as scores all rows of it count, as an embedding only two of them
        assert changed["w"].all()
    elif "w" in named:
        assert changed["w"].tolist() == [True, False, True, False, False]
