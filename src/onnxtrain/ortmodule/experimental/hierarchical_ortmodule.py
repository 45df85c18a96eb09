"""HierarchicalORTModule: of a module that cannot be exported, the largest parts that can be.

Torch calls the forward function of a module through the module. That of each part is replaced by
an object that tries to export the part, so that the modules stay where and what they are: their
names, classes, hooks and other methods are those that the code around them knows.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

from onnxtrain.ortmodule.module import ORTModule, is_traced, shortly
from onnxtrain.ortmodule.options import DebugOptions, FallbackPolicy
from onnxtrain.ortmodule.session import Session

REFERENCE_PREFIX = "_original_module."
"""Before the names in a state that onnxruntime's class has written."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_logger = logging.getLogger("onnxtrain.ortmodule")
Said = set[tuple[str, str]]
"""Classes of modules that torch runs, and why, of which there was a warning."""


class HierarchicalORTModule(ORTModule):
    """A torch module that is exported as a whole if it can be, and else the largest parts of it.

    It stands for the module as ORTModule does. If an export of it fails, torch runs it, and each
    module in it is tried when it is called; those that cannot be exported are taken apart in turn.
    The logger ``onnxtrain.ortmodule`` tells what runs where, and why.

    Args:
        module: The module.
        debug_options: What is told and saved; files of parts have the parts' names in theirs.

    Raises:
        OptionError: if it is no module, or one for several devices.
    """

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        self._said: Said = set()
        super().__init__(module, debug_options)

    def _made(self, *args: Any) -> Session:
        session = super()._made(*args)
        _logger.info("%s runs in onnxtrain", _shown(self._module, ""))
        return session

    def _fall_back(self, policy: FallbackPolicy, error: Exception) -> None:
        """Try the parts instead, whatever the policy is: it is that of modules without parts."""
        text = shortly(error)
        if text not in self._told:
            self._told.add(text)
            _tell(self._module, "", self._said, text)
            self._open()

    def _open(self) -> None:
        """Have every module inside be tried when it is called."""
        for path, module in self._module.named_modules():
            if module is self._module or isinstance(module.__dict__.get("forward"), Part):
                continue
            if isinstance(module, (nn.DataParallel, torch.jit.ScriptModule)):
                continue
            if type(module).forward is not nn.Module.forward:  # lists of modules have none
                module.__dict__["forward"] = Part(module, path, self)

    def _forget(self) -> None:
        """Try the whole module again from now on."""
        super()._forget()
        module = self.__dict__.get("_module")
        for inner in () if module is None else module.modules():
            part = inner.__dict__.get("forward")
            if isinstance(part, Part) and part._said is self._said:
                part.remove()

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the module, also what onnxruntime's class has saved."""
        if any(name.startswith(REFERENCE_PREFIX) for name in state_dict):
            state_dict = dict(state_dict)
            _rename(state_dict, "")
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        _rename(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Part(ORTModule):
    """What a module inside of a HierarchicalORTModule has as its forward function.

    Args:
        module: The module.
        path: Its name in the whole.
        whole: What it is a part of.
    """

    def __init__(self, module: nn.Module, path: str, whole: HierarchicalORTModule) -> None:
        self._path, self._said, self._small = path, whole._said, _is_small(module)
        self._before: Callable[..., Any] | None = module.__dict__.get("forward")
        super().__init__(module, whole._options.of_part(path))
        self._policy, self._again = whole._policy, whole._again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the part, whose hooks run around this."""
        if is_traced() or not self._small:
            return self._called(*args, **kwargs)
        _logger.info("%s is run by torch: it has no parameters", _shown(self._module, self._path))
        self.remove()
        return self._by_torch(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the module; the signature is that of its forward function."""
        if name == "__signature__":
            usual = types.MethodType(type(self._module).forward, self._module)
            return inspect.signature(self._before or usual)
        return super().__getattr__(name)

    def remove(self) -> None:
        """Give the module its own forward function back."""
        if self._before is None:
            del self._module.__dict__["forward"]
        else:
            self._module.__dict__["forward"] = self._before

    def _with_signature(self) -> Callable[..., Any]:
        return self._called

    def _by_torch(self, *args: Any, **kwargs: Any) -> Any:
        """What the forward function of the module gives, without this one."""
        if self._before is not None:
            return self._before(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def _made(self, *args: Any) -> Session:
        with _without_hooks(self._module):
            session = super()._made(*args)
        _logger.info("%s runs in onnxtrain", _shown(self._module, self._path))
        return session

    def _fall_back(self, policy: FallbackPolicy, error: Exception) -> None:
        text = shortly(error)
        if text not in self._told:
            self._told.add(text)
            _tell(self._module, self._path, self._said, text)


def _tell(module: nn.Module, path: str, said: Said, text: str) -> None:
    """Tell that torch runs a module; of equal ones a warning is only given of the first."""
    key = type(module).__qualname__, text
    level = logging.INFO if key in said else logging.WARNING
    said.add(key)
    rest = ", and its parts are tried" if any(True for _ in module.children()) else ""
    _logger.log(level, "%s is run by torch%s: %s", _shown(module, path), rest, text)


def _shown(module: nn.Module, path: str) -> str:
    kind = type(module).__name__
    return f"'{path}' ({kind})" if path else kind


def _is_small(module: nn.Module) -> bool:
    """Whether there are only torch's modules without parameters, of which no program is faster."""
    own = all(type(part).__module__.startswith("torch.nn.") for part in module.modules())
    return own and not any(True for _ in module.parameters())


@contextlib.contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """With: a call of a module runs no hooks of its own, which run around the part."""
    hooks = {name: getattr(module, name) for name in HOOKS}
    module.__dict__.update({name: OrderedDict() for name in HOOKS})
    try:
        yield
    finally:
        module.__dict__.update(hooks)


def _rename(state_dict: MutableMapping[str, Any], prefix: str) -> None:
    """Take the name that onnxruntime's class has for the module out of names, in place."""
    first = prefix + REFERENCE_PREFIX
    for name in [name for name in state_dict if name.startswith(first)]:
        state_dict[prefix + name.removeprefix(first)] = state_dict.pop(name)
