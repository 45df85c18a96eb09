"""Random graphs of elementwise operators, views and reductions over whole numbers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

SHAPES = [(4, 4), (2, 2), (4,)]


@dataclasses.dataclass
class Drawn:
    """A graph in text, its inputs, and what its outputs are when evaluated node by node."""

    text: str
    feeds: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]


@st.composite
def graphs(draw: Callable[..., Any]) -> Drawn:
    """A graph with one to three inputs and up to a dozen nodes."""
    builder = _Builder(draw)
    for index in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(SHAPES))
        count = torch.Size(shape).numel()
        value = torch.tensor(draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count)))
        builder.values[f"x{index}"] = value.reshape(shape)
    feeds = {name: value.clone() for name, value in builder.values.items()}
    for _ in range(draw(st.integers(4, 12))):
        draw(st.sampled_from(builder.ops))()
    names = list(builder.values)
    chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    chosen += [name for name in names[-1:] if name not in chosen]
    return Drawn(_text(builder, feeds, chosen), feeds, {n: builder.values[n] for n in chosen})


def _text(builder: "_Builder", feeds: dict[str, torch.Tensor], outputs: list[str]) -> str:
    def declared(name: str) -> str:
        return f"int64[{','.join(map(str, builder.values[name].shape))}] {name}"

    body = "\n  ".join(builder.lines)
    head = f"({', '.join(map(declared, feeds))}) => ({', '.join(map(declared, outputs))})"
    return f"{head} {{\n  {body}\n}}"


class _Builder:
    """Values so far; each op adds a line and evaluates it at once, on memory of its own."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.values: dict[str, torch.Tensor] = {}
        self.lines: list[str] = []
        self.ops = [self.unary, self.binary, self.transpose] * 2
        self.ops += [self.identity, self.reshape, self.split, self.reduce, self.maximum]

    def pick(self, *, like: str | None = None) -> str:
        """A late value (of the shape of another), so that much storage dies and is contended."""
        names = list(self.values)
        if like is not None:
            names = [n for n in names if self.values[n].shape == self.values[like].shape]
        return str(self.draw(st.sampled_from(names[-2:])))

    def add(self, text: str, *values: torch.Tensor) -> None:
        names = [f"v{len(self.values) + index}" for index in range(len(values))]
        for name, value in zip(names, values, strict=True):
            self.values[name] = value.clone(memory_format=torch.contiguous_format)
        self.lines.append(f"{', '.join(names)} = {text}")

    def unary(self) -> None:
        x = self.pick()
        op = self.draw(st.sampled_from(["Neg", "Abs"]))
        self.add(f"{op} ({x})", getattr(torch, op.lower())(self.values[x]))

    def binary(self) -> None:
        x = self.pick()
        y = self.pick(like=x)
        op = self.draw(st.sampled_from(["Add", "Sub", "Mul"]))
        self.add(f"{op} ({x}, {y})", getattr(torch, op.lower())(self.values[x], self.values[y]))

    def maximum(self) -> None:
        x = self.pick()
        y = self.pick(like=x)
        self.add(f"Max ({x}, {y})", torch.maximum(self.values[x], self.values[y]))

    def identity(self) -> None:
        x = self.pick()
        self.add(f"Identity ({x})", self.values[x])

    def transpose(self) -> None:
        x = self.pick()
        axes = tuple(range(self.values[x].ndim))[::-1]
        self.add(f"Transpose ({x})", self.values[x].permute(axes))

    def reshape(self) -> None:
        x = self.pick()
        value = self.values[x]
        shape = list(value.shape)[::-1] if value.ndim > 1 else [2, value.numel() // 2]
        if value.numel() % 2 == 0:
            name = f"s{len(self.lines)}"
            self.lines.append(f"{name} = Constant <value_ints = {shape}> ()")
            self.add(f"Reshape ({x}, {name})", value.reshape(shape))

    def split(self) -> None:
        x = self.pick()
        value = self.values[x]
        if value.shape[0] % 2 == 0:
            parts = value.split(value.shape[0] // 2)
            self.add(f"Split <num_outputs = 2> ({x})", *parts)

    def reduce(self) -> None:
        x = self.pick()
        name = f"a{len(self.lines)}"
        self.lines.append(f"{name} = Constant <value_ints = [0]> ()")
        self.add(f"ReduceSum ({x}, {name})", self.values[x].sum(0, keepdim=True))
