"""Parameters of a module that no tensor of its file holds any more, and which ones they were like.

Torch's exporter makes one tensor of equal ones. A parameter that is nowhere was one of those: most
likely the one beside a parameter that is there, which has the same path up to one name.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.constants import copy
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.traced import (
    given,
    held_names,
    module_of,
    parameters,
    sources,
    tell_sources,
)
from onnxtrain.types import FLOATS

_MERGED = "onnxtrain.merged"
"""Where a graph tells which parameters may still be one with others."""


@dataclasses.dataclass(frozen=True)
class Other:
    """What makes the path of a parameter that of one like it: another name at one place."""

    before: tuple[str, ...]
    old: str
    new: str

    def name(self, of: str) -> str | None:
        """The parameter like another one; None if its path does not lead through that place."""
        begin = (*self.before, self.old)
        parts = tuple(of.split("."))
        if parts[: len(begin)] != begin:
            return None
        return ".".join((*self.before, self.new, *parts[len(begin) :]))

    def is_of_one_module(self, name: str) -> bool:
        """Whether both parameters are of the same module."""
        return len(name.split(".")) == len(self.before) + 1

    def tells(self, name: str) -> bool:
        """Whether names tell that both are for the same, not that the module has a spare one."""
        return not self.is_of_one_module(name) or self.alike > 0

    @property
    def alike(self) -> int:
        """How many words the two names have in common where they begin, or where they end."""
        one, other = self.old.split("_"), self.new.split("_")
        return max(_common(one, other), _common(one[::-1], other[::-1]))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words two lists begin with alike."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return [*same, False].index(False)


class Lost:
    """Parameters that no tensor of a graph holds.

    Attributes:
        names: Their names, in the order of the module.
    """

    def __init__(self, graph: ir.Graph) -> None:
        known = list(parameters(graph).values())
        self._parameters = frozenset(known)
        unread = {str(v.name) for v in graph.initializers.values() if _is_unread(v)}
        held = held_names(graph) - unread | _tied_names(graph)
        self.names = [name for name in known if name not in held]

    def held_by(self, value: ir.Value | None) -> str | None:
        """The parameter that a tensor is, or that alone it was computed from."""
        if value is None or not value.is_initializer() or value.is_graph_input():
            return None
        if value.dtype not in FLOATS:
            return None
        if value.name in self._parameters:
            return str(value.name)
        names = [name for name in sources(value) if name in self._parameters]
        return names[0] if len(names) == 1 else None

    def others(self, held: Iterable[str]) -> Iterator[Other]:
        """Ways from a parameter to one like it that is lost."""
        for name in held:
            for lost in self.names:
                if (way := _way(name, lost)) is not None:
                    yield way

    def like(self, held: Iterable[str]) -> dict[str, str]:
        """Lost parameters, with those that they may be one with."""
        return {lost: one for one in held for lost in self.names if _way(one, lost) is not None}

    def of_layers_like(self, held: Iterable[str]) -> dict[str, str]:
        """Lost parameters of modules that lack just what a layer has, with those of the layer."""
        own = {_leaf(name): name for name in held}
        modules: dict[str, dict[str, str]] = {}
        for name in self.names:
            modules.setdefault(name.rpartition(".")[0], {})[_leaf(name)] = name
        alike = [one for one in modules.values() if own and one.keys() == own.keys()]
        return {one[leaf]: name for one in alike for leaf, name in own.items()}

    def take(self, names: Iterable[str]) -> None:
        """Say that parameters are there again."""
        gone = set(names)
        self.names = [name for name in self.names if name not in gone]


def _tied_names(graph: ir.Graph) -> set[str]:
    """What parameters are called in modules that share them on purpose: their calls tell so."""
    known = parameters(graph)
    told = [
        (f"{module_of(node)}.{_leaf(name)}", name) for node in graph for name in given(node, known)
    ]
    return {own for own, name in told if own != name}


def _leaf(name: str) -> str:
    """What a parameter is called in its module."""
    return name.rpartition(".")[2]


def _is_unread(value: ir.Value) -> bool:
    return not (value.uses() or value.is_graph_output() or value.is_graph_input())


def _way(name: str, lost: str) -> Other | None:
    """The one place where the paths of two parameters differ."""
    one, other = name.split("."), lost.split(".")
    if len(one) != len(other):
        return None
    places = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(places) != 1:
        return None
    (place,) = places
    return Other(tuple(one[:place]), one[place], other[place])


def tell_merged(graph: ir.Graph, names: Mapping[str, str]) -> None:
    """Write down parameters that may still be one with others, which are there."""
    if names:
        graph.metadata_props[_MERGED] = repr({**merged_names(graph), **names})


def merged_names(graph: ir.Graph) -> dict[str, str]:
    """What was written down so."""
    text = graph.metadata_props.get(_MERGED)
    found = ast.literal_eval(text) if text else {}
    return {str(one): str(other) for one, other in found.items()}


def own_tensor(graph: ir.Graph, value: ir.Value, old: str, name: str) -> ir.Value:
    """A tensor with the numbers of another, for another parameter."""
    is_itself = value.name == old
    wanted = name if is_itself else f"{name.rpartition('.')[0]}.{value.name}".lstrip(".")
    if wanted in graph.initializers and _is_unread(graph.initializers[wanted]):
        graph.initializers.pop(wanted)
    own = copy(graph, value, unique_name(graph, wanted))
    tell_sources(own, [name if one == old else one for one in sources(value)])
    return own
