"""SessionOptions and friends: the fields of onnxruntime's that have a meaning here."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.errors import DeviceError, OnnxTrainError
from onnxtrain.runtime.ort_value import device_of
from onnxtrain.types import CPU, CUDA, Provider


class GraphOptimizationLevel(enum.IntEnum):
    """How much the graph may be changed before it is planned."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


@dataclasses.dataclass
class SessionOptions:
    """Options of a session.

    Attributes:
        use_deterministic_compute: Results are bit-identical from run to run.
        enable_profiling: Write a Chrome trace with one row per node.
        profile_file_prefix: Where the trace goes; a time stamp and ``.json`` are appended.
        intra_op_num_threads: Threads of CPU kernels (0: leave torch's setting alone); torch has
            one setting per process, which a session sets when it is created.
        graph_optimization_level: Kept for compatibility.
        seed: Seed of random operators; None draws one, unless ``set_seed`` was called.
        reuse_storage: Outputs may take over the storage of dying inputs.
        groups: Process groups for operators that communicate; None if the process is alone.
        capture: Training steps on a CUDA device are recorded and replayed where that is possible.
        compiled: Kernels are generated for chains of elementwise operators in training steps;
            None: on a CUDA device.
        log_severity_level: Kept for compatibility.
        log_verbosity_level: Kept for compatibility.
        inter_op_num_threads: Kept for compatibility; steps run in order.
    """

    use_deterministic_compute: bool = False
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxtrain_profile"
    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    seed: int | None = None
    reuse_storage: bool = True
    groups: Groups | None = None
    capture: bool = True
    compiled: bool | None = None
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    _config: dict[str, str] = dataclasses.field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a free-form entry."""
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Read a free-form entry.

        Raises:
            OnnxTrainError: if it was never set.
        """
        return _entry(self._config, key, "session")


@dataclasses.dataclass
class RunOptions:
    """Options of one run, all of them kept for compatibility: none changes what is run."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = True
    _config: dict[str, str] = dataclasses.field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a free-form entry."""
        self._config[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Read a free-form entry.

        Raises:
            OnnxTrainError: if it was never set.
        """
        return _entry(self._config, key, "run")


def _entry(entries: Mapping[str, str], key: str, kind: str) -> str:
    if key not in entries:
        raise OnnxTrainError(f"{kind} config entry '{key}' was never set")
    return entries[key]


ProviderLike = str | tuple[str, dict[str, Any]]


def choose_provider(
    providers: Sequence[ProviderLike] | None, provider_options: Sequence[dict[str, Any]] | None
) -> tuple[Provider, torch.device]:
    """The first provider that is there, and its device.

    Raises:
        DeviceError: if a name is unknown, or none of them is available.
    """
    wanted = list(providers or [CPU.value])
    options = list(provider_options or [{}] * len(wanted))
    reasons = []
    for item, more in zip(wanted, options, strict=True):
        name, own = item if isinstance(item, tuple) else (item, {})
        try:
            provider = Provider(name)
        except ValueError:
            known = ", ".join(p.value for p in Provider)
            raise DeviceError(f"unknown provider '{name}'\n  have  {known}") from None
        if provider is CPU:
            return CPU, torch.device("cpu")
        try:
            index = int({**more, **own}.get("device_id", 0))
            return CUDA, device_of("cuda", index)
        except ValueError as error:
            reasons.append(str(error))
    raise DeviceError("no provider is available: " + "; ".join(reasons))


def get_available_providers() -> list[str]:
    """Providers that can be used on this machine, best first."""
    return [CUDA.value, CPU.value] if torch.cuda.is_available() else [CPU.value]


def get_device() -> str:
    """``GPU`` or ``CPU``."""
    return "GPU" if torch.cuda.is_available() else "CPU"
