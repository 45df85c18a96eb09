"""Programs as users write them, with blocks of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnxtrain import onnxblock
from onnxtrain.errors import ParameterError


class MixedLoss(onnxblock.ForwardBlock):
    """Mean squared error of one output plus cross entropy of another."""

    def __init__(self) -> None:
        super().__init__()
        self.regression = onnxblock.loss.MSELoss()
        self.classification = onnxblock.loss.CrossEntropyLoss()
        self.add = onnxblock.blocks.Add()

    def build(self, values: str, scores: str) -> str:
        return str(self.add(self.regression(values), self.classification(scores)))


class WeightedAverage(onnxblock.ForwardBlock):
    """``0.4 * mse(a) + 0.6 * l1(b)``."""

    def __init__(self) -> None:
        self.first = onnxblock.loss.MSELoss()
        self.second = onnxblock.loss.L1Loss()
        self.w1 = onnxblock.blocks.Constant(0.4)
        self.w2 = onnxblock.blocks.Constant(0.6)
        self.mul = onnxblock.blocks.Mul()
        self.add = onnxblock.blocks.Add()

    def build(self, a: str, b: str) -> str:
        first = self.first(a, target_name="target1")
        second = self.second(b, target_name="target2")
        return str(self.add(self.mul(self.w1(), first), self.mul(self.w2(), second)))


class Training(onnxblock.TrainingBlock):
    """Mean squared error, with the prediction as a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = onnxblock.loss.MSELoss()

    def build(self, output: str) -> tuple[str, str]:
        return self.loss(output), output


def test_two_losses_on_two_outputs(echo: Any, run: Any) -> None:
    block = MixedLoss()
    with onnxblock.base(echo(a=("n", 2), b=("n", 3))):
        block("a", "b")
    model = block.to_model_proto()
    assert [value.name for value in model.graph.input] == ["a_in", "b_in", "target", "labels"]
    rng = np.random.default_rng(0)
    a, target = rng.normal(size=(2, 4, 2)).astype(np.float32)
    b, labels = rng.normal(size=(4, 3)).astype(np.float32), np.array([0, 2, 1, 1])
    (value,) = run(model, a, b, target, labels)
    tensors = [torch.from_numpy(array) for array in (a, target, b, labels)]
    mse = torch.nn.functional.mse_loss(*tensors[:2])
    expected = mse + torch.nn.functional.cross_entropy(*tensors[2:])
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_weighted_average_stays_a_scalar(echo: Any, run: Any) -> None:
    block = WeightedAverage()
    with onnxblock.base(echo(a=("n", 2), b=("n", 2))):
        block("a", "b")
    model = block.to_model_proto()
    assert model.graph.output[0].type.tensor_type.HasField("shape")
    assert not model.graph.output[0].type.tensor_type.shape.dim
    ones = np.ones((1, 2), np.float32)
    (value,) = run(model, ones, ones, 3 * ones, 4 * ones)
    np.testing.assert_allclose(value, 0.4 * 4 + 0.6 * 3, rtol=1e-6)


def test_forward_block_before_it_is_built() -> None:
    with pytest.raises(RuntimeError, match="models of MixedLoss do not exist yet"):
        MixedLoss().to_model_proto()


def test_forward_model_is_a_snapshot(perceptron: onnx.ModelProto, forward: Any) -> None:
    class Loss(onnxblock.ForwardBlock):
        def build(self, name: str) -> str:
            return str(onnxblock.loss.MSELoss()(name))

    block = Loss()
    with onnxblock.base(perceptron) as accessor:
        name = block("output")
        assert [o.name for o in accessor.model.graph.output] == [name]
        onnxblock.blocks.Abs()(name)
    assert len(block.to_model_proto().graph.node) == len(accessor.model.graph.node) - 1
    assert len(perceptron.graph.output) == 1


def test_forward_block_inside_another(perceptron: onnx.ModelProto) -> None:
    class Clipped(onnxblock.ForwardBlock):
        def __init__(self) -> None:
            self.adamw = onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(1.0))

        def build(self, parameters: Any) -> str:
            return str(self.adamw(parameters))

    block = Clipped()
    with onnxblock.empty_base():
        flag = block(([perceptron.graph.initializer[0]], []))
    model = block.to_model_proto()
    assert [o.name for o in model.graph.output] == [flag]
    assert len(model.graph.input) == 6


@pytest.mark.parametrize("result", [None, ()])
def test_forward_block_must_name_its_results(result: Any, perceptron: onnx.ModelProto) -> None:
    class Silent(onnxblock.ForwardBlock):
        def build(self) -> Any:
            return result

    with onnxblock.base(perceptron), pytest.raises(TypeError, match="build of Silent returned"):
        Silent()()


def test_forward_block_with_an_unknown_result(perceptron: onnx.ModelProto) -> None:
    class Wrong(onnxblock.ForwardBlock):
        def build(self) -> str:
            return "nowhere"

    with onnxblock.base(perceptron), pytest.raises(LookupError, match="no value 'nowhere'"):
        Wrong()()


def test_training_block_before_it_is_built() -> None:
    block = Training()
    with pytest.raises(RuntimeError, match="do not exist yet"):
        block.parameters()
    with pytest.raises(RuntimeError, match="do not exist yet"):
        block.to_model_proto()


@pytest.fixture
def trained(perceptron: onnx.ModelProto) -> tuple[Training, Any, Any]:
    block = Training()
    for name in ("w2", "w1", "b1"):
        block.requires_grad(name)
    block.requires_grad("b1", False)
    with onnxblock.base(perceptron) as accessor:
        names = block("output")
    return block, accessor, names


def test_parameters_are_in_the_order_of_initializers(
    trained: tuple[Training, Any, Any], perceptron: onnx.ModelProto
) -> None:
    trainable, frozen = trained[0].parameters()
    weights = {tensor.name: tensor for tensor in perceptron.graph.initializer}
    assert trainable == [weights["w1"], weights["w2"]]
    assert frozen == [weights["b1"]]


def test_training_model(trained: tuple[Training, Any, Any]) -> None:
    block, accessor, names = trained
    training, _ = block.to_model_proto()
    assert [value.name for value in training.graph.input] == [
        "x",
        "target",
        "w1",
        "b1",
        "w2",
        "w1_grad.accumulation.buffer",
        "w2_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]
    assert [value.name for value in training.graph.output] == [
        *names,
        "w1_grad.accumulation.out",
        "w2_grad.accumulation.out",
    ]
    assert accessor.model == training


def test_evaluation_model(
    trained: tuple[Training, Any, Any], perceptron: onnx.ModelProto, run: Any
) -> None:
    block, _, names = trained
    _, evaluation = block.to_model_proto()
    assert [value.name for value in evaluation.graph.output] == list(names)
    assert [v.name for v in evaluation.graph.input] == ["x", "target", "w1", "b1", "w2"]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in perceptron.graph.initializer}
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    target = np.zeros((5, 3), np.float32)
    loss, output = run(evaluation, x, target, *(weights[n] for n in ("w1", "b1", "w2")))
    (expected,) = run(perceptron, x)
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    np.testing.assert_allclose(loss, np.mean(expected**2), rtol=1e-5)


def test_parameters_that_a_block_makes_itself(echo: Any) -> None:
    class Head(onnxblock.TrainingBlock):
        def build(self, features: str) -> str:
            output = onnxblock.blocks.Linear(4, 2)(features)
            for tensor in self.base.graph.initializer:
                self.requires_grad(tensor.name)
            return str(onnxblock.loss.CrossEntropyLoss()(output))

    block = Head()
    with onnxblock.base(echo(y=("n", 4))):
        block("y")
    trainable, frozen = block.parameters()
    assert [list(tensor.dims) for tensor in trainable] == [[4, 2], [2]]
    assert frozen == []


def test_gradient_of_a_value_that_does_not_exist(perceptron: onnx.ModelProto) -> None:
    block = Training()
    block.requires_grad("w3")
    with onnxblock.base(perceptron), pytest.raises(ParameterError, match=r"'w3'.*\n  have  w1, "):
        block("output")


def test_what_does_not_exist_is_not_frozen(perceptron: onnx.ModelProto) -> None:
    block = Training()
    block.requires_grad("w1")
    block.requires_grad("w3", False)
    with onnxblock.base(perceptron), pytest.warns(UserWarning, match="cannot freeze 'w3'"):
        block("output")
    trainable, frozen = block.parameters()
    assert [tensor.name for tensor in trainable] == ["w1"]
    assert frozen == []


def test_names_the_package_offers() -> None:
    assert set(onnxblock.__all__) == {
        "Block",
        "ForwardBlock",
        "TrainingBlock",
        "base",
        "blocks",
        "custom_op_library",
        "empty_base",
        "load_checkpoint_to_model",
        "loss",
        "optim",
        "save_checkpoint",
    }
    assert onnxblock.blocks.Block is onnxblock.Block


def test_loss_written_by_hand(echo: Any, forward: Any, run: Any) -> None:
    class Huber(onnxblock.Block):
        """Smooth L1 through ONNX operators that no block offers."""

        def build(self, name: str) -> str:
            target = onnxblock.blocks.InputLike(name)("truth")
            error = onnxblock.blocks.Abs()(onnxblock.blocks.Sub()(name, target))
            near = onnxblock.blocks.Clip(clip_max=1.0)(error)
            far = onnxblock.blocks.Sub()(error, near)
            half = onnxblock.blocks.Mul()(
                onnxblock.blocks.Constant(0.5)(), onnxblock.blocks.Pow(2)(near)
            )
            return str(onnxblock.blocks.ReduceMean(False)(onnxblock.blocks.Add()(half, far)))

    model = forward(echo(y=("n",)), Huber(), "y")
    x, target = np.array([0, 0.5, 3], np.float32), np.zeros(3, np.float32)
    expected = torch.nn.functional.smooth_l1_loss(torch.from_numpy(x), torch.from_numpy(target))
    np.testing.assert_allclose(run(model, x, target)[0], expected, rtol=1e-6)


def test_type_of_the_optimizer_model(perceptron: onnx.ModelProto) -> None:
    block = onnxblock.optim.SGD()
    with onnxblock.empty_base():
        block((list(perceptron.graph.initializer), []))
    sequence = block.to_model_proto().graph.input[2].type.sequence_type
    assert sequence.elem_type.tensor_type.elem_type == TensorProto.FLOAT
    assert helper.printable_type(block.to_model_proto().graph.output[0].type).startswith("BOOL")
