"""Optimizer graphs: sequences of parameters and gradients in, a flag that they were updated out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.onnxblock import ForwardBlock, Parameters
from onnxtrain.onnxblock.values import find_value
from onnxtrain.types import MS

_LEARNING_RATE = "learning_rate"
_STEP = "step"
_PARAMS = "params"
_GRADIENTS = "gradients"
_FIRST_MOMENTS = "first_order_moments"
_SECOND_MOMENTS = "second_order_moments"


class AdamWOptimizer(Block):
    """One AdamW step on sequences; weight decay is applied to the updated weight.

    ``w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)``, then
    ``w -= lr * decay * w``. Without bias correction the two powers count as 0.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
    ) -> None:
        super().__init__()
        self.bias_correction = bias_correction
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        """Add the step; gives the name of the flag."""
        inputs = [
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        ]
        flag = edit.generate_name(self.base, "adamw.updated_flag")
        attributes = {
            "alpha": float(self.betas[0]),
            "beta": float(self.betas[1]),
            "epsilon": float(self.eps or 0.0),
            "weight_decay": float(self.weight_decay or 0.0),
            "correct_bias": int(bool(self.bias_correction)),
            "adam_mode": 1,
        }
        edit.add_node(self.base, "AdamWOptimizer", inputs, [flag], MS, attributes)
        _declare_flag(self.base, flag)
        return flag


class SGDOptimizer(Block):
    """One step of gradient descent on sequences: ``w -= lr * g``."""

    def build(self, learning_rate_name: str, params_name: str, gradients_name: str) -> str:
        """Add the step; gives the name of the flag."""
        flag = edit.generate_name(self.base, "update_completed")
        inputs = [learning_rate_name, params_name, gradients_name]
        edit.add_node(self.base, "SGDOptimizerV2", inputs, [flag], MS)
        _declare_flag(self.base, flag)
        return flag


class ClipGradNorm(Block):
    """Scale gradients in place so that their common norm is at most ``max_norm``."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        """Clip a sequence of gradients; gives the name of the clipped sequence."""
        clipped = edit.generate_name(self.base, "clip_grad_norm_output")
        attributes = {"max_norm": float(self.max_norm)}
        inputs = [gradients_name]
        edit.add_node(self.base, "InplaceClipGradNorm", inputs, [clipped], MS, attributes)
        _declare_sequence(self.base, clipped, gradients_name)
        return clipped


class AdamW(ForwardBlock):
    """The optimizer graph of AdamW, with gradients clipped first if ``clip_grad`` is given."""

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__()
        self.clip_grad = clip_grad
        self.optimizer = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def build(self, parameters: Parameters) -> str:
        """Add inputs and step for (trainable, frozen) parameters; gives the name of the flag."""
        moments = [_FIRST_MOMENTS, _SECOND_MOMENTS]
        _declare_inputs(self.base, parameters, moments)
        gradients = self.clip_grad(_GRADIENTS) if self.clip_grad else _GRADIENTS
        return str(self.optimizer(_LEARNING_RATE, _STEP, _PARAMS, gradients, *moments))


class SGD(ForwardBlock):
    """The optimizer graph of gradient descent, clipping first if ``clip_grad`` is given.

    It has the inputs ``step`` and ``first_order_moments`` too: runtimes feed them, nothing uses
    them.
    """

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__()
        self.clip_grad = clip_grad
        self.optimizer = SGDOptimizer()

    def build(self, parameters: Parameters) -> str:
        """Add inputs and step for (trainable, frozen) parameters; gives the name of the flag."""
        _declare_inputs(self.base, parameters, [_FIRST_MOMENTS])
        gradients = self.clip_grad(_GRADIENTS) if self.clip_grad else _GRADIENTS
        return str(self.optimizer(_LEARNING_RATE, _PARAMS, gradients))


def _declare_inputs(model: onnx.ModelProto, parameters: Parameters, moments: Sequence[str]) -> None:
    """Add learning rate, step, parameters, gradients and moments as graph inputs, in this order."""
    trainable, _ = parameters
    if not trainable:
        raise ValueError(
            "cannot write an optimizer graph: there is no trainable parameter\n"
            "  give (trainable, frozen) parameters, such as TrainingBlock.parameters()"
        )
    dtype = trainable[0].data_type
    tensor = onnx.helper.make_tensor_value_info
    sequence = onnx.helper.make_tensor_sequence_value_info
    model.graph.input.extend(
        [
            tensor(_LEARNING_RATE, onnx.TensorProto.FLOAT, [1]),
            tensor(_STEP, onnx.TensorProto.INT64, [1]),
            *(sequence(name, dtype, None) for name in (_PARAMS, _GRADIENTS, *moments)),
        ]
    )


def _declare_flag(model: onnx.ModelProto, name: str) -> None:
    edit.declare(model, onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, [1]))


def _declare_sequence(model: onnx.ModelProto, name: str, like: str) -> None:
    """Give a sequence the type of another one, where that is known."""
    value = find_value(model, like)
    dtype: int = onnx.TensorProto.FLOAT
    if value is not None and value.type.HasField("sequence_type"):
        dtype = value.type.sequence_type.elem_type.tensor_type.elem_type
    edit.declare(model, onnx.helper.make_tensor_sequence_value_info(name, dtype, None))
