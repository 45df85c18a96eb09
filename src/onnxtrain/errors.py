"""Every exception of the package; the docstring of a class is its help page."""

from __future__ import annotations


class OnnxTrainError(Exception):
    """Base of all errors raised on purpose by onnxtrain."""


class ModelError(OnnxTrainError, ValueError):
    """The file or object is not a model that can be used.

    Causes: a truncated file, a file that is not ONNX, a graph that breaks ONNX's own rules,
    external data that is missing or that points outside the folder of the model.
    """


class GraphError(OnnxTrainError, ValueError):
    """A graph breaks a rule that a training graph must keep; the message names the place."""


class RegistrationError(OnnxTrainError, ValueError):
    """A kernel, rule or schema was declared twice, or its facts contradict its signature."""


class NoKernelError(OnnxTrainError, NotImplementedError):
    """No registered kernel runs a node on the requested provider with its types.

    The message lists the kernels that exist for the operator. Cures: another provider, a Cast
    before the node, or a kernel of your own in a ``KernelRegistry`` handed to the session.
    """


class NoGradientError(OnnxTrainError, NotImplementedError):
    """An operator lies between a wanted gradient and the loss and has no gradient rule.

    Cures: write a rule with ``@gradient("Op")``, declare ``no_gradient("Op")`` if it is constant
    almost everywhere, or freeze the parameters behind it.
    """


class OptionError(OnnxTrainError, ValueError):
    """An option has a value that it cannot have, or that contradicts another one."""


class DeviceError(OnnxTrainError, ValueError):
    """A device or provider is unknown, or not there on this machine."""


class FeedError(OnnxTrainError, ValueError):
    """An input is missing, unknown, or of the wrong type or shape."""


class NodeError(OnnxTrainError, RuntimeError):
    """A kernel failed while a step ran; the message has the node and its inputs' shapes."""


class ParameterError(OnnxTrainError, KeyError):
    """A parameter name is not one of the model's, or its new value does not fit."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LossError(OnnxTrainError, ValueError):
    """The loss is not a scalar, not a floating point value, or not in the graph."""


class CheckpointError(OnnxTrainError, ValueError):
    """A checkpoint is damaged, of an unknown version, or belongs to another model."""


class SaveError(OnnxTrainError, OSError):
    """A file could not be written; what was there before is untouched."""
