"""SessionOptions and friends: the fields of onnxruntime's that have a meaning here."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.errors import DeviceError, OnnxTrainError, OptionError
from onnxtrain.runtime.absent import absent
from onnxtrain.runtime.ort_value import OrtValue, device_of
from onnxtrain.runtime.replacing import Replacing, checked_size, checked_value, same_length
from onnxtrain.types import CPU, CUDA, Provider

ProviderLike = str | tuple[str, dict[str, Any]]


class GraphOptimizationLevel(enum.IntEnum):
    """How much the graph may be changed before it is planned."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether nodes run one after the other; here they always do."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """In which order nodes run; here it is the order that frees memory early."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclasses.dataclass(slots=True)
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
        recompute: What the backward pass of a training step computes again instead of keeping it:
            ``cheap``, ``layers``, or None; see ``transforms.recompute``.
        compress: In which form values wait for the backward pass of a training step: ``exact``,
            ``pack16``, ``msfp15``, ``pack8``, or None for their own; see ``transforms.compress``.
        log_severity_level: Kept for compatibility.
        log_verbosity_level: Kept for compatibility.
        inter_op_num_threads: Kept for compatibility; steps run in order.
        execution_mode: Kept for compatibility; steps run in order.
        execution_order: Kept for compatibility.
        enable_cpu_mem_arena: What steps on the CPU free stays with the process for the next ones,
            where glibc has the memory; one setting per process, by the first session that has it.
        enable_mem_pattern: Kept for compatibility.
        enable_mem_reuse: Kept for compatibility, see ``reuse_storage``.
        use_per_session_threads: Kept for compatibility.
        logid: Kept for compatibility.
        optimized_model_filepath: Refused when a session is made: what runs is a plan, not a model.
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
    recompute: str | None = None
    compress: str | None = None
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_per_session_threads: bool = True
    logid: str = ""
    optimized_model_filepath: str = ""
    _config: dict[str, str] = dataclasses.field(default_factory=dict)
    _replacing: Replacing = dataclasses.field(default_factory=Replacing)
    _providers: list[ProviderLike] = dataclasses.field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        raise absent("SessionOptions", name)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a free-form entry."""
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Read a free-form entry.

        Raises:
            OnnxTrainError: if it was never set.
        """
        return _entry(self._config, key, "session")

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Give the dimensions of a name a size; the first one given for it counts."""
        size = checked_size("name", dim_name, dim_value)
        self._replacing.sizes.setdefault(dim_name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, dim_value: int) -> None:
        """Give the dimensions of inputs that have a denotation a size; the first one counts."""
        size = checked_size("denotation", denotation, dim_value)
        self._replacing.denoted.setdefault(denotation, size)

    def add_initializer(self, name: str, ortvalue: OrtValue) -> None:
        """Replace an initializer when a session is made; models that have none of it ignore it."""
        values = self._replacing.values
        values[name] = checked_value(values, name, ortvalue)

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace initializers whose data lies in other files, which need not be there then."""
        same_length("names and values of external initializers", names, values)
        external = self._replacing.external
        for name, value in zip(names, values, strict=True):
            external[name] = checked_value(external, name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of files with external data, which need not be there then."""
        same_length("names, contents and lengths of files", names, buffers, lengths)
        for name, content, length in zip(names, buffers, lengths, strict=True):
            self._replacing.files[str(name)] = bytes(memoryview(content).cast("B")[:length])

    def add_provider(self, provider: str, options: Mapping[str, Any] | None = None) -> None:
        """Add a provider, for sessions that are given none."""
        self._providers.append((provider, dict(options or {})))

    def has_providers(self) -> bool:
        """Whether providers were added."""
        return bool(self._providers)

    def replacing(self) -> Replacing:
        """What a session puts in place of parts of its model."""
        return self._replacing

    def providers(self, given: Sequence[ProviderLike] | None) -> Sequence[ProviderLike] | None:
        """Providers of a session: those that it is given, or those that were added."""
        if given and self._providers:
            warnings.warn(
                "the session is given providers, those of its options are not used", stacklevel=4
            )
        return given or self._providers or None

    def applied(self) -> SessionOptions:
        """The options for a model in which parts were replaced already.

        Raises:
            OptionError: if an option asks for what there is not.
        """
        if self.optimized_model_filepath:
            raise OptionError(
                f"cannot write an optimised model to '{self.optimized_model_filepath}'\n"
                "  a session runs a plan, which is no ONNX model; unset optimized_model_filepath"
            )
        return dataclasses.replace(self, _replacing=Replacing(), _providers=[])


@dataclasses.dataclass(slots=True)
class RunOptions:
    """Options of one run, kept for compatibility: none changes what is run.

    A run with ``terminate`` is refused; one that has begun is not stopped.
    """

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

    def __getattr__(self, name: str) -> Any:
        raise absent("RunOptions", name)


def _entry(entries: Mapping[str, str], key: str, kind: str) -> str:
    if key not in entries:
        raise OnnxTrainError(f"{kind} config entry '{key}' was never set")
    return entries[key]


def choose_provider(
    providers: Sequence[ProviderLike] | None, provider_options: Sequence[dict[str, Any]] | None
) -> tuple[Provider, torch.device]:
    """The first provider that is there, and its device.

    Raises:
        DeviceError: if a name is unknown, or none of them is available.
        OptionError: if there are options for more or fewer providers.
    """
    wanted = list(providers or [CPU.value])
    options = list(provider_options or [{}] * len(wanted))
    same_length("providers and provider_options", wanted, options)
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
