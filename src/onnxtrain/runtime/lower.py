"""Graph to plan: the one place where graphs and kernels meet.

Dispatch happens here, once. Every value is placed on the host or on the device, host inputs
become literals where they are constant, and subgraphs become nested functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.errors import NodeError, NoKernelError
from onnxtrain.graph.bindings import bound_types, opset_of
from onnxtrain.graph.zeros import is_marked_exact
from onnxtrain.kernels.registry import Kernel, KernelRegistry
from onnxtrain.runtime import copies, lifetimes, placement
from onnxtrain.runtime.check import check
from onnxtrain.runtime.names import Names
from onnxtrain.runtime.order import scheduled
from onnxtrain.runtime.places import by_place
from onnxtrain.runtime.plan import Argument, Block, Plan, Step
from onnxtrain.runtime.render import attribute_text, host_literal, is_default, parameter
from onnxtrain.runtime.resources import RESOURCE_NAMES, is_wanted, resource_text
from onnxtrain.types import CPU, Provider, dtype_name, op_name, type_string


@dataclasses.dataclass(frozen=True)
class LowerOptions:
    """How a graph is lowered.

    Attributes:
        provider: Where kernels run.
        deterministic: Whether kernels must give bit-identical results from run to run.
        reuse: Whether outputs may take over the storage of dying inputs.
    """

    provider: Provider = CPU
    deterministic: bool = False
    reuse: bool = True


def lower(
    model: ir.Model,
    registry: KernelRegistry,
    options: LowerOptions | None = None,
    state: Collection[str] = (),
    kernels: dict[ir.Node, Kernel | None] | None = None,
) -> Plan:
    """Plan a model whose types are inferred and whose functions are inlined.

    Args:
        model: The model.
        registry: Where kernels are looked up.
        options: Provider and modes.
        state: Graph inputs and initializers that are bound tensors instead of arguments.
        kernels: Kernels of nodes that were looked up already.

    Raises:
        NoKernelError: if some nodes have no kernel; the message has all of them.
    """
    lowering = _Lowering(model, registry, options or LowerOptions(), frozenset(state))
    lowering.kernels.update(kernels or {})
    return lowering.plan()


class _Lowering:
    """The work of one call of ``lower``."""

    def __init__(
        self,
        model: ir.Model,
        registry: KernelRegistry,
        options: LowerOptions,
        state: frozenset[str],
    ) -> None:
        self.model = model
        self.registry = registry
        self.options = options
        self.names = Names()
        for name in RESOURCE_NAMES:
            self.names.fresh(name)
        self.functions: dict[str, object] = {}
        self.constants: dict[str, tuple[object, bool]] = {}
        self.state = {name: self.names.fresh(f"s_{name}") for name in sorted(state)}
        self.host: set[ir.Value] = set()
        self.moved: dict[tuple[ir.Value, bool], str] = {}
        self.handed: dict[ir.Value, ir.Value] = {}
        self.values: dict[str, ir.Value] = {}
        self.missing: list[str] = []
        self.kernels: dict[ir.Node, Kernel | None] = {}

    def plan(self) -> Plan:
        graph = self.model.graph
        for value in graph.inputs:
            if placement.is_text(value) or self._only_host_uses(value):
                self.host.add(value)
        inputs = tuple(
            self._argument(v)
            for v in graph.inputs
            if v.name not in self.state and v.name not in graph.initializers
        )
        block = self.block(graph, "step", tuple(a.local for a in inputs))
        if self.missing:
            raise NoKernelError("\n".join(dict.fromkeys(self.missing)))
        fixed = {*block.parameters, *self.constants, *self.state.values()}
        copy = self.function(copies.declared(copies.copy))
        storages = lifetimes.own_outputs(block, fixed, copy)
        reuse, kept = self.options.reuse, set(self.state.values())
        state = kept if reuse and self.options.provider is CPU else None
        lifetimes.assign(block, fixed, self.values, storages=storages, reuse=reuse, state=state)
        outputs = tuple(
            dataclasses.replace(self._argument(v), local=local)
            for v, local in zip(graph.outputs, block.results, strict=True)
        )
        plan = Plan(inputs, outputs, block, self.functions, self.constants, self.state)  # type: ignore[arg-type]
        check(plan)
        return plan

    def block(self, graph: ir.Graph, name: str, parameters: tuple[str, ...]) -> Block:
        """A function for a graph; nested graphs see the names of the outer ones."""
        steps = self._steps(graph)
        results = tuple(self._read(value, on_host=None, steps=steps) for value in graph.outputs)
        return Block(name, parameters, steps, results)

    def _steps(self, graph: ir.Graph) -> list[Step]:
        steps: list[Step] = []
        for node, kernel in self._kernels(graph):
            self._node(node, kernel, steps)
        return steps

    def _kernels(self, graph: ir.Graph) -> list[tuple[ir.Node, Kernel]]:
        """Live nodes with their kernels, mutations after the last read of what they overwrite."""
        found = []
        for node in graph:
            kernel = self._resolve(node, self.options.provider)
            if kernel is not None:
                found.append((node, kernel))
        return scheduled(found, graph, self.state)

    def _resolve(self, node: ir.Node, provider: Provider) -> Kernel | None:
        kernel = self._resolve_quietly(node) if provider is self.options.provider else None
        if kernel is None:
            version = opset_of(node, self.model.graph.opset_imports)
            types = bound_types(node, version)
            try:
                kernel = self.registry.resolve(
                    node.domain, node.op_type, version, types, provider, node.name or ""
                )
            except NoKernelError as error:
                self.missing.append(str(error))
                return None
        if _too_many_inputs(node, kernel):
            raise NodeError(
                f"{op_name(node.domain, node.op_type)} takes at most {len(kernel.inputs)} inputs, "
                f"node '{node.name}' has {len(node.inputs)}"
            )
        return kernel

    def _node(self, node: ir.Node, kernel: Kernel, steps: list[Step]) -> None:
        on_host = self.options.provider is not CPU and self._runs_on_host(node, kernel)
        if on_host:
            kernel = self._resolve(node, CPU) or kernel
        reads, args = self._arguments(node, kernel, on_host, steps)
        keywords = self._keywords(node, kernel, on_host)
        nested = self._subgraphs(node, kernel)
        keywords |= {key: block.name for key, block in nested.items()}
        outputs = []
        for index, value in enumerate(node.outputs):
            if on_host or index in kernel.host_out:
                self.host.add(value)
            outputs.append(self._local(value) if is_wanted(value) else None)
        steps.append(
            Step(
                kernel,
                self._function_for(node, kernel),
                tuple(args),
                tuple(reads),
                tuple(outputs),
                keywords,
                node.name or node.op_type,
                _comment(node),
                nested=tuple(nested.values()),
            )
        )

    def _arguments(
        self, node: ir.Node, kernel: Kernel, on_host: bool, steps: list[Step]
    ) -> tuple[list[str | None], list[str]]:
        reads: list[str | None] = []
        args: list[str] = []
        for index, value in enumerate(node.inputs):
            literal = bool(kernel.host) and kernel.input_name(index) in kernel.host
            if value is None:
                reads.append(None)
                args.append("None")
            elif literal and _is_constant(value, self.state):
                reads.append(None)
                args.append(self._host_constant(value))
            else:
                local = self._read(value, on_host=literal or on_host, steps=steps)
                reads.append(local)
                args.append(f"{local}.tolist()" if literal else local)
        return reads, args

    def _keywords(self, node: ir.Node, kernel: Kernel, on_host: bool) -> dict[str, str]:
        keywords: dict[str, str] = {}
        for attribute in node.attributes.data.values():
            key = parameter(attribute.name)
            if key not in kernel.attributes and not kernel.any_attribute:
                raise NoKernelError(
                    f"the kernel of {op_name(node.domain, node.op_type)} does not know attribute "
                    f"'{attribute.name}' of node '{node.name}'\n  have  {kernel.describe()}"
                )
            if attribute.type == ir.AttributeType.GRAPH:
                continue
            if not is_default(attribute, kernel.attributes.get(key)):
                keywords[key] = self._attribute(attribute, f"{node.name}_{key}", on_host)
        if is_marked_exact(node):
            keywords["allowzero"] = "1"
        for resource in kernel.needs:
            keywords[resource] = resource_text(
                resource,
                node,
                on_host=on_host,
                opset=opset_of(node, self.model.graph.opset_imports),
                deterministic=self.options.deterministic,
            )
        if kernel.updates:
            bound = all(self._is_state(node, kernel, name) for name in kernel.updates)
            keywords["update"] = repr(bound)
        return keywords

    def _subgraphs(self, node: ir.Node, kernel: Kernel) -> dict[str, Block]:
        """A function for each subgraph of a node; says where the node's outputs are."""
        graphs = placement.subgraphs(node)
        if not graphs:
            return {}
        outer, bodies = self.moved, {}
        for key, graph in graphs.items():
            self.host |= placement.host_parameters(kernel, graph)
            if not graph.inputs:
                self.handed.update(zip(graph.outputs, node.outputs, strict=False))
            self.moved = dict(outer)
            bodies[key] = (self._steps(graph), self.moved)
        places = placement.result_places(kernel, graphs, self.host)
        blocks = {}
        for key, graph in graphs.items():
            steps, self.moved = bodies[key]
            reads = zip(graph.outputs, places, strict=True)
            results = tuple(self._read(v, on_host=host, steps=steps) for v, host in reads)
            parameters = tuple(self._local(value) for value in graph.inputs)
            name = self.names.fresh(f"{node.name}_{key}")
            blocks[key] = Block(name, parameters, steps, results)
        self.moved = outer
        outputs = zip(node.outputs, places[len(kernel.host_results) :], strict=False)
        self.host |= {value for value, on_host in outputs if on_host}
        return blocks

    def _attribute(self, attribute: ir.Attr, name: str, on_host: bool) -> str:
        text = attribute_text(attribute)
        if text is not None:
            return text
        local = self.names.fresh(f"a_{name}")
        self.constants[local] = (
            attribute.value,
            on_host or attribute.type != ir.AttributeType.TENSOR,
        )
        return local

    def _is_state(self, node: ir.Node, kernel: Kernel, parameter: str) -> bool:
        index = kernel.inputs.index(parameter)
        value = node.inputs[index] if index < len(node.inputs) else None
        return value is None or value.name in self.state

    def _runs_on_host(self, node: ir.Node, kernel: Kernel) -> bool:
        """Whether a node reads or writes text, or only continues a computation on the host."""
        if placement.subgraphs(node):
            return False
        if any(placement.is_text(value) for value in (*node.inputs, *node.outputs)):
            return True
        tensors = [
            value
            for index, value in enumerate(node.inputs)
            if value is not None
            and kernel.input_name(index) not in kernel.host
            and not _is_constant(value, self.state)
        ]
        if kernel.mutates or kernel.updates:
            return False
        if tensors:
            return all(value in self.host for value in tensors)
        return all(self._only_host_uses(value) for value in node.outputs)

    def _only_host_uses(self, value: ir.Value) -> bool:
        uses = value.uses()
        if value.is_graph_output():
            outer = self.handed.get(value)
            return outer is not None and not uses and self._only_host_uses(outer)
        if not uses:
            return False
        for node, index in uses:
            kernel = self._resolve_quietly(node)
            if kernel is None or _too_many_inputs(node, kernel):
                return False
            if kernel.input_name(index) not in kernel.host:
                return False
        return True

    def _resolve_quietly(self, node: ir.Node) -> Kernel | None:
        if node not in self.kernels:
            version = opset_of(node, self.model.graph.opset_imports)
            types = bound_types(node, version)
            self.kernels[node] = self.registry.find(
                node.domain, node.op_type, version, types, self.options.provider
            )
        return self.kernels[node]

    def _read(self, value: ir.Value, *, on_host: bool | None, steps: list[Step]) -> str:
        """A name for a value where it is wanted (None: wherever it is), moved there if need be."""
        if value.name in self.state and (value.is_graph_input() or value.is_initializer()):
            return self.state[value.name]
        if _is_constant(value, self.state):
            return self._constant(value, bool(on_host))
        local = self._local(value)
        is_host = value in self.host
        if self.options.provider is CPU or on_host is None or is_host == on_host:
            return local
        if placement.is_text(value):
            return local
        key = (value, on_host)
        if key not in self.moved:
            move = copies.declared(copies.to_host if on_host else copies.to_device)
            moved = self.names.fresh(f"{local}_{'host' if on_host else 'device'}")
            keywords = {} if on_host else {"device": "device"}
            steps.append(
                Step(move, self.function(move), (local,), (local,), (moved,), keywords, moved)
            )
            self.moved[key] = moved
        return self.moved[key]

    def _constant(self, value: ir.Value, on_host: bool) -> str:
        on_host = on_host and self.options.provider is not CPU
        local = self.names.of((value, on_host), value.name or "c", "h_" if on_host else "c_")
        self.constants[local] = (value.const_value, on_host)
        self.values[local] = value
        return local

    def _host_constant(self, value: ir.Value) -> str:
        assert value.const_value is not None
        data = value.const_value.numpy().tolist()
        text = host_literal(data)
        if text is None:
            text = self.names.of((value, "literal"), value.name or "c", "l_")
            self.constants[text] = (data, True)
        return text

    def _local(self, value: ir.Value) -> str:
        local = self.names.of(value, value.name or "v")
        self.values[local] = value
        return local

    def _argument(self, value: ir.Value) -> Argument:
        return Argument(
            value.name or "", self._local(value), value.type, value.shape, value in self.host
        )

    def _function_for(self, node: ir.Node, kernel: Kernel) -> str:
        """The kernel's name, or that of a version which moves strings by their places."""
        if not placement.moves_text(node, kernel):
            return self.function(kernel)
        texts = tuple(placement.is_text(value) for value in node.outputs)
        name = self.names.of((kernel.fn, texts), kernel.fn.__name__, "text_")
        self.functions[name] = by_place(kernel.fn, texts, single=kernel.outputs == 1)
        return name

    def function(self, kernel: Kernel) -> str:
        """The name under which a program calls a kernel."""
        name = self.names.of(kernel.fn, kernel.fn.__name__, "k_")
        self.functions[name] = kernel.fn
        return name


def _is_constant(value: ir.Value, state: Collection[str]) -> bool:
    return value.is_initializer() and value.const_value is not None and value.name not in state


def _too_many_inputs(node: ir.Node, kernel: Kernel) -> bool:
    return kernel.variadic is None and len(node.inputs) > len(kernel.inputs)


def _comment(node: ir.Node) -> str:
    first = node.outputs[0] if node.outputs else None
    if first is None or first.type is None:
        return node.op_type
    if not isinstance(first.type, ir.TensorType):
        return f"{node.op_type} -> {type_string(first.type)}"
    dims = "?" if first.shape is None else ",".join([str(d) for d in first.shape])
    return f"{node.op_type} -> {dtype_name(first.type.dtype)}[{dims}]"
