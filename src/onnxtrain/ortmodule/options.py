"""What users set: logging, files for those who want to look, and what happens if export fails."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import logging
import os
import pathlib
from typing import TypeVar

from onnxtrain.errors import OptionError
from onnxtrain.transforms.recompute import LAYERS


class LogLevel(enum.IntEnum):
    """How much is told, the least one first."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


LEVELS = {
    LogLevel.VERBOSE: logging.DEBUG,
    LogLevel.DEVINFO: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.CRITICAL,
}
"""The levels of Python's loggers."""


class FallbackPolicy(enum.IntFlag):
    """When the torch module itself is run instead."""

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128


class SkipCheck(enum.IntFlag):
    """Checks that onnxruntime leaves out after a first call; here each call is looked at."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8


class PropagateCastOpsStrategy(enum.IntEnum):
    """How onnxruntime moves casts of mixed precision, which autocast has put in; without effect."""

    NONE = 0
    INSERT_AND_REDUCE = 1
    FLOOD_FILL = 2


USUAL = (
    FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    | FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)


MEMORY_LEVELS = {"0": None, "1": LAYERS, "2": LAYERS}
"""What is computed again. Onnxruntime's 2 also rounds what layers begin with; here that is kept."""


@dataclasses.dataclass
class DebugOptions:
    """Options of an ORTModule; variables of the environment come first.

    Attributes:
        log_level: How much is told. ``ORTMODULE_LOG_LEVEL``.
        save_onnx: Whether models are written to files.
        onnx_prefix: Before the names of these files.
        save_path: Their folder; where the process runs by default. ``ORTMODULE_SAVE_ONNX_PATH``.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""

    def __post_init__(self) -> None:
        """Raise OptionError if an option makes no sense."""
        if self.save_onnx and not self.onnx_prefix:
            raise OptionError(
                "save_onnx=True takes an onnx_prefix, the beginning of the files' names"
            )
        self.log_level = _named(LogLevel, "ORTMODULE_LOG_LEVEL", LogLevel(self.log_level))
        self.save_path = os.environ.get("ORTMODULE_SAVE_ONNX_PATH") or self.save_path
        if self.save_onnx and not pathlib.Path(self.save_path or ".").is_dir():
            raise OptionError(f"'{self.save_path}' is no folder in which models could be saved")

    def file(self, what: str, training: bool) -> pathlib.Path | None:
        """Where a model is to be saved, if it is."""
        if not self.save_onnx:
            return None
        mode = "training" if training else "inference"
        return pathlib.Path(self.save_path or ".") / f"{self.onnx_prefix}_{what}_{mode}.onnx"

    def of_part(self, path: str) -> DebugOptions:
        """Options of a part of the module, whose files have other names."""
        name = f"{self.onnx_prefix}_{path.replace('.', '_')}"
        return dataclasses.replace(self, onnx_prefix=name)

    @property
    def logging_level(self) -> int:
        """The level of Python's loggers that is meant."""
        return LEVELS[self.log_level]


def is_ortmodule_available() -> bool:
    """Whether torch modules can be exported, which takes onnxscript."""
    return importlib.util.find_spec("onnxscript") is not None


def fallback_policy() -> FallbackPolicy:
    """The policy of ``ORTMODULE_FALLBACK_POLICY``, or the usual one."""
    return _named(FallbackPolicy, "ORTMODULE_FALLBACK_POLICY", USUAL)


def recomputed() -> str | None:
    """What ``ORTMODULE_MEMORY_OPT_LEVEL`` asks to be computed again in the backward pass."""
    text = os.environ.get("ORTMODULE_MEMORY_OPT_LEVEL") or "0"
    if text not in MEMORY_LEVELS:
        raise OptionError(
            f"ORTMODULE_MEMORY_OPT_LEVEL is '{text}'\n  have  {', '.join(MEMORY_LEVELS)}"
        )
    return MEMORY_LEVELS[text]


T = TypeVar("T", LogLevel, FallbackPolicy)


def _named(kind: type[T], variable: str, usual: T) -> T:
    text = os.environ.get(variable)
    if not text:
        return usual
    if text not in kind.__members__:
        raise OptionError(f"{variable} is '{text}'\n  have  {', '.join(kind.__members__)}")
    return kind[text]
