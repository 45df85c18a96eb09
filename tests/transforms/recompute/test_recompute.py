"""What the backward pass computes again: which values, where, and that results stay the same."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

from onnxtrain import Trainer
from onnxtrain.errors import OptionError
from onnxtrain.transforms.recompute import CHEAP, LAYERS, recompute
from onnxtrain.transforms.recompute.again import SUFFIX
from onnxtrain.transforms.recompute.forward import Forward, trained_inputs
from onnxtrain.transforms.recompute.segments import segments
from onnxtrain.transforms.training_graph import FLAG_SUFFIX

WIDTH, LAYERS_IN_ALL = 16, 8
QUICK_GELU = "s{0} = Sigmoid(h{0}) \n m{0} = Mul(s{0}, h{0})"


def parsed(nodes: str, weights: dict[str, np.ndarray], **constants: np.ndarray) -> onnx.ModelProto:
    head = f"g (float[N,{WIDTH}] x) => (float[N,3] y)"
    text = f'<ir_version: 8, opset_import: ["": 17]> {head} {{{nodes}}}'
    model = onnx.parser.parse_model(text)
    given = {**weights, **constants}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in given.items())
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.2, shape).astype(np.float32)


def residual(middle: str = QUICK_GELU, **constants: np.ndarray) -> onnx.ModelProto:
    """Layers h + f(h W)V, and a last product."""
    weights, text = {"last": drawn(WIDTH, 3)}, "h0 = Identity(x)"
    for n in range(LAYERS_IN_ALL):
        weights |= {f"w{n}": drawn(WIDTH, 64) + n / 100, f"v{n}": drawn(64, WIDTH) - n / 100}
        inner = middle.replace("h{0}", f"p{n}").format(n)
        text += f"\n p{n} = MatMul(h{n}, w{n}) \n {inner} \n q{n} = MatMul(m{n}, v{n})"
        text += f"\n h{n + 1} = Add(h{n}, q{n})"
    return parsed(f"{text} \n y = MatMul(h{LAYERS_IN_ALL}, last)", weights, **constants)


DROPPED = "s{0} = Sigmoid(h{0}) \n m{0} = Dropout<seed = 3>(s{0}, ratio, on)"
ON = {"ratio": np.float32(0.25), "on": np.bool_(True)}


def trainer(model: onnx.ModelProto, way: str | None) -> Trainer:
    return Trainer(model, loss="cross_entropy", lr=0.002, seed=5, device="cpu", recompute=way)


def graph_of(trainer: Trainer) -> ir.Graph:
    return trainer.module.runner(training=True).model.graph


def again(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph if str(node.name).endswith(SUFFIX)]


def batch(count: int = 6) -> dict[str, np.ndarray]:
    return {"x": drawn(count, WIDTH), "labels": np.arange(count) % 3}


def trained(model: onnx.ModelProto, way: str | None) -> tuple[list[float], dict[str, np.ndarray]]:
    one = trainer(model, way)
    losses = [float(one.step(batch())) for _ in range(3)]
    return losses, {name: np.asarray(value).copy() for name, value in one.parameters.items()}


@pytest.mark.parametrize("way", [CHEAP, LAYERS])
@pytest.mark.parametrize(
    "model", [residual(), residual(DROPPED, **ON)], ids=["plain", "with dropout"]
)
def test_results_are_the_same_bit_for_bit(model: onnx.ModelProto, way: str) -> None:
    losses, weights = trained(model, None)
    found, others = trained(model, way)
    assert found == losses and losses[2] < losses[0]
    assert weights.keys() == others.keys()
    assert all(np.array_equal(weights[name], others[name]) for name in weights)
    assert again(graph_of(trainer(model, way)))


@pytest.mark.parametrize("way", [CHEAP, LAYERS])
def test_a_dropout_of_data_has_no_mask_to_be_computed_again_with(way: str) -> None:
    model = parsed(
        "d = Dropout<seed = 3>(x, ratio, on) h = MatMul(d, w) s = Sigmoid(h) y = MatMul(s, last)",
        {"w": drawn(WIDTH, WIDTH), "last": drawn(WIDTH, 3)},
        **ON,
    )
    losses, weights = trained(model, None)
    found, others = trained(model, way)
    assert found == losses
    assert all(np.array_equal(weights[name], others[name]) for name in weights)


def test_what_is_cheap_is_computed_again_where_that_keeps_less() -> None:
    """The gradient of Gelu reads what it is of, and the product behind it the result.

    That of a sigmoid reads its result, as the product does.
    """
    assert again(graph_of(trainer(residual(), CHEAP))) == ["QuickGelu"] * LAYERS_IN_ALL
    assert not again(graph_of(trainer(residual("m{0} = Sigmoid(h{0})"), CHEAP)))
    assert not again(graph_of(trainer(residual(), None)))


def test_layers_keep_what_they_begin_with() -> None:
    graph = graph_of(trainer(residual(), LAYERS))
    twice = again(graph)
    assert {"MatMul", "QuickGelu"} <= set(twice)
    places = {node.name: place for place, node in enumerate(graph)}
    twins = [name for name in places if str(name).endswith(SUFFIX)]
    last = places[f"MatMul_{5 * LAYERS_IN_ALL + 1}"]
    assert min(places[name] for name in twins) > last, "behind the forward pass"
    kept = segments(Forward.of(graph), trained_inputs(graph))
    assert kept is not None and {str(value.name)[0] for value in kept.alive} == {"h"}


def test_what_a_recurrent_layer_hands_to_its_gradient_is_not_kept_beside_its_twin() -> None:
    """It is bytes whose number the shapes do not tell; a layer would be computed twice for less."""
    weights = {"last": drawn(WIDTH, 3)}
    text = "h0 = Unsqueeze(x, second)"
    for n in range(4):
        weights |= {f"w{n}": drawn(1, 4 * WIDTH, WIDTH), f"r{n}": drawn(1, 4 * WIDTH, WIDTH) + n}
        text += f"\n a{n} = LSTM<hidden_size = {WIDTH}>(h{n}, w{n}, r{n})"
        text += f"\n s{n} = Squeeze(a{n}, second) \n h{n + 1} = Tanh(s{n})"
    text += "\n f = Squeeze(h4, second) \n y = MatMul(f, last)"
    graph = graph_of(trainer(parsed(text, weights, second=np.array([1])), LAYERS))
    twins = {node.name for node in graph if str(node.name).endswith(SUFFIX)}
    layers = [node for node in graph if node.op_type == "LSTMLayer"]
    assert {node.op_type for node in graph} & {"LSTMLayerGrad"}
    for node in layers:
        doubled = f"{node.name}{SUFFIX}" in twins
        users = {use.node.op_type for value in node.outputs[3:] for use in value.uses()}
        assert users == (set() if doubled else {"LSTMLayerGrad"})
    assert any(node.name in twins for node in layers)


def test_parting_takes_room_in_proportion_to_the_nodes() -> None:
    """All steps of an unrolled recurrence are alive to its end, where they are joined."""
    needed = []
    for steps in (400, 800):
        lines = [f"h{n + 1} = Tanh(h{n})" for n in range(steps)]
        names = ", ".join(f"h{n + 1}" for n in range(steps))
        text = "\n".join([*lines, f"y = Concat<axis = 1>({names})"])
        head = f"g (float[8,{WIDTH}] h0) => (float[8,{WIDTH * steps}] y)"
        model = ir.from_proto(
            onnx.shape_inference.infer_shapes(
                onnx.parser.parse_model(
                    f'<ir_version: 8, opset_import: ["": 17]> {head} {{{text}}}'
                )
            )
        )
        forward = Forward.of(model.graph)
        tracemalloc.start()
        segments(forward, ["h0"])
        needed.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert needed[1] < 3 * needed[0]


def test_the_largest_part_of_what_is_kept_is_small() -> None:
    from onnxtrain.cli.sizes import Sizes
    from onnxtrain.runtime.lifetimes import live_bytes

    model = residual()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 512
    peaks = {}
    for way in (None, LAYERS):
        runner = trainer(model, way).module.runner(training=True)
        sizes = Sizes(runner.model, runner.plan)
        peaks[way] = max(held for _, held in live_bytes(runner.plan.block, sizes.of))
    assert peaks[LAYERS] < peaks[None] / 2


def test_masks_are_drawn_once() -> None:
    model = residual(DROPPED.replace("<seed = 3>", ""), **ON)
    twins = [n for n in graph_of(trainer(model, LAYERS)) if str(n.name).endswith(SUFFIX)]
    assert not [node for node in twins if node.op_type == "Dropout"]
    masked = [node for node in twins if node.op_type == "DropoutGrad"]
    assert masked and all(str(node.inputs[1].name).endswith("mask") for node in masked)


def test_running_statistics_move_once() -> None:
    text = "r{0} = Relu(h{0}) \n m{0} = BatchNormalization(r{0}, one, zero, mean, var)"
    own = {"mean": np.zeros(64, np.float32), "var": np.ones(64, np.float32)}
    one = residual(text, one=np.ones(64, np.float32), zero=np.zeros(64, np.float32), **own)
    moved = {}
    for way in (None, CHEAP, LAYERS):
        found = trainer(one, way)
        losses = [float(found.step(batch())) for _ in range(3)]
        states = {name: found.state.parameters[name].data for name in found.mutable}
        moved[way] = losses, {name: np.array(value) for name, value in states.items()}
    assert "BatchNormInternal" in again(graph_of(trainer(one, LAYERS)))
    assert not np.array_equal(moved[None][1]["mean"], own["mean"])
    for way in (CHEAP, LAYERS):
        assert moved[way][0] == moved[None][0]
        for name, value in moved[None][1].items():
            assert np.array_equal(moved[way][1][name], value), name


def test_what_draws_or_is_not_known_is_kept() -> None:
    model = residual(
        "r{0} = RandomNormalLike<seed = 1.0>(h{0}) \n s{0} = Exp(r{0}) \n m{0} = Mul(h{0}, s{0})"
    )
    twice = again(graph_of(trainer(model, LAYERS)))
    assert twice and "RandomNormalLike" not in twice
    assert trained(model, None)[0] == trained(model, LAYERS)[0]


def test_a_model_that_is_not_worth_cutting() -> None:
    model = parsed("h = MatMul(x, w) \n s = Sigmoid(h) \n y = Mul(s, h)", {"w": drawn(WIDTH, 3)})
    assert "MatMul" not in again(graph_of(trainer(model, LAYERS)))


def test_what_is_handed_out_in_the_middle_belongs_to_the_forward_pass() -> None:
    graph = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[4,8] x) => (float[4,8] d) {
            [exp] e = Exp(x)
            [sin] s = Sin(e)
            [out] g = com.microsoft.YieldOp(s)
            [cos] c = Cos(e)
            [times] d = Mul(g, c)
        }"""
    ).graph
    forward = Forward.of(graph)
    assert [node.name for node in forward.nodes] == ["exp", "sin", "out"]
    assert {value.name for value in forward.needed} == {"g", "e"}
    assert [node.name for node in forward.later] == ["cos", "times"]


def test_what_is_only_measured_is_neither_kept_nor_computed_again() -> None:
    graph = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,64] x, float[64,64] w) => (float loss, float[N,64] grad) {
            [exp] e = Exp(x)
            [sizes] size = Shape(e)
            [sin] s = Sin(e)
            [sum] loss = ReduceSum<keepdims = 0>(s)
            [times] t = MatMul(x, w)
            [back] grad = Expand(t, size)
        }"""
    ).graph
    graph.outputs[1].name = f"w{FLAG_SUFFIX}"
    forward = Forward.of(graph)
    assert [node.name for node in forward.nodes] == ["exp", "sizes", "sin", "sum"]
    assert {value.name for value in forward.needed} == {"size"}


def test_other_ways_are_refused() -> None:
    with pytest.raises(OptionError, match=r"'all'[^\n]*\n  have  'cheap', 'layers', or None"):
        trainer(residual(), "all")
    assert recompute(ir.from_proto(residual()), None) == 0
