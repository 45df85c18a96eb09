"""Ops: emit typed nodes by calling operators as methods.

``op.Mul(a, b)`` makes a Mul node, infers its output's type and shape, and returns the output.
Operators of another domain take ``_domain=``; several outputs are asked for with ``_outputs=``.
Helpers in lower case hide the differences between opsets.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph import zeros
from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.edit import value_names
from onnxtrain.graph.inference.infer import infer_node
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import MS, DataType

OPSET_BESIDE = 21
"""Version of ONNX's own operators that joins a graph that has none of them."""
_PREFIXES = "onnxtrain.prefixes"
"""Under which key a graph has how often each prefix of names was used."""
END = 2**31 - 1
"""Where an axis that is sliced ends, whatever its size."""


class Emit(Protocol):
    """An operator as a method: one output, or as many as ``_outputs=`` asks for."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, *inputs: ir.Value | None, _outputs: int, **options: Any
    ) -> tuple[ir.Value, ...]: ...

    @overload
    def __call__(self, *inputs: ir.Value | None, **options: Any) -> ir.Value: ...


_PLAIN: dict[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
}


def import_onnx(graph: ir.Graph) -> None:
    """Let a graph have operators of ONNX itself; one of classical models may import none."""
    if not {"", "ai.onnx"} & graph.opset_imports.keys():
        graph.opset_imports[""] = OPSET_BESIDE


class Ops:
    """Emits nodes into a list, and constants into a graph.

    Args:
        graph: Where constants are registered; its opset imports decide which form is emitted.
        prefix: What names of nodes and values begin with; numbered if it was used before.
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        import_onnx(graph)
        self.prefix = _fresh(graph, prefix)
        self.nodes: list[ir.Node] = []
        self._count = 0

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators that the graph is written in."""
        return onnx_opset(self.graph.opset_imports)

    def __getattr__(self, op_type: str) -> Emit:
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def emit(*inputs: ir.Value | None, **options: Any) -> Any:
            return self.emit(op_type, inputs, **options)

        return emit

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        _domain: str = "",
        _outputs: int = 1,
        _name: str | None = None,
        **attributes: Any,
    ) -> Any:
        """Make a node; gives its output, or a tuple if several were asked for."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        name = _name or f"{self.prefix}{op_type}_{self._count}"
        self._count += 1
        given = [_attribute(key, value) for key, value in attributes.items() if value is not None]
        node = ir.Node(_domain, op_type, list(inputs), given, num_outputs=_outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}_out" if _outputs == 1 else f"{name}_out{index}"
        if _domain and _domain not in self.graph.opset_imports:
            self.graph.opset_imports[_domain] = 1
        infer_node(node, self.graph.opset_imports)
        self.nodes.append(node)
        return node.outputs[0] if _outputs == 1 else tuple(node.outputs)

    def const(self, array: npt.ArrayLike, dtype: DataType | None = None) -> ir.Value:
        """A constant; equal small constants are shared."""
        data = np.asarray(array, dtype=None if dtype is None else dtype.numpy())
        kind = DataType.from_numpy(data.dtype) if dtype is None else dtype
        shape = "x".join(map(str, data.shape))
        text = "_".join(map(str, data.ravel().tolist())) if data.size <= 8 else f"n{self._count}"
        name = f"Constant_{kind.name}_{shape or 'scalar'}_{text}"
        if data.size > 8:
            name = f"{self.prefix}{name}"
            self._count += 1
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        value = ir.Value(
            name=name,
            type=ir.TensorType(kind),
            shape=ir.Shape(data.shape),
            const_value=ir.Tensor(data, dtype=kind),
        )
        self.graph.register_initializer(value)
        return value

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A constant int64 vector."""
        return self.const(np.asarray(list(values), dtype=np.int64))

    def scalar(self, value: float, like: ir.Value) -> ir.Value:
        """A constant of rank 0 in the element type of another value."""
        assert like.dtype is not None, f"the type of '{like.name}' is not known"
        return self.const(np.asarray(value), like.dtype)

    def reduce_sum(
        self, x: ir.Value, axes: Sequence[int] | ir.Value | None, keepdims: bool
    ) -> ir.Value:
        """Sum over axes (None: all of them; a vector of none: nothing)."""
        keep = int(keepdims)
        if isinstance(axes, ir.Value):
            if self.opset >= 13:
                return self.ReduceSum(x, axes, keepdims=keep, noop_with_empty_axes=1)
            return self.ReduceSumTraining(
                x, axes, keepdims=keep, noop_with_empty_axes=1, _domain=MS
            )
        if axes is None:
            return self.ReduceSum(x, keepdims=keep)
        if not axes:
            return x
        if self.opset >= 13:
            return self.ReduceSum(x, self.ints(axes), keepdims=keep)
        return self.ReduceSum(x, axes=list(axes), keepdims=keep)

    def unsqueeze(self, x: ir.Value, axes: Sequence[int] | ir.Value) -> ir.Value:
        """Insert dimensions of size 1."""
        return self._axes_op("Unsqueeze", x, axes)

    def squeeze(self, x: ir.Value, axes: Sequence[int] | ir.Value) -> ir.Value:
        """Remove dimensions of size 1."""
        return self._axes_op("Squeeze", x, axes)

    def _axes_op(self, op_type: str, x: ir.Value, axes: Sequence[int] | ir.Value) -> ir.Value:
        emit = self.__getattr__(op_type)
        if isinstance(axes, ir.Value):
            return emit(x, axes)
        if self.opset >= 13:
            return emit(x, self.ints(axes))
        return emit(x, axes=list(axes))

    def slice(self, x: ir.Value, start: int, end: int = END, axis: int = 0) -> ir.Value:
        """What an axis has from one place to another."""
        if self.opset >= 10:
            places = [[start], [end], *([[axis]] if axis else [])]
            return self.Slice(x, *map(self.ints, places))
        return self.Slice(x, starts=[start], ends=[end], axes=[axis])

    def shape(self, x: ir.Value) -> ir.Value:
        """The shape of a value: a constant if it is known, else a Shape node."""
        if x.shape is not None and x.shape.is_static():
            return self.ints([d for d in x.shape if isinstance(d, int)])
        return self.Shape(x)

    def reshape_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """The value in the shape of another; at most one symbolic dimension stays a literal -1."""
        if like.shape is None:
            return self.reshape_exactly(x, self.Shape(like))
        dims = [d if isinstance(d, int) else -1 for d in like.shape]
        if 0 in dims:
            return self.filled(0, shape_of=like, like=x)
        if dims.count(-1) > 1:
            return self.reshape_exactly(x, self.Shape(like))
        return self.Reshape(x, self.ints(dims))

    def reshape_exactly(self, x: ir.Value, shape: ir.Value) -> ir.Value:
        """Reshape to sizes computed by the run, among which a 0 means 0."""
        if self.opset >= zeros.SINCE:
            return self.Reshape(x, shape, allowzero=1)
        result = self.Reshape(x, shape)
        zeros.mark_exact(self.nodes[-1])
        return result

    def unbroadcast(self, grad: ir.Value, to: ir.Value) -> ir.Value:
        """Sum a gradient back to the shape of the operand that was broadcast."""
        axes = _reduced_axes(grad.shape, to.shape)
        if axes is None:
            return self._unbroadcast_at_run_time(grad, to)
        if not axes:
            return grad
        assert grad.shape is not None and to.shape is not None
        lead = len(grad.shape) - len(to.shape)
        if axes == list(range(lead)):
            return self.reduce_sum(grad, axes, keepdims=False)
        summed = self.reduce_sum(grad, axes, keepdims=True)
        return self.squeeze(summed, list(range(lead))) if lead else summed

    def _unbroadcast_at_run_time(self, grad: ir.Value, to: ir.Value) -> ir.Value:
        target = self.Shape(to)
        axes, _ = self.BroadcastGradientArgs(target, self.Shape(grad), _domain=MS, _outputs=2)
        result = self.reshape_exactly(self.reduce_sum(grad, axes, keepdims=True), target)
        result.shape = to.shape
        return result

    def reduce(
        self,
        op_type: str,
        x: ir.Value,
        axes: Sequence[int] | ir.Value | None,
        keepdims: bool = True,
    ) -> ir.Value:
        """A mean, maximum, ... over axes (None: all of them; a vector of none: nothing)."""
        keep, emit = int(keepdims), self.__getattr__(op_type)
        if op_type == "ReduceSum":
            return self.reduce_sum(x, axes, keepdims)
        if isinstance(axes, ir.Value):
            return emit(x, axes, keepdims=keep, noop_with_empty_axes=1)
        if axes is None:
            return emit(x, keepdims=keep)
        if not axes:
            return x
        if self.opset >= 18:
            return emit(x, self.ints(axes), keepdims=keep)
        return emit(x, axes=list(axes), keepdims=keep)

    def cast(self, x: ir.Value, like: ir.Value | DataType) -> ir.Value:
        """The value in an element type; itself if it has that type already."""
        dtype = like.dtype if isinstance(like, ir.Value) else like
        return x if x.dtype == dtype else self.Cast(x, to=dtype)

    def expand(self, x: ir.Value, to: ir.Value) -> ir.Value:
        """The value copied to the shape of another."""
        if self.opset >= 8:
            return self.Expand(x, self.shape(to))
        return self.Add(x, self.Mul(self.cast(to, x), self.scalar(0, x)))

    def filled(self, value: float, shape_of: ir.Value, like: ir.Value) -> ir.Value:
        """A constant in the shape of one value and the element type of another."""
        return self.expand(self.scalar(value, like), shape_of)

    def where(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """One number or another, also where there is no Where."""
        if self.opset >= 9:
            return self.Where(condition, yes, no)
        chosen, other = self.cast(condition, yes), self.cast(self.Not(condition), no)
        return self.Add(self.Mul(chosen, yes), self.Mul(other, no))

    def sign(self, x: ir.Value) -> ir.Value:
        """-1, 0 or 1, also where there is no Sign."""
        if self.opset >= 9:
            return self.Sign(x)
        zero = self.scalar(0, x)
        return self.Sub(self.cast(self.Greater(x, zero), x), self.cast(self.Less(x, zero), x))

    def equal(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a == b for numbers of any type, also where Equal compares whole numbers only."""
        if self.opset >= 11:
            return self.Equal(a, b)
        return self.Not(self.Or(self.Less(a, b), self.Greater(a, b)))

    def rows(self, x: ir.Value) -> ir.Value:
        """The value as [N, C, everything else]."""
        return self.folded(x, [0, 0, -1])

    def folded(self, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        """The value in sizes among which 0 is that of x, and -1 what is left of x behind these."""
        if x.shape is None or not x.shape.is_static() or 0 not in x.shape:
            return self.Reshape(x, self.ints(dims))
        # inference does not find out what is left of nothing
        whole = x.shape.numpy()
        left = math.prod(n for n, dim in itertools.zip_longest(whole, dims) if dim != 0)
        rest = left // math.prod(dim for dim in dims if dim > 0)
        sizes = {0: whole, -1: [rest] * len(dims)}
        exact = [sizes[dim][i] if dim in sizes else dim for i, dim in enumerate(dims)]
        return self.reshape_exactly(x, self.ints(exact))

    def add(self, *terms: ir.Value | None) -> ir.Value | None:
        """The sum of what is there, None if nothing is."""
        present = [term for term in terms if term is not None]
        if len(present) < 2:
            return present[0] if present else None
        return self.Sum(*present)


def _attribute(name: str, value: Any) -> ir.Attr:
    """A value as an attribute; what most are is told by its type alone, which is faster."""
    make = _PLAIN.get(type(value))
    return ir.convenience.convert_attribute(name, value) if make is None else make(name, value)


def _fresh(graph: ir.Graph, prefix: str) -> str:
    """A prefix that no other builder of the graph has; a node may be differentiated twice."""
    used: dict[str, int] | None = graph.meta.get(_PREFIXES)
    if used is None:
        used = graph.meta[_PREFIXES] = dict.fromkeys(_prefixes(graph), 1)
    if not prefix:
        return prefix
    found = prefix
    while found in used:
        used[prefix] += 1
        found = f"{prefix.removesuffix('/')}{used[prefix]}/"
    used[found] = 1
    return found


def _prefixes(graph: ir.Graph) -> Iterator[str]:
    """What names of a graph begin with; one out of a file may have been differentiated before."""
    for name in itertools.chain(value_names(graph), (node.name or "" for node in all_nodes(graph))):
        for slash in re.finditer("/", name):
            yield name[: slash.end()]


def _reduced_axes(grad: ir.Shape | None, to: ir.Shape | None) -> list[int] | None:
    """Axes of a gradient to sum over, or None if only a run can tell."""
    if grad is None or to is None or len(grad) < len(to):
        return None
    lead = len(grad) - len(to)
    axes = list(range(lead))
    for index, want in enumerate(to):
        have = grad[lead + index]
        if have == 1 or (isinstance(want, int) and want != 1):
            continue
        if want == 1:
            axes.append(lead + index)
        elif isinstance(have, int) or have.value is None or have != want:
            return None
    return axes
