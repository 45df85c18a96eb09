"""Functions of the module that onnxruntime's users call: versions, logging, threads, copies."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence

import torch

import onnxtrain
from onnxtrain.cli.env import env
from onnxtrain.errors import FeedError, OptionError
from onnxtrain.runtime.ort_value import OrtValue
from onnxtrain.types import CPU, CUDA

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_all_providers() -> list[str]:
    """All providers, best first; ``get_available_providers`` has those of this machine."""
    return [CUDA.value, CPU.value]


def get_version_string() -> str:
    """The version of onnxtrain."""
    return onnxtrain.__version__


def get_build_info() -> str:
    """Versions of onnxtrain and of what it runs on."""
    cuda = torch.version.cuda or "none"
    return (
        f"onnxtrain {onnxtrain.__version__}, torch={torch.__version__}, cuda={cuda}, "
        f"python={platform.python_version()}"
    )


def has_collective_ops() -> bool:
    """Whether operators that communicate can run."""
    return torch.distributed.is_available()


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``onnxtrain``: 0 debug, 1 info, 2 warnings, 3 errors, 4 fatal.

    Raises:
        OptionError: if it is none of them.
    """
    if severity not in range(len(_LEVELS)):
        raise OptionError(f"the severity of logging cannot be {severity!r}\n  have  0, 1, 2, 3, 4")
    logging.getLogger("onnxtrain").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: messages have a severity, and no other grade."""


def enable_telemetry_events() -> None:
    """Do nothing: nothing is ever reported to anybody."""


def disable_telemetry_events() -> None:
    """Do nothing, see ``enable_telemetry_events``."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, **_: object) -> None:
    """Do nothing: torch has loaded the libraries that it needs."""


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Set the number of threads of CPU kernels, which torch has one of per process.

    Args:
        intra_op_num_threads: How many; 0 leaves them as they are.
        inter_op_num_threads: Kept for compatibility; steps run in order.

    Raises:
        OptionError: if it is negative.
    """
    if intra_op_num_threads < 0:
        raise OptionError(f"the number of threads cannot be {intra_op_num_threads}")
    if intra_op_num_threads:
        torch.set_num_threads(intra_op_num_threads)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Copy the contents of values into others, from device to device where they differ.

    Args:
        src: Where from.
        dst: Where to; of the same types and shapes.
        stream: Only None: copies are made in torch's current stream.

    Raises:
        FeedError: if there are not as many, or one does not fit.
    """
    if stream is not None:
        raise OptionError("copies are made in torch's current stream\n  use torch.cuda.stream")
    if len(src) != len(dst):
        raise FeedError(f"cannot copy {len(src)} values into {len(dst)}")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def print_debug_info() -> None:
    """Print what a report of a problem should say."""
    env(as_json=False)
