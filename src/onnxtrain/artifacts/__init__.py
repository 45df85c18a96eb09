"""Artifacts: the files of a training run, made offline.

``generate_artifacts`` writes the training, evaluation and optimizer models and the checkpoint.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtrain.artifacts.generate import LossType, OptimType, generate_artifacts

__all__ = ["LossType", "OptimType", "generate_artifacts"]


def __getattr__(name: str) -> Any:
    """Import the names on first use, since blocks and checkpoints are imported by them."""
    if name in __all__:
        from onnxtrain.artifacts import generate

        return getattr(generate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
