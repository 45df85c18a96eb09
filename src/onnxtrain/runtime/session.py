"""InferenceSession: load, plan and run a model, with onnxruntime's interface."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
import torch

from onnxtrain.errors import DeviceError, FeedError, OnnxTrainError, OptionError
from onnxtrain.graph.later import collecting_later
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.kernels.dtypes import array_of
from onnxtrain.kernels.library import default_registry
from onnxtrain.kernels.registry import KernelRegistry
from onnxtrain.runtime.absent import absent
from onnxtrain.runtime.feeds import Feeds
from onnxtrain.runtime.heap import keep_freed
from onnxtrain.runtime.io_binding import IOBinding
from onnxtrain.runtime.later import Later
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.options import ProviderLike, RunOptions, SessionOptions, choose_provider
from onnxtrain.runtime.ort_value import OrtValue
from onnxtrain.runtime.overriding import Overriding
from onnxtrain.runtime.plan import Argument
from onnxtrain.runtime.profile import Profiler
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.ready import planned, prepared
from onnxtrain.types import CPU, type_string

_IGNORED = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}
"""Arguments of onnxruntime's sessions that change nothing here."""


@dataclasses.dataclass(frozen=True)
class NodeArg:
    """Name, type and shape of an input or output of a model."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """What a file says about itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> ModelMetadata:
        """What a model says, before it is prepared."""
        return cls(
            model.producer_name or "",
            model.graph.name or "",
            model.domain or "",
            model.doc_string or "",
            model.graph.doc_string or "",
            model.model_version or 0,
            dict(model.metadata_props),
        )


class InferenceSession:
    """Runs a model.

    Args:
        path_or_bytes: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        sess_options: Options, see ``SessionOptions``.
        providers: Providers in order of preference; the CPU if none is given.
        provider_options: One dictionary per provider (``device_id``).
        registry: Kernels to use instead of the built-in ones.
    """

    @collecting_later()
    def __init__(
        self,
        path_or_bytes: ModelLike,
        sess_options: SessionOptions | None = None,
        providers: Sequence[ProviderLike] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
        *,
        registry: KernelRegistry | None = None,
        **others: Any,
    ) -> None:
        if unknown := sorted(others.keys() - _IGNORED):
            raise TypeError(f"a session takes no argument {', '.join(map(repr, unknown))}")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            kind = type(sess_options)
            raise OptionError(
                f"options of a session are onnxtrain.SessionOptions, not "
                f"{kind.__module__}.{kind.__qualname__}"
            )
        self._options = sess_options or SessionOptions()
        again_options = self._options.applied()
        providers = self._options.providers(providers)
        self._provider, self._device = choose_provider(providers, provider_options)
        if self._options.intra_op_num_threads:
            torch.set_num_threads(self._options.intra_op_num_threads)
        if self._options.enable_cpu_mem_arena:
            keep_freed(self._device)
        model = load_model(path_or_bytes, own=True, edit=self._options.replacing())
        self._meta = ModelMetadata.of(model)
        again = functools.partial(
            InferenceSession,
            sess_options=again_options,
            providers=providers,
            provider_options=provider_options,
            registry=registry,
        )
        self._overriding = Overriding(model, again)
        lowering = LowerOptions(
            self._provider, self._options.use_deterministic_compute, self._options.reuse_storage
        )
        kernels = default_registry() if registry is None else registry
        self.plan = planned(prepared(model), kernels, lowering)
        options = self._options
        self._program = Program(self.plan, self._device, seed=options.seed, groups=options.groups)
        self._feeds = Feeds(self.plan.inputs, self._device)
        self._outputs = {a.name: i for i, a in enumerate(self.plan.outputs)}
        self._profiler = Profiler(self._program) if self._options.enable_profiling else None
        self._later = Later()

    def __getattr__(self, name: str) -> Any:
        raise absent("InferenceSession", name)

    def get_inputs(self) -> list[NodeArg]:
        """Inputs that ``run`` takes."""
        return [_node_arg(a) for a in self.plan.inputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that ``run`` takes as inputs too, and uses where none is given."""
        return [_node_arg(value) for value in self._overriding.values]

    def get_outputs(self) -> list[NodeArg]:
        """Outputs that ``run`` gives."""
        return [_node_arg(a) for a in self.plan.outputs]

    def get_providers(self) -> list[str]:
        """The provider in use, and the CPU for what stays on the host."""
        return list(dict.fromkeys([self._provider.value, CPU.value]))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """What the providers were given: the number of a device."""
        index = self._device.index
        own = {} if index is None else {"device_id": str(index)}
        return {CPU.value: {}, self._provider.value: own}

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        return self._meta

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[npt.NDArray[Any] | list[npt.NDArray[Any]]]:
        """Run the model; numpy arrays (or anything with DLPack) in, numpy arrays out."""
        _refuse_stopped(run_options)
        types = [self.plan.outputs[index].type for index in self._picked(output_names)]
        values = self.run_torch(output_names, input_feed)
        return [_to_numpy(value, type_) for value, type_ in zip(values, types, strict=True)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a thread of the session's own, where runs follow one another.

        Args:
            output_names: Outputs; all if none is named.
            input_feed: Inputs, whose memory must not change before the callback is called.
            callback: Called in that thread with the results, ``user_data`` and a text that is
                empty, or else says why there are no results.
            user_data: Handed on.
            run_options: See ``run``.

        Raises:
            FeedError: if an input is missing.
        """
        if not callable(callback):
            raise TypeError(f"the callback is a {type(callback).__name__}, which cannot be called")
        self._feeds.check_missing(input_feed)
        self._later(lambda: self.run(output_names, input_feed, run_options), callback, user_data)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run the model on values that stay where they are."""
        _refuse_stopped(run_options)
        return [OrtValue(v) for v in self.run_torch(output_names, input_dict_ort_values)]

    def run_torch(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]:
        """Run the model; torch tensors out, on the session's device, without copies."""
        picked = self._picked(output_names)
        if given := self._overriding.among(input_feed):
            return self._overriding.session(given).run_torch(output_names, input_feed)
        arguments = self._feeds(input_feed)
        with deterministic(self._options.use_deterministic_compute):
            runner = self._profiler or self._program
            results = runner(*arguments)
        return [results[index] for index in picked]

    def _picked(self, output_names: Sequence[str] | None) -> Sequence[int]:
        if not output_names:
            return range(len(self.plan.outputs))
        if isinstance(output_names, str):
            raise FeedError(
                f"give a list of names of outputs, not the string {output_names!r}\n"
                f"  outputs  {', '.join(self._outputs)}"
            )
        if unknown := [name for name in output_names if name not in self._outputs]:
            raise FeedError(
                f"the model has no output {', '.join(map(repr, unknown))}\n"
                f"  outputs  {', '.join(self._outputs)}"
            )
        return [self._outputs[name] for name in output_names]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs tied to memory, for ``run_with_iobinding``."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run the model on bound memory."""
        _refuse_stopped(run_options)
        iobinding.run()

    def end_profiling(self) -> str:
        """Write the Chrome trace and say where it is."""
        if self._profiler is None:
            return ""
        return self._profiler.write(self._options.profile_file_prefix)

    def get_profiling_start_time_ns(self) -> int:
        """When the clock of the trace began, 0 without one."""
        return 0 if self._profiler is None else self._profiler.start_ns

    def get_session_options(self) -> SessionOptions:
        """The options in use."""
        return self._options

    def set_providers(
        self,
        providers: Sequence[ProviderLike] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        """Do nothing if the session runs there already.

        Raises:
            DeviceError: if it does not: a plan is made for one device.
        """
        if choose_provider(providers, provider_options) != (self._provider, self._device):
            raise DeviceError(
                f"the session runs on {self._provider.value} and cannot move\n"
                "  make another one with InferenceSession(model, providers=...)"
            )

    def disable_fallback(self) -> None:
        """Do nothing: a run that fails is never repeated elsewhere."""

    def enable_fallback(self) -> None:
        """Do nothing, see ``disable_fallback``."""

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0
    ) -> OrtValue:
        """A value whose content is not set, which serves every session."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_tuning_results(self) -> list[Any]:
        """Nothing: kernels are not tuned for a session."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Do nothing, see ``get_tuning_results``."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: runs of a session are not recorded."""


# torch reads this at the process's first product of matrices on CUDA, whether or not that must be
# deterministic, and refuses deterministic ones for good if it was not there.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class deterministic:
    """With: torch's own kernels are deterministic too."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __enter__(self) -> None:
        if self._on:
            self._before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        if self._on:
            torch.use_deterministic_algorithms(self._before)


def _refuse_stopped(options: object) -> None:
    if getattr(options, "terminate", False):
        raise OnnxTrainError("the run was not begun: terminate is set in its options")


def _node_arg(argument: Argument | ir.Value) -> NodeArg:
    dims: list[int | str | None] = []
    is_tensor = isinstance(argument.type, ir.TensorType)
    for dim in (argument.shape or ()) if is_tensor else ():
        dims.append(dim if isinstance(dim, int) else dim.value)
    return NodeArg(argument.name or "", type_string(argument.type), dims)


def _to_numpy(value: Any, type_: ir.TypeProtocol | None) -> Any:
    if isinstance(value, list):
        return [_to_numpy(item, type_) for item in value]
    dtype = None if type_ is None else type_.dtype
    return array_of(value.contiguous(), dtype) if isinstance(value, torch.Tensor) else value
