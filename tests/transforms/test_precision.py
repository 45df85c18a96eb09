"""Forward graphs in 16 bits: what becomes narrow, what stays, and that types agree."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain.errors import GraphError, OptionError
from onnxtrain.graph.edit import is_used
from onnxtrain.graph.inference.infer import infer
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.transforms import precision_table as table
from onnxtrain.transforms.precision import Narrowing, narrow_type
from onnxtrain.transforms.training_graph import build_models, parameters_to_inputs
from onnxtrain.types import MS, ONNX, OWN, DataType
from training.small import mlp, model_of, normal

BF16, FP16, F32 = DataType.BFLOAT16, DataType.FLOAT16, DataType.FLOAT
BOTH = pytest.mark.parametrize("dtype", [BF16, FP16])


def narrowed(proto, parameters=(), dtype=BF16, loss_nodes=()) -> ir.Graph:
    """A model in mixed precision; the types that it then has agree with ONNX's inference."""
    model = prepare(ir.from_proto(proto))
    parameters_to_inputs(model, set(parameters))
    Narrowing(dtype, frozenset(loss_nodes))(model)
    return infer(model).graph


def types(graph: ir.Graph) -> dict[str, DataType | None]:
    return {str(v.name): v.dtype for node in graph for v in node.outputs if v.name}


def casts(graph: ir.Graph) -> list[tuple[str, DataType | None]]:
    nodes = [node for node in graph if node.op_type == "Cast"]
    return [(str(n.inputs[0].name), n.outputs[0].dtype) for n in nodes if is_used(n.outputs[0])]


@BOTH
def test_weights_stay_float32_behind_one_cast_each(dtype):
    proto = model_of(
        "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }",
        {"w": normal(4, 4)},
    )
    graph = narrowed(proto, ["w"], dtype)
    (weight,) = [v for v in graph.inputs if v.name == "w"]
    assert weight.dtype == F32
    assert Counter(casts(graph)) == Counter(
        [("w", dtype), ("x", dtype), (f"y_{dtype.name.lower()}", F32)]
    )
    found = types(graph)
    assert {found["a"], found["b"]} == {dtype}


def test_inputs_and_outputs_keep_names_and_types():
    graph = narrowed(mlp(), ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"])
    assert [(v.name, v.dtype) for v in graph.inputs][:1] == [("x", F32)]
    assert [(v.name, v.dtype) for v in graph.outputs] == [("y", F32)]


def test_an_output_that_is_also_read_is_read_narrow():
    proto = model_of(
        "(float[N,4] x) => (float[N,4] h, float[N,4] y) { h = MatMul(x, w) y = Relu(h) }",
        {"w": normal(4, 4)},
    )
    graph = narrowed(proto, ["w"])
    assert [(v.name, v.dtype) for v in graph.outputs] == [("h", F32), ("y", F32)]
    (relu,) = [node for node in graph if node.op_type == "Relu"]
    assert relu.inputs[0].dtype == BF16


@pytest.mark.parametrize("op", ["Exp", "Log", "Softplus", "ReduceSum", "ReduceL2", "LogSoftmax"])
def test_exponentials_and_long_sums_stay_float32(op):
    proto = model_of(
        f"(float[N,4] x) => (float[N,M] y) {{ a = MatMul(x, w) b = {op}(a) y = MatMul(b, w) }}"
        if op not in ("ReduceSum", "ReduceL2")
        else f"(float[4,4] x) => (float[1,1] y) {{ a = MatMul(x, w) y = {op}(a) }}",
        {"w": normal(4, 4)},
    )
    (node,) = [n for n in narrowed(proto, ["w"]) if n.op_type == op]
    assert node.inputs[0].dtype == node.outputs[0].dtype == F32


def test_softmax_is_narrow_between_products_only():
    proto = model_of(
        """(float[N,4] x) => (float[N,4] y) {
            s = MatMul(x, w) p = Softmax(s) d = Dropout(p) z = MatMul(d, w) y = Softmax(z)
        }""",
        {"w": normal(4, 4)},
    )
    found = types(narrowed(proto, ["w"]))
    assert (found["p"], found["y"]) == (BF16, F32)


def test_norms_compute_in_16_bits_with_float32_statistics():
    proto = model_of(
        """(float[N,4] x) => (float[N,4] y) {
            a = MatMul(x, w) n, mean, inv = LayerNormalization(a, g, b) y = MatMul(n, w)
        }""",
        {"w": normal(4, 4), "g": normal(4), "b": normal(4)},
    )
    found = types(narrowed(proto, ["w", "g", "b"]))
    assert (found["n"], found["mean"], found["inv"]) == (BF16, F32, F32)


def test_running_statistics_and_ratios_keep_their_type():
    proto = model_of(
        """(float[N,3,4,4] x) => (float[N,3,4,4] y) {
            c = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(c, g, b, m, v)
            y = Dropout(n, r)
        }""",
        {
            **{"w": normal(3, 3, 3, 3), "g": normal(3), "b": normal(3), "m": normal(3)},
            **{"v": np.ones(3, np.float32), "r": np.float32(0.1)},
        },
    )
    graph = narrowed(proto, ["w", "g", "b", "m", "v"])
    by_op = {node.op_type: node for node in graph}
    assert [v.dtype for v in by_op["BatchNormalization"].inputs] == [BF16, F32, F32, F32, F32]
    assert by_op["Dropout"].inputs[1].dtype == F32
    assert by_op["Dropout"].inputs[0].dtype == BF16


def test_old_batch_normalization_has_one_type_and_stays_float32():
    proto = model_of(
        """(float[N,3] x) => (float[N,3] y) {
            a = MatMul(x, w) n = BatchNormalization(a, g, b, m, v) y = MatMul(n, w)
        }""",
        {name: np.ones(3, np.float32) for name in "gbmv"} | {"w": normal(3, 3)},
        opset=13,
    )
    (node,) = [n for n in narrowed(proto, list("gbmv") + ["w"]) if n.op_type[0] == "B"]
    assert {v.dtype for v in node.inputs} == {F32}


def test_positions_stay_exact():
    """Positions above 256 are not distinct in bfloat16."""
    proto = model_of(
        """(float[N,4] x, int64[N] at) => (float[N,4] y) {
            p = Cast<to=1>(at) q = Unsqueeze(p, one) angle = MatMul(q, f) c = Cos(angle)
            h = MatMul(x, w) y = Mul(h, c)
        }""",
        {"w": normal(4, 4), "f": normal(1, 4), "one": np.array([1])},
    )
    graph = narrowed(proto, ["w"])
    found = types(graph)
    assert {found[name] for name in ("p", "q", "angle", "c")} == {F32}
    (product,) = [n for n in graph if n.op_type == "Mul"]
    assert {v.dtype for v in product.inputs} == {BF16}


@BOTH
def test_masks_stay_finite(dtype):
    """The most negative float32 is infinite in 16 bits, and a row of those has no softmax."""
    least = np.finfo(np.float32).min
    proto = model_of(
        """(float[N,4] x, bool[N,4] mask) => (float[N,4] y) {
            m = Where(mask, zero, least) s = MatMul(x, w) t = Add(s, m) u = Where(mask, t, least)
            p = Softmax(u) y = MatMul(p, w)
        }""",
        {"w": normal(4, 4), "zero": np.float32(0), "least": least},
    )
    graph = narrowed(proto, ["w"], dtype)
    ops = Counter(node.op_type for node in graph)
    assert ops["Clip"] == 1
    constants = [v.const_value for v in graph.initializers.values()]
    narrow = [t.numpy().astype(np.float64) for t in constants if t.dtype == dtype]
    assert all(np.isfinite(a).all() for a in narrow)
    assert min(a.min() for a in narrow) < -3e4


@BOTH
def test_infinite_constants_stay_infinite(dtype):
    mask = np.array([[0, -np.inf], [3e38, -3e38]], np.float32)
    text = "(float[N,4] x) => (float[2,2] y) { a = MatMul(x, w) y = Add(a, mask) }"
    graph = narrowed(model_of(text, {"w": normal(4, 2), "mask": mask}), ["w"], dtype)
    (kept,) = [v for name, v in graph.initializers.items() if name.startswith("mask_")]
    data = kept.const_value.numpy().astype(np.float32)
    assert data[0].tolist() == [0, -np.inf] and np.isfinite(data[1]).all()


@BOTH
@pytest.mark.parametrize(
    "mask",
    [
        "sizes = Shape(s) c = Expand(mask, sizes) m = Where(c, zero, least)",
        "b = Exp(bias) m = Where(mask, b, least)",
    ],
    ids=["in the shape of data", "with a bias"],
)
def test_masks_that_are_made_of_data_stay_finite(mask, dtype):
    weights = {"w": normal(4, 4), "zero": np.float32(0), "least": np.finfo(np.float32).min}
    weights |= {"bias": normal(1, 4)} if "bias" in mask else {}
    weights = {name: value for name, value in weights.items() if name in f"w {mask}"}
    proto = model_of(
        f"""(float[N,4] x, bool[N,4] mask) => (float[N,4] y) {{
            s = MatMul(x, w) {mask} t = Add(s, m) p = Softmax(t) y = MatMul(p, w)
        }}""",
        weights,
    )
    graph = narrowed(proto, [name for name in ("w", "bias") if name in weights], dtype)
    (limit,) = [node for node in graph if node.op_type == "Clip"]
    assert limit.inputs[0].name == "m"


def test_shapes_are_taken_of_narrow_values_without_a_cast():
    proto = model_of(
        """(float[N,4] x) => (float[M] y) {
            a = MatMul(x, w) s = Shape(a) n = ReduceProd<keepdims=0>(s) f = Unsqueeze(n, zero)
            y = Reshape(a, f)
        }""",
        {"w": normal(4, 4), "zero": np.array([0])},
    )
    graph = narrowed(proto, ["w"])
    (shape,) = [n for n in graph if n.op_type == "Shape"]
    assert shape.inputs[0].dtype == BF16


def test_casts_to_float32_are_gone():
    proto = model_of(
        """(float[N,4] x) => (float[N,4] y) {
            a = MatMul(x, w) b = Cast<to=1>(a) c = CastLike(b, x) y = Relu(c)
        }""",
        {"w": normal(4, 4)},
    )
    graph = narrowed(proto, ["w"])
    (relu,) = [n for n in graph if n.op_type == "Relu"]
    assert relu.inputs[0].name == "a"


def test_bodies_stay_float32():
    proto = model_of(
        """(float[4,4] x, bool c) => (float[4,4] y) {
            h = MatMul(x, w)
            y = If(c) <
                then_branch = yes () => (float[4,4] a) { a = MatMul(h, h) },
                else_branch = no () => (float[4,4] b) { b = Identity(h) }
            >
        }""",
        {"w": normal(4, 4)},
    )
    graph = narrowed(proto, ["w"])
    found = types(graph)
    assert (found["h"], found["y"]) == (BF16, F32)
    inner = [n for n in graph.all_nodes() if n.graph is not graph]
    assert {v.dtype for n in inner for v in (*n.inputs, *n.outputs)} == {F32}


def cross_entropy(extra: str = "", **weights):
    return model_of(
        f"""(float[N,4] x, int64[N] labels) => (float loss) {{
            a = MatMul(x, w) r = Reshape(a, s)
            loss = SoftmaxCrossEntropyLoss<ignore_index=2>(r, labels{extra})
        }}""",
        {"w": normal(4, 4), "s": np.array([-1, 4]), **weights},
    )


def test_cross_entropy_reads_narrow_scores_and_gives_float32():
    graph = narrowed(cross_entropy(), ["w"])
    (node,) = [n for n in graph if n.op_type.startswith("SoftmaxCrossEntropy")]
    assert node.op_type == "SoftmaxCrossEntropyLossInternal"
    assert node.inputs[0].dtype == BF16
    assert [(v.name, v.dtype) for v in graph.outputs] == [("loss", F32)]
    assert node.inputs[3].const_value.numpy() == 2
    assert not any(target == F32 for _, target in casts(graph))


def test_weights_of_classes_are_not_rounded():
    graph = narrowed(cross_entropy(", c", c=normal(4)), ["w"])
    (node,) = [n for n in graph if n.op_type.startswith("SoftmaxCrossEntropy")]
    assert node.inputs[2].dtype == node.inputs[0].dtype == F32


def test_nodes_of_a_loss_stay_float32():
    proto = model_of(
        """(float[N,4] x, float[N,4] target) => (float loss) {
            y = MatMul(x, w) d = Sub(y, target) s = Mul(d, d) loss = ReduceMean<keepdims=0>(s)
        }""",
        {"w": normal(4, 4)},
    )
    names = {n.name for n in prepare(ir.from_proto(proto)).graph if n.op_type != "MatMul"}
    found = types(narrowed(proto, ["w"], loss_nodes=names))
    assert [found[name] for name in ("y", "d", "s", "loss")] == [BF16, F32, F32, F32]


def test_targets_are_not_rounded_where_they_are_moved():
    proto = model_of(
        """(float[N,4] x, float[4,N] target) => (float loss) {
            y = MatMul(x, w) t = Transpose(target) r = Identity(y) d = Sub(r, t) s = Abs(d)
            loss = ReduceMean<keepdims=0>(s)
        }""",
        {"w": normal(4, 4)},
    )
    names = {n.name for n in prepare(ir.from_proto(proto)).graph if n.op_type != "MatMul"}
    for loss_nodes in (names, ()):
        found = types(narrowed(proto, ["w"], loss_nodes=loss_nodes))
        assert [found[name] for name in "yrtds"] == [BF16, BF16, F32, F32, F32]


def test_gradients_reach_their_buffers_without_a_float32_copy():
    proto = cross_entropy()
    model = prepare(ir.from_proto(proto))
    parameters_to_inputs(model, {"w"})
    models = build_models(model, trainable=["w"], outputs=["loss"], narrowing=Narrowing(BF16))
    graph = models.training.graph
    (node,) = [n for n in graph if n.op_type == "InPlaceAccumulatorV2"]
    assert [v.dtype for v in node.inputs[:2]] == [F32, BF16]
    assert not any(target == F32 for _, target in casts(graph))
    assert not any(n.op_type == "Cast" for n in models.evaluation.graph)


def test_a_scaled_model_has_an_input_for_the_scale():
    model = prepare(ir.from_proto(cross_entropy()))
    parameters_to_inputs(model, {"w"})
    graph = build_models(model, trainable=["w"], outputs=["loss"], scaled=True).training.graph
    (scale,) = [v for v in graph.inputs if v.name == "loss_scale"]
    assert scale.uses() and scale.dtype == F32
    assert "loss_grad" not in graph.initializers


def test_a_name_that_is_taken_is_refused():
    proto = model_of(
        """(float[N,4] loss_scale) => (float y) {
            a = MatMul(loss_scale, w) y = ReduceMean<keepdims=0>(a)
        }""",
        {"w": normal(4, 4)},
    )
    model = prepare(ir.from_proto(proto))
    parameters_to_inputs(model, {"w"})
    with pytest.raises(GraphError, match="loss_scale"):
        build_models(model, trainable=["w"], outputs=["y"], scaled=True)


def test_unknown_precisions_are_refused():
    assert narrow_type("bf16") == BF16 and narrow_type("fp32") is None
    with pytest.raises(OptionError, match="fp32, bf16, fp16, not 'int8'"):
        narrow_type("int8")


@BOTH
@pytest.mark.parametrize("op", sorted(table.COMPUTE | table.FOLLOWERS | {"Softmax"}))
def test_every_narrow_operator_has_a_kernel_of_16_bits(op, dtype):
    kernels = [k for k in default_registry().kernels() if k.op == op]
    for domain in {k.domain for k in kernels} & {ONNX, MS, OWN}:
        accepted = [k.types for k in kernels if k.domain == domain]
        names = {name for types in accepted for name in types if F32 in types[name]}
        assert all(any(dtype in t.get(name, {dtype}) for t in accepted) for name in names)
    assert kernels
