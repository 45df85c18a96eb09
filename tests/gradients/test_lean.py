"""Backward graphs have nothing in them that a person would leave out."""

import pathlib
import sys
from collections import Counter
from collections.abc import Hashable

import onnx_ir as ir
import pytest

from gradients.emit import differentiated, emitted
from onnxtrain.graph.phase import Phase, nodes_in, phase_of
from onnxtrain.graph.prepare import prepare
from onnxtrain.training.build import build_training
from onnxtrain.transforms.mode import TrainingForm
from onnxtrain.transforms.weights.parameters import decide

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
import zoo

SIZES = [pytest.param(True, id="any-batch"), pytest.param(False, id="one-batch")]
SHAPES = {"Shape", "Size", "Gather", "Concat", "Slice", "Div", "BroadcastGradientArgs"}
"""Operators of computations with sizes."""


@pytest.fixture(scope="module", params=[(n, d) for n in zoo.NAMES for d in (True, False)], ids=str)
def step(request: pytest.FixtureRequest) -> ir.Graph:
    """The training step of a model, with cross entropy."""
    name, dynamic = request.param
    model = prepare(ir.from_proto(zoo.example(name, dynamic=dynamic).model))
    outputs = [str(model.graph.outputs[0].name)]
    decisions = decide(model, "auto", outputs)
    built = build_training(
        model,
        loss="cross_entropy",
        outputs=outputs,
        trained=[d.name for d in decisions if d.trained],
        moving=[d.name for d in decisions if d.statistic],
        form=TrainingForm(batch_norm=True, dropout=True),
        split=False,
    )
    return built.models.training.graph


def backward(graph: ir.Graph) -> list[ir.Node]:
    return list(nodes_in(graph, Phase.BACKWARD))


def is_static(value: ir.Value | None) -> bool:
    return value is None or (value.shape is not None and value.shape.is_static())


def test_nothing_is_only_copied(step: ir.Graph) -> None:
    assert [node.name for node in backward(step) if node.op_type == "Identity"] == []


def test_no_type_is_changed_twice(step: ir.Graph) -> None:
    for node in backward(step):
        before = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
        assert not (node.op_type == before.op_type == "Cast" if before else False), node.name


def test_sizes_that_are_known_are_not_computed(step: ir.Graph) -> None:
    made = [node for node in step if phase_of(node) is Phase.BACKWARD or "_Grad/" in str(node.name)]
    whole = {ir.DataType.INT64, ir.DataType.INT32}
    for node in made:
        if node.op_type in SHAPES and node.outputs[0].dtype in whole:
            assert not all(is_static(value) for value in node.inputs), node.name


def _key(node: ir.Node) -> Hashable:
    attributes = sorted((a.name, str(a.value)) for a in node.attributes.values())
    return node.domain, node.op_type, tuple(node.inputs), tuple(attributes)


def test_nothing_is_computed_twice(step: ir.Graph) -> None:
    counts = Counter(map(_key, backward(step)))
    assert [key[1] for key, count in counts.items() if count > 1] == []


def test_everything_reaches_an_output(step: ir.Graph) -> None:
    needed = set(step.outputs)
    for node in reversed(list(step)):
        if phase_of(node) is Phase.BACKWARD:
            assert any(value in needed for value in node.outputs), node.name
        if any(value in needed for value in node.outputs):
            needed.update(value for value in node.inputs if value is not None)


def test_no_forward_value_is_kept_for_its_shape_alone(step: ir.Graph) -> None:
    own = set(backward(step))
    for value in [value for node in step if node not in own for value in node.outputs]:
        late = {node.op_type for node, _ in value.uses() if node in own}
        assert not late or late - {"Shape", "Size"}, value.name


@pytest.mark.parametrize("dynamic", SIZES)
def test_the_backward_pass_has_as_many_nodes_as_it_needs(dynamic: bool) -> None:
    """Two layers: a product for each weight and one for what is between, a slope, a sum."""
    text = """(float[N,3] x, float[3,5] a, float[5] b, float[5,2] c) => (float[N,2] y) {
        h = MatMul(x, a)  i = Add(h, b)  r = Relu(i)  y = MatMul(r, c)
    }"""
    text = text if dynamic else text.replace("N", "4")
    kinds = Counter(line.split("(")[0] for line in emitted(text, "a", "b", "c"))
    assert kinds == {"Gemm": 3, "ms.ReluGrad": 1, "ReduceSum": 1}


def test_one_shape_serves_all_who_read_it() -> None:
    text = """(float[N,M] x, int64 i) => (float[M] y, float[M] z) {
        a = Exp(x)  y = Gather(a, i)  j = Neg(i)  z = Gather(a, j)
    }"""
    of = differentiated(text)
    assert [node.op_type for node in of.graph].count("Shape") == 1


def test_a_shape_is_taken_where_its_value_is_made() -> None:
    text = """(float[N,M] x, int64 i) => (float[M] y) {
        a = Neg(x)  b = Gather(a, i)  c = Exp(b)  y = Mul(c, c)
    }"""
    kinds = [node.op_type for node in differentiated(text).graph]
    assert kinds.index("Shape") == kinds.index("Neg") + 1


def test_a_mean_over_axes_that_are_computed_is_scaled_by_a_constant() -> None:
    text = """(float[N,4] x, int64[1] a) => (float[N] y) { y = ReduceMean<keepdims=0>(x, a) }"""
    model = differentiated(text)
    assert not {"Size", "Div"} & {node.op_type for node in model.graph}
