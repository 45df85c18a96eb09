"""A plan: the steps of one run in order, and the readable Python function they print as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from onnxtrain.kernels.registry import Kernel

INDENT = "    "
Line = tuple[str, "Step | None"]
"""A line of source, and the step whose call it is."""


@dataclasses.dataclass(slots=True)
class Step:
    """One call of one kernel.

    Attributes:
        kernel: What is called.
        function: Its name in the program.
        args: Arguments as printed: a local, a bound constant, a literal, or ``x.tolist()``.
        reads: Names that the arguments (and nested functions) read; None where a literal stands.
        outputs: Locals that receive the results; None where nobody reads the result.
        keywords: Attributes and resources as printed.
        node: Name of the graph's node.
        comment: Type and shape of the first output, for the reader.
        out: The dying input whose storage the first output takes over.
        frees: Locals that nobody reads after this step.
        nested: Functions of the node's subgraphs, printed before the call.
        written: Locals that the step defines.
        reads_all: Every name read by the step, in its arguments or in its nested functions.
    """

    kernel: Kernel
    function: str
    args: tuple[str, ...]
    reads: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    keywords: dict[str, str]
    node: str
    comment: str = ""
    out: str | None = None
    frees: tuple[str, ...] = ()
    nested: tuple[Block, ...] = ()
    written: tuple[str, ...] = dataclasses.field(init=False, repr=False, compare=False)
    reads_all: frozenset[str] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.written = tuple([name for name in self.outputs if name])
        captured = [block.captured() for block in self.nested]
        self.reads_all = frozenset([name for name in self.reads if name]).union(*captured)

    def lines(self, depth: int) -> list[Line]:
        """The step as source, indented."""
        pad = INDENT * depth
        lines = [line for block in self.nested for line in block.lines(depth)]
        text = f"{pad}{self._assign()}{self._call()}  # {self.node} {self.comment}"
        lines.append((" ".join(text.splitlines()).rstrip(), self))
        if self.frees:
            lines.append((f"{pad}del {', '.join(self.frees)}", None))
        return lines

    def _assign(self) -> str:
        names = [name or "_" for name in self.outputs]
        if not any(self.outputs):
            return ""
        if self.kernel.outputs == 1:
            return f"{names[0]} = "
        if self.kernel.outputs:
            names += ["_"] * (self.kernel.outputs - len(names))
        return (f"[{names[0]}]" if len(names) == 1 else ", ".join(names)) + " = "

    def _call(self) -> str:
        if self.kernel.special == "yield":
            return f"yield ({', '.join(self.args)},)"
        keywords = [f"{key}={text}" for key, text in self.keywords.items()]
        if self.out:
            keywords.append(f"out={self.out}")
        return f"{self.function}({', '.join([*self.args, *keywords])})"


@dataclasses.dataclass(slots=True)
class Block:
    """A straight line of steps with parameters and results: a whole program or one subgraph."""

    name: str
    parameters: tuple[str, ...]
    steps: list[Step]
    results: tuple[str, ...]

    def lines(self, depth: int = 0) -> list[Line]:
        """The block as a function definition, indented."""
        pad = INDENT * depth
        body = [line for step in self.steps for line in step.lines(depth + 1)]
        back = ", ".join(self.results)
        return [
            (f"{pad}def {self.name}({', '.join(self.parameters)}):", None),
            *body,
            (f"{pad}{INDENT}return ({back}{',' if len(self.results) == 1 else ''})", None),
        ]

    def captured(self) -> set[str]:
        """Names that the block reads but does not define."""
        own, outer = set(self.parameters), set[str]()
        for step in self.steps:
            outer |= step.reads_all - own
            own |= set(step.written)
        return outer | (set(self.results) - own)

    def walk(self) -> Iterator[Step]:
        """All steps, those of nested blocks included, in the order they are printed."""
        for step in self.steps:
            for block in step.nested:
                yield from block.walk()
            yield step


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One input or output of a plan, as the graph declares it."""

    name: str
    local: str
    type: ir.TypeProtocol | None
    shape: ir.ShapeProtocol | None
    host: bool = False


@dataclasses.dataclass(slots=True)
class Plan:
    """Everything needed to build a program.

    Attributes:
        inputs: What the caller passes, in order.
        outputs: What comes back, in order.
        block: The steps.
        functions: Kernels by their names in the program.
        constants: Initializers and attributes by their names in the program: value, on the host?
        state: Names of bound tensors in the program, by their names in the graph.
    """

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    block: Block
    functions: dict[str, Callable[..., Any]]
    constants: dict[str, tuple[Any, bool]]
    state: Mapping[str, str]

    @property
    def yields(self) -> bool:
        """Whether the step hands values out in the middle and takes gradients back."""
        return any(step.kernel.special == "yield" for step in self.block.steps)

    def source(self) -> str:
        """The step as Python."""
        return "".join(text + "\n" for text, _ in self.block.lines())
