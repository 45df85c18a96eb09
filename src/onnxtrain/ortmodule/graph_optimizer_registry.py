"""Functions of users that edit the graph of a module with its gradients, before it is planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, TypeVar

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare

ALL = "all"
Edit = Callable[[onnx.GraphProto], object]
F = TypeVar("F", bound=Edit)


@dataclasses.dataclass(frozen=True)
class Registered:
    """A function that edits graphs.

    Attributes:
        edit: Changes a graph in place.
        modules: Names of the classes of modules that it is for, or ``all``.
        devices: Types of torch's devices that it is for, or ``all``.
        priority: Of several functions, that with the highest one comes first.
    """

    edit: Edit
    modules: frozenset[str]
    devices: frozenset[str]
    priority: int

    def is_for(self, module: str, device: str) -> bool:
        """Whether it is for a module on a device."""
        pairs = (self.modules, module), (self.devices, device)
        return all(names & {ALL, name} for names, name in pairs)


class GraphOptimizerRegistry:
    """Every such function."""

    _registered: ClassVar[list[Registered]] = []

    @classmethod
    def register(cls, target_modules: str, devices: str, priority: int, fn: Edit) -> None:
        """Add a function, for modules and devices whose names stand between ``|``."""
        modules, kinds = (frozenset(text.split("|")) for text in (target_modules, devices))
        cls._registered.append(Registered(fn, modules, kinds, priority))

    @classmethod
    def optimize_all(cls, module_name: str, device: str, graph: onnx.GraphProto) -> None:
        """Call the functions that are for a module on a device, in the order of their priority."""
        for each in cls.chosen(module_name, device):
            each.edit(graph)

    @classmethod
    def chosen(cls, module_name: str, device: str) -> list[Registered]:
        """These functions."""
        found = [each for each in cls._registered if each.is_for(module_name, device)]
        return sorted(found, key=lambda each: -each.priority)


def register_graph_optimizer(
    target_modules: str = ALL, devices: str = ALL, priority: int = 0
) -> Callable[[F], F]:
    """Have a function edit graphs of modules with their gradients, in place.

    Args:
        target_modules: Names of the modules' classes, with ``|`` between them.
        devices: ``cuda``, ``cpu``, or both with ``|`` between them.
        priority: Of several functions, that with the highest one comes first.
    """

    def register(fn: F) -> F:
        GraphOptimizerRegistry.register(target_modules, devices, priority, fn)
        return fn

    return register


def edited(model: ir.Model, module_name: str, device: str) -> ir.Model:
    """A prepared model as the functions for a module on a device leave it.

    Raises:
        GraphError: if they leave something that is no graph, or has other inputs or outputs.
    """
    if not GraphOptimizerRegistry.chosen(module_name, device):
        return model
    proto = ir.to_proto(model)
    ends = _ends(proto.graph)
    GraphOptimizerRegistry.optimize_all(module_name, device, proto.graph)
    if _ends(proto.graph) != ends:
        raise GraphError(
            "a function of register_graph_optimizer has changed inputs or outputs of the graph\n"
            "  it may only change what lies between them"
        )
    changed = ir.from_proto(proto)
    changed.graph.sort()
    return prepare(changed)


def _ends(graph: onnx.GraphProto) -> list[list[str]]:
    return [[value.name for value in values] for values in (graph.input, graph.output)]
