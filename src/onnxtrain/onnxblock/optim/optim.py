"""Optimizer graphs: sequences of parameters and gradients in, a flag that they were updated out.

Clipping is imported too: programs for the reference look for it here.
"""

from __future__ import annotations

import onnx

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.numbers import check_betas, check_number
from onnxtrain.onnxblock.onnxblock import ForwardBlock, Parameters
from onnxtrain.onnxblock.optim.clip import ClipGradNorm, clipped
from onnxtrain.onnxblock.optim.sequences import (
    FIRST_MOMENTS,
    LEARNING_RATE,
    PARAMS,
    SECOND_MOMENTS,
    STEP,
    declare_flag,
    declare_inputs,
    elements,
    updated,
)
from onnxtrain.types import MS, TRAINING

__all__ = ["SGD", "Adam", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]


class AdamWOptimizer(Block):
    """One AdamW step on sequences; weight decay is applied to the updated weight.

    ``w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)``, then
    ``w -= lr * decay * w``. Without bias correction the two powers count as 0. Mode 0 decays
    first, and then ``w -= lr * m / ((1 - beta1^t) * (sqrt(v / (1 - beta2^t)) + eps))``.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        adam_mode: int = 1,
    ) -> None:
        super().__init__()
        check_betas(betas)
        check_number("eps", eps or 0.0)
        check_number("weight_decay", weight_decay or 0.0)
        if adam_mode not in (0, 1):
            raise OptionError(f"adam_mode is 0 (as torch) or 1, not {adam_mode!r}")
        self.bias_correction = bias_correction
        self.adam_mode = adam_mode
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
        flag = edit.generate_name("adamw.updated_flag")
        attributes = {
            "alpha": float(self.betas[0]),
            "beta": float(self.betas[1]),
            "epsilon": float(self.eps or 0.0),
            "weight_decay": float(self.weight_decay or 0.0),
            "correct_bias": int(bool(self.bias_correction)),
            "adam_mode": self.adam_mode,
        }
        edit.add_node(self.base, "AdamWOptimizer", inputs, [flag], MS, attributes)
        declare_flag(self.base, flag)
        return flag


class SGDOptimizer(Block):
    """One step of gradient descent on sequences: ``w -= lr * g``."""

    def build(self, learning_rate_name: str, params_name: str, gradients_name: str) -> str:
        """Add the step; gives the name of the flag."""
        flag = edit.generate_name("update_completed")
        inputs = [learning_rate_name, params_name, gradients_name]
        edit.add_node(self.base, "SGDOptimizerV2", inputs, [flag], MS)
        declare_flag(self.base, flag)
        return flag


class AdamW(ForwardBlock):
    """The optimizer graph of AdamW, with gradients clipped first if ``clip_grad`` is given.

    Mode 0 with an eps of 1e-8 is torch's AdamW.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        clip_grad: Block | None = None,
        adam_mode: int = 1,
    ) -> None:
        super().__init__()
        self.clip_grad = clip_grad
        self.optimizer = AdamWOptimizer(bias_correction, betas, eps, weight_decay, adam_mode)

    def build(self, parameters: Parameters) -> str:
        """Add inputs and step for (trainable, frozen) parameters; gives the name of the flag."""
        moments = [FIRST_MOMENTS, SECOND_MOMENTS]
        count = declare_inputs(self.base, parameters, moments)
        gradients = clipped(self.clip_grad, count)
        return str(self.optimizer(LEARNING_RATE, STEP, PARAMS, gradients, *moments))


class Adam(ForwardBlock):
    """The optimizer graph of Adam: decay is part of the gradient, which becomes g + decay * w.

    ``w -= lr * m / ((1 - beta1^t) * (sqrt(v / (1 - beta2^t)) + eps))``.
    """

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_grad: Block | None = None,
    ) -> None:
        super().__init__()
        check_number("weight_decay", weight_decay)
        self.weight_decay = weight_decay
        self.clip_grad = clip_grad
        self.optimizer = AdamWOptimizer(True, betas, eps, 0.0, adam_mode=0)

    def build(self, parameters: Parameters) -> str:
        """Add inputs and step for (trainable, frozen) parameters; gives the name of the flag."""
        moments = [FIRST_MOMENTS, SECOND_MOMENTS]
        count = declare_inputs(self.base, parameters, moments)
        gradients = clipped(self.clip_grad, count)
        if self.weight_decay:
            gradients = self._decayed(gradients, count)
        return str(self.optimizer(LEARNING_RATE, STEP, PARAMS, gradients, *moments))

    def _decayed(self, gradients: str, count: int) -> str:
        """Name of the sequence of g + decay * w."""
        model = self.base
        weights, grads = elements(model, PARAMS, count), elements(model, gradients, count)
        decay = number(model, self.weight_decay, weights[0])
        pairs = zip(weights, grads, strict=True)
        sums = [blocks.Add()(g, blocks.Mul()(decay, w)) for w, g in pairs]
        return str(blocks.SequenceConstruct()(*sums))


class SGD(ForwardBlock):
    """The optimizer graph of gradient descent, clipping first if ``clip_grad`` is given.

    With g the gradient plus ``weight_decay * w``: ``v = momentum * v + (1 - dampening) * g``
    (v = g in the first step), and ``w -= lr * v``, or ``lr * (g + momentum * v)`` for Nesterov's
    momentum. Without momentum and decay, ``w -= lr * g``; then the graph is that of the reference:
    runtimes feed its inputs ``step`` and ``first_order_moments`` too, nothing uses them.
    """

    def __init__(
        self,
        clip_grad: Block | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__()
        check_number("momentum", momentum)
        check_number("weight_decay", weight_decay)
        check_number("dampening", dampening)
        if nesterov and (momentum <= 0 or dampening):
            raise OptionError("nesterov needs a momentum above 0 and no dampening")
        self.clip_grad = clip_grad
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.optimizer = SGDOptimizer()

    def build(self, parameters: Parameters) -> str | tuple[str, ...]:
        """Add inputs and step for (trainable, frozen) parameters; gives the name of the flag.

        With momentum or decay, the names of the new parameters and moments follow.
        """
        count = declare_inputs(self.base, parameters, [FIRST_MOMENTS])
        gradients = clipped(self.clip_grad, count)
        if self.momentum or self.weight_decay:
            return self._momentum(gradients, count)
        return str(self.optimizer(LEARNING_RATE, PARAMS, gradients))

    def _momentum(self, gradients: str, count: int) -> tuple[str, ...]:
        """Add ONNX's own Momentum, which counts steps from 0."""
        model = self.base
        one = edit.add_constant(model, "number", 1, onnx.TensorProto.INT64)
        inputs = [LEARNING_RATE, blocks.Sub()(STEP, one)]
        for sequence in (PARAMS, gradients, FIRST_MOMENTS):
            inputs += elements(model, sequence, count)
        outputs = [edit.generate_name("updated") for _ in range(2 * count)]
        attributes = {
            "alpha": float(self.momentum),
            "beta": 1.0 - self.dampening,
            "mode": "nesterov" if self.nesterov else "standard",
            "norm_coefficient": float(self.weight_decay),
        }
        edit.add_node(model, "Momentum", inputs, outputs, TRAINING, attributes)
        new = {PARAMS: outputs[:count], FIRST_MOMENTS: outputs[count:]}
        return updated(model, new)
