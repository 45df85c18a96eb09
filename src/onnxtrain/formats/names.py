"""Names of the files of a training run."""

from __future__ import annotations

import dataclasses
import pathlib

TRAINING_MODEL = "training_model.onnx"
EVAL_MODEL = "eval_model.onnx"
OPTIMIZER_MODEL = "optimizer_model.onnx"
CHECKPOINT = "checkpoint"
NOMINAL_CHECKPOINT = "nominal_checkpoint"


@dataclasses.dataclass(frozen=True)
class ArtifactPaths:
    """Where the artifacts of one model lie: in ``folder``, each name led by ``prefix``."""

    folder: pathlib.Path
    prefix: str = ""

    @property
    def training_model(self) -> pathlib.Path:
        """Forward, loss, backward and gradient accumulation."""
        return self._path(TRAINING_MODEL)

    @property
    def eval_model(self) -> pathlib.Path:
        """Forward and loss."""
        return self._path(EVAL_MODEL)

    @property
    def optimizer_model(self) -> pathlib.Path:
        """The update of all parameters."""
        return self._path(OPTIMIZER_MODEL)

    @property
    def checkpoint(self) -> pathlib.Path:
        """The parameters."""
        return self._path(CHECKPOINT)

    @property
    def nominal_checkpoint(self) -> pathlib.Path:
        """The names and element types of the parameters, without their values."""
        return self._path(NOMINAL_CHECKPOINT)

    def _path(self, name: str) -> pathlib.Path:
        return self.folder / (self.prefix + name)
