"""How long it takes until a model can be trained: preparing, differentiating and planning it.

python benchmarks/planning.py [--nodes 100 1000 10000] [--save]

The models are chains of MatMul, Add, Relu and LayerNormalization with small weights, so that the
work is that of the graph alone. Nothing is run; the time of a node has to be the same in all sizes.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxtrain import Trainer
from onnxtrain.gradients.api import gradient_graph
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from report import append, table

WIDTH = 8
OPSET = 21


def chain(nodes: int) -> ir.Model:
    """A network of about so many nodes, every fourth of them a LayerNormalization."""
    rng = np.random.default_rng(0)
    x = ir.val("x", ir.DataType.FLOAT, ["batch", WIDTH])
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": OPSET}, name="chain")

    def weight(name: str, *shape: int) -> ir.Value:
        array = rng.normal(size=shape).astype(np.float32)
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        graph.register_initializer(value)
        return value

    def append_node(op_type: str, *inputs: ir.Value) -> ir.Value:
        node = ir.node(op_type, list(inputs), name=f"{op_type}_{len(graph)}")
        node.outputs[0].name = f"{node.name}_out"
        graph.append(node)
        return node.outputs[0]

    y = x
    for block in range(max(1, nodes // 4)):
        y = append_node("MatMul", y, weight(f"{block}.weight", WIDTH, WIDTH))
        y = append_node("Add", y, weight(f"{block}.bias", WIDTH))
        y = append_node("Relu", y)
        scale, shift = weight(f"{block}.scale", WIDTH), weight(f"{block}.shift", WIDTH)
        y = append_node("LayerNormalization", y, scale, shift)
    graph.outputs.append(y)
    return ir.Model(graph, ir_version=10)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time that a call takes, and what it gives."""
    gc.collect()
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def measure(nodes: int) -> dict[str, object]:
    """Seconds to prepare, to differentiate, to plan the result, and for a whole Trainer."""
    model = chain(nodes)
    proto = ir.to_proto(model)
    weights = list(model.graph.initializers)
    preparing, prepared = timed(lambda: prepare(model))
    outputs = [str(value.name) for value in prepared.graph.outputs]
    gradient, made = timed(lambda: gradient_graph(prepared, weights, outputs))
    planning, session = timed(lambda: InferenceSession(made.model))

    def trainer() -> Trainer:
        built = Trainer(proto, loss="mse", device="cpu")
        built.module.runner(training=True)
        return built

    whole, _ = timed(trainer)
    count = len(model.graph)
    return {
        "nodes": count,
        "weights": len(weights),
        "steps": len(session.plan.block.steps),
        "prepare s": preparing,
        "gradient s": gradient,
        "session s": planning,
        "trainer s": whole,
        "trainer ms per node": 1e3 * whole / count,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10000])
    arguments.add_argument("--save", action="store_true", help="append to results/planning.csv")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    measure(8)  # so that registries and schemas are there
    rows = [measure(nodes) for nodes in options.nodes]
    print(table(rows))
    if options.save:
        print(append("planning", rows, "cpu"))


if __name__ == "__main__":
    main()
