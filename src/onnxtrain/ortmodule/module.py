"""ORTModule: a torch module whose forward and backward passes onnxtrain runs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from onnxtrain.errors import FeedError, OnnxTrainError, OptionError
from onnxtrain.formats.models import save_model
from onnxtrain.ortmodule.compared import refuse_others
from onnxtrain.ortmodule.export import Exported, export, kind_of, tensor_of
from onnxtrain.ortmodule.layout import PLAIN, Layout, other_sizes, symbols_fit
from onnxtrain.ortmodule.options import (
    DebugOptions,
    FallbackPolicy,
    LogLevel,
    fallback_policy,
    is_ortmodule_available,
    recomputed,
)
from onnxtrain.ortmodule.session import Session
from onnxtrain.ortmodule.watched import are_unchanged
from onnxtrain.utils.hooks import no_increase_global_step

MOST = 16
"""Kinds of arguments for which a module is exported; then it is torch that runs it."""
OWN = ("_module", "_options", "_sessions", "_torch", "_policy", "_again", "_told", "forward")
"""Attributes that are not those of the wrapped module."""
SHARED = (
    *("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""What torch keeps in a module for its state, which is that of the wrapped one."""
BACKWARD_HOOKS = "_is_full_backward_hook"
"""What torch notes of hooks, and the wrapper has its own."""
Parts = Mapping[str, nn.Module]
"""A module and those in it, by their paths."""
_logger = logging.getLogger("onnxtrain.ortmodule")
_exporting = contextvars.ContextVar("exporting", default=False)
"""Whether a module is being exported, or compared: wrapped modules in it are parts of it then."""


class ORTModule(nn.Module):
    """A torch module that is exported when it is called, differentiated as a graph and run as one.

    It stands for the module: parameters, buffers, state_dict and other attributes are those of the
    module, under their names. Where the module cannot be exported, or an operator has no gradient,
    torch runs it as before, after a warning.

    Args:
        module: The module.
        debug_options: What is told and saved.

    Raises:
        OptionError: if it is no module, or one for several devices.
    """

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise OptionError(f"ORTModule wraps a torch.nn.Module, not {type(module).__name__}")
        if isinstance(module, nn.DataParallel):
            raise OptionError(
                "ORTModule does not wrap DataParallel\n"
                "  wrap the module, then DistributedDataParallel around it"
            )
        if not is_ortmodule_available():
            raise OptionError(
                "torch's exporter needs onnxscript\n  pip install 'onnxtrain[ortmodule]'"
            )
        super().__init__()
        self._options = debug_options or DebugOptions()
        _logger.setLevel(self._options.logging_level)
        self._policy, self._again = fallback_policy(), recomputed()
        self._forget()
        del self.__dict__["training"]  # it is the module's
        # what is registered or loaded here, by a module that has this one too, is the module's
        self.__dict__.update({name: getattr(module, name) for name in SHARED})
        self._module = module
        self.forward = self._with_signature()

    def _forget(self) -> None:
        """Export anew from now on."""
        self._sessions: dict[Hashable, list[Session]] = {}
        self._torch: set[Hashable] = set()
        self._told: set[str] = set()

    def _set(self, options: DebugOptions, policy: FallbackPolicy) -> None:
        """Export anew with other settings."""
        self._options, self._policy = options, policy
        _logger.setLevel(options.logging_level)
        self._forget()

    # --- running

    def _with_signature(self) -> Callable[..., Any]:
        """What runs the module, with the signature of the module, which trainers ask for."""

        @functools.wraps(self._module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._called(*args, **kwargs)

        return forward

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for these arguments."""
        if is_traced() or self._policy & FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD:
            return self._by_torch(*args, **kwargs)
        parts = dict(self._module.named_modules(remove_duplicate=False))
        try:
            layout, tensors = Layout.of((args, kwargs))
            key = _key(parts, layout, tensors)
        except FeedError as error:
            self._fall_back(FallbackPolicy.FALLBACK_UNSUPPORTED_DATA, error)
            return self._by_torch(*args, **kwargs)
        session = self._session(key, parts, layout, tensors)
        if session is None:
            return self._by_torch(*args, **kwargs)
        exported = session.exported
        found = session.run(_inputs(session, parts, tensors))
        count = len(found) - len(exported.changed)
        with torch.no_grad():
            for name, value in zip(exported.changed, found[count:], strict=True):
                self._module.get_buffer(name).copy_(value)
        return exported.results.filled(found[:count])

    def _by_torch(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)

    def _session(
        self, key: Hashable, parts: Parts, layout: Layout, tensors: list[Tensor]
    ) -> Session | None:
        """A session that fits, made if there is none; None if torch has to run the module."""
        known = self._sessions.setdefault(key, [])
        for session in known:
            exported = session.exported
            fits = symbols_fit(exported.shapes, tensors)
            if fits and are_unchanged(parts, exported.settings) and _is_stored(exported, parts):
                return session
        if key in self._torch or any(map(is_lazy, self._module.parameters())):
            return None  # torch makes parameters that are lazy in this call
        try:
            if sum(1 for _ in self._all_sessions()) >= MOST:
                raise OptionError(
                    f"the module was called with arguments of more than {MOST} kinds\n"
                    "  give what changes with every call as tensors"
                )
            # a checkpoint counts what is saved
            with saved_tensors_hooks(_as_it_is, _as_it_is), _as_a_whole():
                session = self._made(parts, layout, tensors, known)
        except OnnxTrainError as error:
            self._torch.add(key)
            self._fall_back(FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL, error)
            return None
        except Exception as error:  # whatever torch's exporter raises
            self._torch.add(key)
            self._fall_back(FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL, error)
            return None
        known.append(session)
        return session

    def _made(
        self, parts: Parts, layout: Layout, tensors: list[Tensor], known: list[Session]
    ) -> Session:
        devices = {t.device for t in (*self._module.parameters(), *tensors)}
        if len(devices) > 1:
            raise OptionError(f"a module runs on one device, not on {', '.join(map(str, devices))}")
        training = self._module.training
        before = [other_sizes(session.exported.shapes, tensors) for session in known]
        exported = export(self._module, layout, tensors, set[tuple[int, int]]().union(*before))
        if file := self._options.file("torch_exported", training):
            save_model(exported.model, file)
        device = next(iter(devices), torch.device("cpu"))
        wanted = _wanted(exported, parts, tensors)
        kind = type(self._module).__name__
        session = Session.of(exported, wanted, device, self._again, kind)
        if file := self._options.file("execution_model", training):
            save_model(session.model, file)
        refuse_others(session, self._module, layout, _inputs(session, parts, tensors))
        _logger.info("exported for %s", [tuple(t.shape) for t in tensors])
        return session

    def _all_sessions(self) -> Iterator[Session]:
        return (session for known in self._sessions.values() for session in known)

    def _fall_back(self, policy: FallbackPolicy, error: Exception) -> None:
        """Warn once of each error, or raise it if it is to be."""
        if not self._policy & policy:
            raise error
        text = shortly(error)
        if text not in self._told and self._options.log_level <= LogLevel.WARNING:
            self._told.add(text)
            # where the user has called the module
            warnings.warn(f"torch runs {type(self._module).__name__} itself: {text}", stacklevel=7)

    # --- standing for the module

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        return self._module

    def __getattr__(self, name: str) -> Any:
        """Attributes of the module, its methods among them."""
        if name in OWN:
            raise AttributeError(name)
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module; unless it is plain, the module is exported anew."""
        if name in (*OWN, BACKWARD_HOOKS) or "_module" not in self.__dict__:
            object.__setattr__(self, name, value)
            return
        setattr(self._module, name, value)
        if not isinstance(value, PLAIN):
            self._forget()

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the module, which is exported anew."""
        delattr(self._module, name)
        self._forget()

    def train(self, mode: bool = True) -> ORTModule:
        """Put the module into training mode or out of it."""
        self._module.train(mode)
        return self

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Those of the module, itself first; parameters and buffers are found by them."""
        yield from self._module.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Those of the module."""
        return self._module.named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module, without a prefix."""
        return self._module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the module."""
        return self._module.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load what the module has itself, for one that has this one; parts are loaded by torch."""
        self._module._load_from_state_dict(*args, **kwargs)

    def apply(self, fn: Callable[[nn.Module], None]) -> ORTModule:
        """Call a function on the module and all in it; it is exported anew."""
        self._module.apply(fn)
        self._forget()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ORTModule:
        """What ``to``, ``cuda`` and ``half`` come down to."""
        self._module._apply(fn, recurse)
        self._forget()
        return self

    def add_module(self, name: str, module: nn.Module | None) -> NoReturn:
        """Raise OptionError: what is wrapped cannot be changed from outside."""
        raise OptionError("add modules to the torch module before it is wrapped")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what can be exported anew."""
        state = self.__dict__.copy()
        for name in ("_sessions", "_torch", "_told"):
            state[name] = type(state[name])()
        del state["forward"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forward = self._with_signature()

    def __repr__(self) -> str:
        """The module, wrapped."""
        return f"{type(self).__name__}({self._module!r})"


def is_traced() -> bool:
    """Whether torch, or an export of ours, makes a graph of what is called."""
    by_torch = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    return by_torch or _exporting.get()


@contextlib.contextmanager
def _as_a_whole() -> Iterator[None]:
    """With: torch runs wrapped modules, so that one around them is exported with what they do."""
    token = _exporting.set(True)
    try:
        with no_increase_global_step():
            yield
    finally:
        _exporting.reset(token)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def shortly(error: Exception) -> str:
    """What went wrong, without the advice that exporters give to those who write them."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return "\n".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *lines[1:3]])


def _key(parts: Parts, layout: Layout, tensors: list[Tensor]) -> Hashable:
    """What must be the same for an export to serve, but for sizes, attributes and weights."""
    grad = torch.is_grad_enabled()
    owned = [p for part in parts.values() for p in part._parameters.values()]
    trained = tuple(None if p is None else grad and p.requires_grad for p in owned)
    stored = tuple(b is None for part in parts.values() for b in part._buffers.values())
    modules = tuple((path, type(part), part.training) for path, part in parts.items())
    kinds = tuple((t.dtype, t.device, t.ndim, grad and t.requires_grad) for t in tensors)
    hooks = tuple(
        number for p in parts.values() for number in (*p._forward_pre_hooks, *p._forward_hooks)
    )
    cast = torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
    return layout.key(), kinds, trained, stored, modules, hooks, cast


def _is_stored(exported: Exported, parts: Parts) -> bool:
    """Whether tensors of the module are of the types and sizes of those that were exported."""
    return all(kind_of(tensor_of(parts, n)) == kind for n, kind in exported.kinds.items())


def _inputs(session: Session, parts: Parts, tensors: list[Tensor]) -> list[Tensor]:
    """Arguments, then tensors of the module, as a session takes them."""
    stored = session.exported.stored
    return [*tensors, *(_tensor(parts, stored[n]) for n in session.inputs[len(tensors) :])]


def _wanted(exported: Exported, parts: Parts, tensors: list[Tensor]) -> list[str]:
    """Inputs of the graph that need a gradient."""
    if not torch.is_grad_enabled():
        return []
    names = [str(value.name) for value in exported.model.graph.inputs]
    given = [name for name, t in zip(names, tensors, strict=True) if t.requires_grad]
    stored = {name: _tensor(parts, own) for name, own in exported.stored.items()}
    return [*given, *(name for name, tensor in stored.items() if tensor.requires_grad)]


def _tensor(parts: Parts, name: str) -> Tensor:
    """A tensor that the module is known to have."""
    found = tensor_of(parts, name)
    assert found is not None
    return found
