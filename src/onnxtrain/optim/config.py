"""Settings of an optimizer: defaults, and groups of parameters that differ from them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxtrain import onnxblock
from onnxtrain.errors import OptionError

_COEFFICIENT = "_coef"
"""What the argument for a setting ends with whose own name is a word of Python."""


class ConfigError(OptionError, AssertionError):
    """A setting of an optimizer is wrong; an AssertionError too, as users of the reference expect.

    The message names the setting.
    """


class OptimizerConfig:
    """What all optimizers share: a name, a learning rate, defaults and groups of parameters.

    Attributes:
        name: Operator that updates parameters.
        lr: Learning rate.
        defaults: Settings of parameters that are in no group.
        params: Groups: dictionaries with ``params``, a list of names, and every other setting.

    Each default is an attribute too, named like the argument.
    """

    def __init__(
        self, name: str, params: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
    ) -> None:
        _require(isinstance(params, (list, tuple)), "'params' must be a list of groups")
        lr = defaults.get("lr")
        _require(
            isinstance(lr, (int, float)) and not isinstance(lr, bool) and lr >= 0,
            f"'lr' must be a number that is not negative, not {lr!r}",
        )
        self.name = name
        self.lr = float(lr)  # type: ignore[arg-type]
        self.defaults = {_setting(key): value for key, value in defaults.items()}
        self.params = [self._filled(group) for group in params]
        vars(self).update({key: value for key, value in defaults.items() if key != "lr"})

    def _filled(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """A group with the defaults for what it does not set.

        Raises:
            ConfigError: if it has no parameters, sets nothing, or sets what does not exist.
        """
        _require(isinstance(group, Mapping), f"a group must be a dictionary, not {group!r}")
        _require("params" in group, "a group must have a list of names under 'params'")
        _require("lr" not in group, "'lr' is the same for all parameters, a group cannot set it")
        own = {_setting(key): value for key, value in group.items()}
        _require(len(own) > 1, "a group must set something besides 'params'")
        known = set(self.defaults) - {"lr"}
        for key in own.keys() - {"params"}:
            _require(
                key in known,
                f"'{key}' is no setting of {self.name}; it has {', '.join(sorted(known))}",
            )
        return {**{k: v for k, v in self.defaults.items() if k != "lr"}, **own}

    def to_block(self) -> onnxblock.Block:
        """The optimizer as a block, for ``generate_artifacts`` and ``Trainer``.

        Raises:
            ConfigError: if there are groups: an optimizer graph has one group of parameters.
        """
        _require(not self.params, f"{self.name} with groups of parameters cannot be a graph")
        return self._block()

    def _block(self) -> onnxblock.Block:
        """What a subclass is as a block; one of the user's own may have no such form."""
        raise ConfigError(
            f"{self.name} has no form as an optimizer graph; "
            "SGDConfig, AdamConfig and LambConfig have one"
        )


_OptimizerConfig = OptimizerConfig
"""As the reference calls it."""


class SGDConfig(OptimizerConfig):
    """Gradient descent: ``w -= lr * g``. It takes no groups."""

    def __init__(self, params: Sequence[Mapping[str, Any]] = (), lr: float = 0.001) -> None:
        _require(len(params) == 0, "'params' must be empty for SGDConfig")
        super().__init__("SGDOptimizer", params, {"lr": lr})

    def _block(self) -> onnxblock.Block:
        return onnxblock.optim.SGD()


class AdamConfig(OptimizerConfig):
    """Adam, with weight decay before or after the update.

    Args:
        params: Groups of parameters with settings of their own.
        lr: Learning rate.
        alpha: Share of the first moment that is kept.
        beta: Share of the second moment that is kept.
        lambda_coef: Weight decay.
        epsilon: Added to the root of the second moment.
        max_norm_clip: Largest norm of the gradients.
        do_bias_correction: Whether moments are corrected for their start at 0.
        weight_decay_mode: When weights decay.
    """

    @enum.unique
    class DecayMode(enum.IntEnum):
        """Before the update (as part of the gradient's direction), or after it."""

        BEFORE_WEIGHT_UPDATE = 0
        AFTER_WEIGHT_UPDATE = 1

    alpha: float
    beta: float
    lambda_coef: float
    epsilon: float
    max_norm_clip: float
    do_bias_correction: bool
    weight_decay_mode: DecayMode

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        _require(
            weight_decay_mode in list(self.DecayMode),
            f"'weight_decay_mode' must be an AdamConfig.DecayMode, not {weight_decay_mode!r}",
        )
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
            "weight_decay_mode": weight_decay_mode,
        }
        super().__init__("AdamOptimizer", params, defaults)

    def _block(self) -> onnxblock.Block:
        after = self.weight_decay_mode == self.DecayMode.AFTER_WEIGHT_UPDATE
        _require(
            after or not self.lambda_coef or self.do_bias_correction,
            "decay before the update needs bias correction; decay after it does not",
        )
        return onnxblock.optim.AdamW(
            self.do_bias_correction,
            (self.alpha, self.beta),
            self.epsilon,
            self.lambda_coef,
            onnxblock.optim.ClipGradNorm(self.max_norm_clip),
            adam_mode=0 if not after and self.do_bias_correction else 1,
        )


class LambConfig(OptimizerConfig):
    """LAMB: Adam whose step is scaled by the norm of the weights; arguments as for Adam.

    Args:
        params: Groups of parameters with settings of their own.
        lr: Learning rate.
        alpha: Share of the first moment that is kept.
        beta: Share of the second moment that is kept.
        lambda_coef: Weight decay.
        ratio_min: Smallest ratio of the norms.
        ratio_max: Largest ratio of the norms.
        epsilon: Added to the root of the second moment.
        max_norm_clip: Largest norm of the gradients.
        do_bias_correction: Whether moments are corrected for their start at 0.
    """

    alpha: float
    beta: float
    lambda_coef: float
    ratio_min: float
    ratio_max: float
    epsilon: float
    max_norm_clip: float
    do_bias_correction: bool

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "ratio_min": ratio_min,
            "ratio_max": ratio_max,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
        }
        super().__init__("LambOptimizer", params, defaults)

    def _block(self) -> onnxblock.Block:
        return onnxblock.optim.Lamb(
            self.do_bias_correction,
            (self.alpha, self.beta),
            self.epsilon,
            self.lambda_coef,
            self.ratio_min,
            self.ratio_max,
            onnxblock.optim.ClipGradNorm(self.max_norm_clip),
        )


def _setting(argument: str) -> str:
    return argument.removesuffix(_COEFFICIENT)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
