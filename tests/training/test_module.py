"""Module: modes, names, gradients that add up, flat buffers, export."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from onnxtrain import OrtValue, SessionOptions, api, artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import (
    CheckpointError,
    FeedError,
    GraphError,
    ModelError,
    OptionError,
    ParameterError,
)
from training.small import (
    WEIGHTS,
    batch_of,
    load_module,
    load_optimizer,
    mlp,
    model_of,
    normal,
    write_artifacts,
)

X, LABELS = batch_of().values()


@pytest.fixture
def module(folder):
    return load_module(folder)


def gradients(module: Module) -> dict[str, np.ndarray]:
    return {name: p.grad for name, p in module.state.parameters if p.requires_grad}


def torch_loss(x=X, labels=LABELS):
    """Loss, scores and gradients of the same network in torch."""
    weights = {
        t.name: torch.tensor(onnx.numpy_helper.to_array(t)).requires_grad_()
        for t in mlp().graph.initializer
    }
    hidden = torch.relu(torch.tensor(x) @ weights["fc1.weight"].T + weights["fc1.bias"])
    scores = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels))
    loss.backward()
    return loss.item(), scores.detach().numpy(), {n: w.grad.numpy() for n, w in weights.items()}


def test_a_training_step_gives_loss_outputs_and_gradients(module):
    loss, scores = module(X, LABELS)
    expected_loss, expected_scores, expected = torch_loss()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-6)
    found = gradients(module)
    assert found.keys() == set(WEIGHTS[:3])
    for name, grad in found.items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-4, atol=1e-6)


def test_names_follow_the_mode(module):
    assert module.training
    assert module.input_names() == ["x", "labels"]
    loss, scores = module.output_names()
    assert scores == "y"
    assert module.eval() is module and not module.training
    assert module.input_names() == ["x", "labels"]
    assert module.output_names() == [loss, "y"]
    assert module.train() is module and module.training
    assert module.train(False) is module and not module.training


def test_names_end_as_they_like(tmp_path):
    model = model_of(
        """(float[N,4] image_grad) => (float[N,3] y_grad) {
            y_grad = MatMul(image_grad, w)
        }""",
        {"w": normal(4, 3)},
    )
    write_artifacts(
        tmp_path, model, requires_grad=["w"], frozen_params=[], additional_output_names=["y_grad"]
    )
    module = load_module(tmp_path)
    assert module.input_names() == ["image_grad", "labels"]
    assert module.output_names()[1:] == ["y_grad"]
    assert len(module(X, LABELS)) == 2
    assert len(module.eval()(X, LABELS)) == 2


def test_evaluation_uses_the_live_parameters_and_changes_nothing(module):
    module(X, LABELS)
    before = gradients(module)
    module.eval()
    first, _ = module(X, LABELS)
    module.state.parameters["fc1.weight"] = np.zeros((5, 4), np.float32)
    second, _ = module(X, LABELS)
    assert abs(first - second) > 1e-3
    for name, grad in gradients(module).items():
        np.testing.assert_array_equal(grad, before[name])


def test_gradients_add_up_until_they_are_reset(module):
    other = batch_of(seed=9).values()
    module(X, LABELS)
    first = gradients(module)
    module(*other)
    both = gradients(module)
    module.lazy_reset_grad()
    module(*other)
    second = gradients(module)
    for name, total in both.items():
        np.testing.assert_allclose(total, first[name] + second[name], rtol=1e-5, atol=1e-7)


def test_a_reset_is_lazy(module):
    module(X, LABELS)
    before = gradients(module)
    module.lazy_reset_grad()
    for name, grad in gradients(module).items():
        np.testing.assert_array_equal(grad, before[name])
    module.eval()
    module(X, LABELS)
    module.train()
    module(X, LABELS)
    for name, grad in gradients(module).items():
        np.testing.assert_array_equal(grad, before[name])


def test_a_step_that_is_refused_does_not_use_up_the_reset(module):
    module(X, LABELS)
    before = gradients(module)
    module.lazy_reset_grad()
    with pytest.raises(FeedError):
        module(X)
    module(X, LABELS)
    for name, grad in gradients(module).items():
        np.testing.assert_array_equal(grad, before[name])


def test_accumulated_gradients_train_like_one_large_batch(folder):
    large = batch_of(samples=8)
    whole, parts = load_module(folder), load_module(folder)
    whole(*large.values())
    for start in (0, 4):
        parts(*(value[start : start + 4] for value in large.values()))
    for name, grad in gradients(parts).items():
        np.testing.assert_allclose(grad / 2, gradients(whole)[name], rtol=1e-4, atol=1e-6)


def test_results_are_of_the_kind_of_the_inputs(module):
    arrays = module(X, LABELS)
    assert all(isinstance(value, np.ndarray) for value in arrays)
    values = module(*map(OrtValue.ortvalue_from_numpy, (X, LABELS)))
    assert all(isinstance(value, OrtValue) for value in values)
    tensors = module(torch.tensor(X), torch.tensor(LABELS))
    assert all(isinstance(value, torch.Tensor) for value in tensors)
    mixed = module(OrtValue.ortvalue_from_numpy(X), LABELS)
    assert all(isinstance(value, np.ndarray) for value in mixed)
    np.testing.assert_array_equal(values[1].numpy(), arrays[1])
    np.testing.assert_array_equal(tensors[1].numpy(), arrays[1])


def test_a_single_output_is_not_in_a_tuple(tmp_path):
    module = load_module(write_artifacts(tmp_path, additional_output_names=None))
    assert isinstance(module(X, LABELS), np.ndarray)
    assert module.eval()(X, LABELS).shape == ()


def test_an_optional_input_may_be_none(tmp_path):
    model = model_of(
        """(float[N,4] x, optional(float[3]) shift) => (float[N,3] y) {
            there = OptionalHasElement(shift)
            m = MatMul(x, w)
            y = If(there) <
                then_branch = plus () => (float[N,3] a) {
                    s = OptionalGetElement(shift) a = Add(m, s)
                },
                else_branch = same () => (float[N,3] b) { b = Identity(m) }
            >
        }""",
        {"w": normal(4, 3)},
        opset=18,
    )
    state = CheckpointState({})
    module = Module(model, state, model).eval()
    assert module.input_names() == ["x", "shift"]
    expected = X @ normal(4, 3)
    np.testing.assert_allclose(module(X, None), expected, rtol=1e-5, atol=1e-6)
    shift = np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(module(X, shift), expected + shift, rtol=1e-5, atol=1e-6)


def test_an_input_that_is_not_optional_may_not_be_none(module):
    with pytest.raises(FeedError, match="input 'labels' is None"):
        module(X, None)


def test_inputs_are_counted_and_checked(module):
    with pytest.raises(FeedError, match=r"expected 2 inputs \(x, labels\), got 3"):
        module(X, LABELS, LABELS)
    with pytest.raises(FeedError, match=r"input 'x' must have shape \[N, 4\], got \[6, 3\]"):
        module(X[:, :3], LABELS)
    with pytest.raises(FeedError, match=r"input 'labels' must be tensor\(int64\)"):
        module(X, LABELS.astype(np.float32))


def test_flat_parameters_go_out_and_come_back(module):
    sizes = {name: module.state.parameters[name].data.size for name in WEIGHTS}
    assert module.get_parameters_size() == sum(sizes[name] for name in WEIGHTS[:3])
    assert module.get_parameters_size(trainable_only=False) == sum(sizes.values())
    everything = module.get_contiguous_parameters()
    expected = [module.state.parameters[name].data.ravel() for name in WEIGHTS]
    np.testing.assert_array_equal(everything.numpy(), np.concatenate(expected))
    trained = module.get_contiguous_parameters(trainable_only=True)
    np.testing.assert_array_equal(trained.numpy(), np.concatenate(expected[:3]))
    module.copy_buffer_to_parameters(OrtValue.ortvalue_from_numpy(trained.numpy() * 2))
    np.testing.assert_array_equal(module.state.parameters["fc1.bias"].data.ravel(), expected[1] * 2)
    np.testing.assert_array_equal(module.state.parameters["fc2.bias"].data, expected[3])
    module.copy_buffer_to_parameters(everything, trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), everything.numpy())


def test_a_flat_buffer_is_a_copy(module):
    flat = module.get_contiguous_parameters()
    before = flat.numpy().copy()
    module.state.parameters["fc1.bias"] = np.zeros(5, np.float32)
    np.testing.assert_array_equal(flat.numpy(), before)


@pytest.mark.parametrize("size", [7, 41])
def test_a_flat_buffer_of_another_size_is_refused(module, size):
    before = module.get_contiguous_parameters().numpy()
    with pytest.raises(ParameterError, match=f"has {size} elements, the parameters have 40"):
        module.copy_buffer_to_parameters(np.zeros(size, np.float32))
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), before)


def test_double_parameters_stay_exact_in_a_flat_buffer(tmp_path):
    module = load_module(write_artifacts(tmp_path, mlp(np.float64)))
    flat = module.get_contiguous_parameters()
    assert flat.data_type() == "tensor(double)"
    module.copy_buffer_to_parameters(flat, trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), flat.numpy())


def test_a_nominal_state_is_completed_from_a_buffer(folder):
    full, nominal = load_module(folder), load_module(folder, "nominal_checkpoint")
    assert nominal.input_names() == full.input_names()
    assert nominal.output_names() == full.output_names()
    assert nominal.get_parameters_size() == full.get_parameters_size()
    optimizer = load_optimizer(folder, nominal)
    for act in (
        lambda: nominal(X, LABELS),
        lambda: nominal.eval()(X, LABELS),
        nominal.get_contiguous_parameters,
        optimizer.step,
        lambda: nominal.export_model_for_inferencing("never.onnx", ["y"]),
    ):
        with pytest.raises(CheckpointError, match="nominal"):
            act()
    nominal.train()
    with pytest.raises(CheckpointError, match="all parameters"):
        nominal.copy_buffer_to_parameters(full.get_contiguous_parameters(trainable_only=True))
    with pytest.raises(ParameterError, match="buffer has 2 elements"):
        nominal.copy_buffer_to_parameters(np.zeros(2, np.float32), trainable_only=False)
    with pytest.raises(CheckpointError, match="nominal"):
        nominal(X, LABELS)
    nominal.copy_buffer_to_parameters(full.get_contiguous_parameters(), trainable_only=False)
    np.testing.assert_array_equal(nominal(X, LABELS)[1], full(X, LABELS)[1])
    optimizer.step()
    assert optimizer.steps_taken == 1


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
def test_export_runs_in_onnxruntime(module, tmp_path, kind):
    module.state.parameters["fc2.bias"] = np.array([1, 2, 3], np.float32)
    scores = module.eval()(X, LABELS)[1]
    module.export_model_for_inferencing(kind(tmp_path / "inference.onnx"), ["y"])
    session = onnxruntime.InferenceSession(tmp_path / "inference.onnx")
    assert [value.name for value in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], scores, rtol=1e-5, atol=1e-6)


def test_export_of_an_inner_value(module, tmp_path):
    module.export_model_for_inferencing(tmp_path / "inner.onnx", ["a"])
    proto = onnx.load(tmp_path / "inner.onnx")
    assert [node.op_type for node in proto.graph.node] == ["Gemm", "Relu"]
    assert [tensor.name for tensor in proto.graph.initializer] == ["fc1.weight", "fc1.bias"]
    onnx.checker.check_model(proto, full_check=True)


def test_export_of_what_is_not_there(module, folder, tmp_path):
    with pytest.raises(GraphError, match="no value 'z'"):
        module.export_model_for_inferencing(tmp_path / "inference.onnx", ["z"])
    for names in ([], "y"):
        with pytest.raises(GraphError, match="give a list of the outputs to keep"):
            module.export_model_for_inferencing(tmp_path / "inference.onnx", names)
    bare = Module(folder / "training_model.onnx", module.state)
    with pytest.raises(ModelError, match="give eval_model_uri"):
        bare.export_model_for_inferencing(tmp_path / "inference.onnx", ["y"])
    with pytest.raises(ModelError, match="give eval_model_uri"):
        bare.eval()(X, LABELS)
    assert not list(tmp_path.iterdir())


def test_running_statistics_move_although_they_are_frozen(tmp_path):
    model = model_of(
        """(float[N,4] x) => (float[N,4] y) {
            y = BatchNormalization<momentum=0.8>(x, scale, shift, mean, var)
        }""",
        {
            "scale": np.ones(4, np.float32),
            "shift": np.zeros(4, np.float32),
            "mean": np.zeros(4, np.float32),
            "var": np.ones(4, np.float32),
        },
    )
    write_artifacts(
        tmp_path, model, requires_grad=["scale", "shift"], frozen_params=["mean", "var"]
    )
    module = load_module(tmp_path)
    module(X, LABELS)
    moved = {name: module.state.parameters[name].data for name in ("mean", "var")}
    np.testing.assert_allclose(moved["mean"], 0.2 * X.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(moved["var"], 0.8 + 0.2 * X.var(0), rtol=1e-5)
    _, y = module.eval()(X, LABELS)
    expected = (X - moved["mean"]) / np.sqrt(moved["var"] + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(module.state.parameters["mean"].data, moved["mean"])


class TwoLosses(onnxblock.Block):
    """A loss block that gives a second value."""

    def build(self, name):
        loss = onnxblock.loss.CrossEntropyLoss()(name)
        return loss, onnxblock.blocks.ReduceMean(keepdims=False)(name)


def test_a_loss_block_may_give_further_outputs(tmp_path):
    write_artifacts(tmp_path, loss=TwoLosses(), additional_output_names=None)
    loss, mean = load_module(tmp_path)(X, LABELS)
    expected, scores, _ = torch_loss()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(mean, scores.mean(), rtol=1e-4, atol=1e-6)


def test_things_of_another_kind_are_refused(folder, module):
    training, optimizer = folder / "training_model.onnx", folder / "optimizer_model.onnx"
    with pytest.raises(OptionError, match="is a CheckpointState, not None"):
        Module(training, None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="session_options are SessionOptions"):
        Module(training, module.state, session_options=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="updates a Module, not None"):
        api.Optimizer(optimizer, None)  # type: ignore[arg-type]


def test_session_options_reach_the_step(folder):
    options = SessionOptions(use_deterministic_compute=True, seed=3)
    module = load_module(folder, session_options=options)
    seen = []
    program = module.runner().program
    step = program._step
    program._step = lambda *a: seen.append(torch.are_deterministic_algorithms_enabled()) or step(*a)
    module(X, LABELS)
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()
    assert program.rng.initial_seed() == 3


def test_the_given_model_is_left_as_it_was(folder):
    model = ir.load(folder / "training_model.onnx")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    Module(model, state)(X, LABELS)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_artifacts_and_api_are_where_users_of_the_reference_expect_them():
    assert {"CheckpointState", "Module", "Optimizer", "LinearLRScheduler"} <= set(api.__all__)
    assert artifacts.LossType.CrossEntropyLoss and artifacts.OptimType.AdamW


def test_options_fix_the_sizes_of_free_dimensions(folder):
    options = SessionOptions()
    graph = onnx.load(folder / "training_model.onnx").graph
    free = next(v for v in graph.input if v.name == "x").type.tensor_type.shape.dim[0].dim_param
    options.add_free_dimension_override_by_name(free, len(X))
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    module(X, LABELS)
    with pytest.raises(FeedError, match=r"must have shape \[\d+, \d+\]"):
        module(X[:1], LABELS[:1])
