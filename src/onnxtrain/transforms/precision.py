"""Mixed precision: a forward graph computes in 16 bits, its weights stay float32.

Every weight has one Cast in front of all that use it, so that gradients come back through it and
updates are made in float32. Losses, exponentials and long sums stay in float32, and so does what
is computed from whole numbers alone (positions, masks). Inputs and outputs of the model keep their
types. Bodies of If, Loop and Scan stay in float32: what they carry around adds up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of, paired
from onnxtrain.graph.bodies import subgraphs
from onnxtrain.graph.edit import fresh_name, take_over, value_names
from onnxtrain.transforms import precision_table as table
from onnxtrain.transforms.weights.frequencies import counted_values, is_frequencies
from onnxtrain.types import FLOATS, MS, ONNX, DataType, dtype_name

PRECISIONS = {"fp32": None, "bf16": DataType.BFLOAT16, "fp16": DataType.FLOAT16}
"""What ``precision=`` may be, and the type in which a model then computes."""


def narrow_type(precision: str) -> DataType | None:
    """The type in which a model computes, None if it is its own.

    Raises:
        OptionError: if there is no such precision.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    return PRECISIONS[precision]


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """How a graph is put into mixed precision.

    Attributes:
        dtype: bfloat16 or float16.
        loss_nodes: Names of the nodes of the loss, which stay in float32. Without them those
            behind the last products are, if the first output is a scalar.
    """

    dtype: DataType
    loss_nodes: frozenset[str] = frozenset()

    def __call__(self, model: ir.Model) -> None:
        """Rewrite a prepared model, in place."""
        _Narrowing(model, self.dtype, self.loss_nodes).run()


class _Narrowing:
    """The work of one call."""

    def __init__(self, model: ir.Model, dtype: DataType, loss_nodes: Collection[str]) -> None:
        self.graph = model.graph
        self.dtype = dtype
        self.loss = {node for node in self.graph if node.name in loss_nodes}
        self.loss = self.loss or table.tail(self.graph)
        self.taken = value_names(self.graph)
        counted = counted_values(self.graph)
        self.learned = {v for v in self._given() if _is_wide(v) and _is_learned(v, counted)}
        self.narrow: dict[ir.Value, ir.Value] = {}
        """float32 values and what stands for them in 16 bits."""
        self.wide: dict[ir.Value, ir.Value] = {}
        """Values that became narrow and what stands for them in float32."""
        self.changed: set[ir.Value] = set()
        self.huge = {v for v in self._given() if self._is_huge(v)}
        self.in_loss: set[ir.Value] = set()

    def run(self) -> None:
        for node in list(self.graph):
            self._visit(node)
        for index, value in enumerate(self.graph.outputs):
            if value in self.changed:
                self._return_wide(index, value)

    def _given(self) -> Iterator[ir.Value]:
        yield from self.graph.inputs
        yield from self.graph.initializers.values()

    def _is_huge(self, value: ir.Value) -> bool:
        """Whether a constant has numbers that are infinite in 16 bits."""
        tensor = value.const_value
        if tensor is None or not _is_wide(value) or not tensor.size:
            return False
        return bool(np.abs(tensor.numpy()).max() > _most(self.dtype))

    def _visit(self, node: ir.Node) -> None:
        learned = any(v in self.learned for v in node.inputs)
        if learned:  # whole numbers and conditions say nothing of what they were made of
            self.learned |= {v for v in node.outputs if v.dtype is None or v.dtype in FLOATS}
        if (not learned or node.op_type == "Where") and any(v in self.huge for v in node.inputs):
            self.huge |= set(node.outputs)
        self._note_loss(node)
        if any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
            self.learned |= set(node.outputs)
            self._widen_bodies(node)
            self._widen_inputs(node)
        elif node.domain == ONNX and node.op_type in ("Cast", "CastLike"):
            self._cast_node(node)
        elif table.is_in(node, table.READERS):
            return
        elif learned and table.is_in(node, table.CROSS_ENTROPIES) and self._takes_scores(node):
            self._narrow_scores(node)
        elif learned and self._is_narrow(node):
            self._narrow_node(node)
        else:
            self._widen_inputs(node)

    def _note_loss(self, node: ir.Node) -> None:
        """Everything behind a loss belongs to the loss."""
        begins = node in self.loss or table.is_in(node, table.CROSS_ENTROPIES)
        if begins or any(v in self.in_loss for v in node.inputs):
            self.in_loss |= set(node.outputs)

    def _is_narrow(self, node: ir.Node) -> bool:
        """Whether a node computes in 16 bits."""
        if not self._fits_schema(node):
            return False
        if any(v in self.in_loss for v in node.outputs):
            floats = [v for v in self._convertible(node) if v in self.learned]
            return table.is_in(node, table.MOVERS) and self.changed.issuperset(floats)
        if table.is_in(node, table.COMPUTE):
            return True
        if table.is_in(node, table.FOLLOWERS_IN_ATTENTION):
            return self._follows(node) and table.weights_values(node)
        return table.is_in(node, table.FOLLOWERS) and self._follows(node)

    def _follows(self, node: ir.Node) -> bool:
        """Whether some input is narrow, or those that carry learned values can be either."""
        floats = [v for v in self._convertible(node) if v in self.learned or v in self.changed]
        if any(v in self.changed for v in floats):
            return True
        return bool(floats) and all(v.producer() is None for v in floats)

    def _convertible(self, node: ir.Node) -> list[ir.Value]:
        return [node.inputs[index] for index in self._places(node)]  # type: ignore[misc]

    def _places(self, node: ir.Node) -> list[int]:
        """Inputs that are narrow where the node is."""
        kept = table.KEPT_INPUTS.get(node.op_type, frozenset())
        pairs = _formals(node, self.graph.opset_imports)
        return [
            index
            for index, (formal, value) in enumerate(pairs)
            if value is not None
            and index not in kept
            and _is_variable(formal)
            and (_is_wide(value) or value in self.changed)
        ]

    def _fits_schema(self, node: ir.Node) -> bool:
        """Whether the operator has a form of 16 bits; lists of types rarely have bfloat16."""
        version = opset_of(node, self.graph.opset_imports)
        schema = schemas.get(node.domain, node.op_type, version)
        if schema is None or version < table.SPLIT_TYPES_SINCE.get(node.op_type, 0):
            return False
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        pairs = list(_formals(node, self.graph.opset_imports))
        names = {pairs[index][0].type_str for index in self._places(node)}
        return bool(names) and all("tensor(float16)" in allowed[name] for name in names)

    def _narrow_node(self, node: ir.Node) -> None:
        pairs = list(_formals(node, self.graph.opset_imports))
        places = self._places(node)
        names = {pairs[index][0].type_str for index in places}
        for index in places:
            node.replace_input_with(index, self._narrowed(node.inputs[index]))  # type: ignore[arg-type]
        schema = schemas.get(node.domain, node.op_type, opset_of(node, self.graph.opset_imports))
        assert schema is not None
        for formal, value in paired(schema.outputs, node.outputs):
            if formal.type_str in names and _is_wide(value):
                value.type = ir.TensorType(self.dtype)
                self.changed.add(value)

    def _widen_inputs(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value in self.changed:
                node.replace_input_with(index, self._widened(value))

    def _widen_bodies(self, node: ir.Node) -> None:
        """Give bodies the float32 form of what they take from outside of them."""
        for attribute in node.attributes.values():
            if attribute.type != ir.AttributeType.GRAPH:
                continue
            body = attribute.as_graph()
            for graph in (body, *(inner for _, inner in subgraphs(body))):
                for inner in graph:
                    self._widen_inputs(inner)
                for index, value in enumerate(graph.outputs):
                    if value in self.changed:
                        graph.outputs[index] = self._widened(value)

    def _cast_node(self, node: ir.Node) -> None:
        """A Cast to float32 has nothing to do if users of its result can take its input as it is.

        CastLike becomes a Cast to the type that it had, whatever the value that it follows becomes.
        """
        value, result = node.inputs[0], node.outputs[0]
        if value is None or result.dtype is None:
            return
        if node.op_type == "CastLike":
            node = self._cast(value, result.dtype, result).producer()  # type: ignore[assignment]
            take_over(result, node.outputs[0])
            result = node.outputs[0]
        if value.dtype == self.dtype and value not in self.changed and _is_wide(result):
            self.narrow[result] = value
        elif value in self.changed and _is_wide(result) and not result.is_graph_output():
            ir.convenience.replace_all_uses_with(result, value)

    def _takes_scores(self, node: ir.Node) -> bool:
        """Whether the scores are narrow already; weights of classes stay as precise as they are."""
        weights = node.inputs[2] if len(node.inputs) > 2 else None
        return node.inputs[0] in self.changed and weights is None and node.domain in (ONNX, MS)

    def _narrow_scores(self, node: ir.Node) -> None:
        """Let a cross entropy read narrow scores and compute in float32."""
        if node.domain == MS:
            node.attributes["output_type"] = ir.AttrInt64("output_type", int(DataType.FLOAT))
            return
        attributes = {"reduction": node.attributes.get_string("reduction", "mean")}
        inputs = [*node.inputs[:2]]
        if "ignore_index" in node.attributes:
            ignored = node.attributes["ignore_index"].as_int()
            inputs += [None, self._constant(node, np.asarray(ignored, np.int64))]
        new = ir.node(
            "SoftmaxCrossEntropyLossInternal",
            inputs,
            {**attributes, "output_type": int(DataType.FLOAT)},
            domain=MS,
            num_outputs=2,
            name=node.name,
        )
        self.graph.insert_before(node, new)
        self.graph.opset_imports.setdefault(MS, 1)
        new.outputs[1].name = self._fresh(f"{node.outputs[0].name}_log_prob")
        new.outputs[1].type = ir.TensorType(DataType.FLOAT)
        assert node.inputs[0] is not None
        new.outputs[1].shape = node.inputs[0].shape
        for old, value in zip(node.outputs, new.outputs, strict=False):
            if old.name:
                self._take_over(old, value)
        self.graph.remove(node, safe=True)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        take_over(old, new)
        for known in (self.learned, self.in_loss):
            if old in known:
                known.add(new)

    def _constant(self, node: ir.Node, array: np.ndarray) -> ir.Value:  # type: ignore[type-arg]
        tensor = ir.tensor(array)
        name = self._fresh(f"{node.name}_ignore_index")
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype))
        value.shape = ir.Shape(array.shape)
        self.graph.register_initializer(value)
        return value

    def _narrowed(self, value: ir.Value) -> ir.Value:
        """A value in 16 bits."""
        if value in self.changed:
            return value
        if value not in self.narrow:
            if value.is_initializer() and value.const_value is not None:
                found = self._narrow_constant(value)
            else:
                found = self._cast(self._limited(value), self.dtype, value)
            self.narrow[value], self.wide[found] = found, value
            self.changed.add(found)
        return self.narrow[value]

    def _narrow_constant(self, value: ir.Value) -> ir.Value:
        """A constant in 16 bits; what is too large for them becomes large, not infinite."""
        assert value.const_value is not None
        data = value.const_value.numpy()
        most = _most(self.dtype)
        data = np.where(np.isfinite(data) & (np.abs(data) > most), np.sign(data) * most / 2, data)
        name = self._fresh(f"{value.name}_{dtype_name(self.dtype)}")
        tensor = ir.Tensor(data.astype(self.dtype.numpy()), self.dtype, name=name)
        new = ir.Value(name=name, type=ir.TensorType(self.dtype), shape=value.shape)
        new.const_value = tensor
        self.graph.register_initializer(new)
        return new

    def _limited(self, value: ir.Value) -> ir.Value:
        """A mask that was computed holds the most negative float32, which must stay finite."""
        if value not in self.huge:
            return value
        bounds = []
        for sign in (-1, 1):
            tensor = ir.tensor(np.asarray(sign * _most(self.dtype) / 2, np.float32))
            name = self._fresh(f"{value.name}_limit")
            bound = ir.Value(name=name, const_value=tensor, type=ir.TensorType(DataType.FLOAT))
            bound.shape = ir.Shape([])
            self.graph.register_initializer(bound)
            bounds.append(bound)
        node = ir.node("Clip", [value, *bounds], name=f"{value.name}_Clip")
        return self._insert(node, value, f"{value.name}_limited", DataType.FLOAT)

    def _widened(self, value: ir.Value) -> ir.Value:
        """A value that became narrow, in float32."""
        if value not in self.wide:
            self.wide[value] = self._cast(value, DataType.FLOAT, value)
            self.narrow[self.wide[value]] = value
            if value in self.learned:
                self.learned.add(self.wide[value])
        return self.wide[value]

    def _cast(self, value: ir.Value, to: DataType, named: ir.Value) -> ir.Value:
        node = ir.node("Cast", [value], {"to": to}, name=f"{named.name}_Cast_{dtype_name(to)}")
        return self._insert(node, value, f"{named.name}_{dtype_name(to)}", to)

    def _insert(self, node: ir.Node, value: ir.Value, name: str, dtype: DataType) -> ir.Value:
        """Put a node of one output right behind what makes a value."""
        result = node.outputs[0]
        result.name = self._fresh(name)
        result.type, result.shape = ir.TensorType(dtype), value.shape
        producer = value.producer()
        if producer is not None:
            self.graph.insert_after(producer, node)
        else:
            self.graph.insert_before(next(iter(self.graph)), node)
        if value in self.learned:
            self.learned.add(result)
        return result

    def _return_wide(self, index: int, value: ir.Value) -> None:
        """Let the model return what it declares, under the name that it declares."""
        wide, name = self._widened(value), value.name
        value.name = self._fresh(f"{name}_{dtype_name(self.dtype)}")
        wide.name = name
        self.graph.outputs[index] = wide

    def _fresh(self, wanted: str) -> str:
        return fresh_name(wanted, self.taken)


Formal = onnx.defs.OpSchema.FormalParameter


def _formals(node: ir.Node, imports: dict[str, int]) -> Iterator[tuple[Formal, ir.Value | None]]:
    """Inputs with their formal parameters; none where there is no schema."""
    schema = schemas.get(node.domain, node.op_type, opset_of(node, imports))
    if schema is not None and schema.inputs:
        for index, value in enumerate(node.inputs):
            yield schema.inputs[min(index, len(schema.inputs) - 1)], value


def _is_variable(formal: Formal) -> bool:
    """Whether a schema leaves the type of a parameter open."""
    return formal.is_homogeneous and "(" not in formal.type_str


def _is_wide(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype == DataType.FLOAT


def _is_learned(value: ir.Value, counted: Collection[ir.Value]) -> bool:
    """Whether a given value is data or a weight: numbers and frequencies of positions are not."""
    if value.const_value is not None and len(value.const_value.shape) < 2:
        return False
    return not is_frequencies(value, counted)


def _most(dtype: DataType) -> float:
    """The largest number of a type."""
    return 65504.0 if dtype == DataType.FLOAT16 else float(np.float32(3.3895314e38))
