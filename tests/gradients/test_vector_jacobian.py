"""The operator that differentiates others: any order, absent inputs, outputs that nobody uses."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from gradients.emit import differentiated, emitted, run
from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.engine import backward
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.kernels.vector_jacobian import forward_kernel, vector_jacobian
from onnxtrain.testing.cases.vision import SAMPLE as SAMPLE_ROWS

SAMPLE = (
    "(double[1,1,4,4] x, double[1,2,2,2] p) => (double[1,1,2,2] y) "
    '{ y = GridSample<mode="cubic">(x, p) }'
)
GRID = (np.random.default_rng(0).uniform(-0.9, 0.9, (1, 2, 2, 2)), np.random.default_rng(1))


def test_one_node_gives_the_gradients_of_all_inputs() -> None:
    assert emitted(SAMPLE) == ["VectorJacobian(x, p, d_y) -> x_grad, p_grad"]


def test_a_gradient_of_third_order() -> None:
    of = differentiated(SAMPLE, "p")
    graph = of.graph
    for _ in range(2):
        last = graph.outputs[-1]
        graph.outputs.append(_loss(of, last))
    places, generator = GRID
    x, d_y = generator.normal(size=(1, 1, 4, 4)), generator.normal(size=(1, 1, 2, 2))
    found = run(of, x=x, p=places, d_y=d_y)
    p = torch.tensor(places, requires_grad=True)
    value = torch.autograd.grad(
        _polynomial(torch.tensor(x), p), p, torch.tensor(d_y), create_graph=True
    )[0]
    for _ in range(2):
        value = torch.autograd.grad(value.sum(), p, create_graph=True)[0]
    np.testing.assert_allclose(
        list(found.values())[-1], value.detach().numpy(), rtol=1e-9, atol=1e-9
    )


def _loss(of: ir.Model, value: ir.Value) -> ir.Value:
    """The gradient in p of the sum of a value, as a further value of the graph."""
    graph = of.graph
    op = Ops(graph, "sum/")
    ones = op.filled(1, shape_of=value, like=value)
    graph.extend(op.nodes)
    (p,) = [v for v in graph.inputs if v.name == "p"]
    return backward(graph, [p], {value: ones})[p]


def _polynomial(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Cubic interpolation inside of the image, written out."""
    sample = next(row for row in SAMPLE_ROWS if row.op == "GridSample").reference
    assert sample is not None
    return sample(x, p, mode="cubic")


def test_a_tensor_that_comes_in_twice_has_two_gradients() -> None:
    text = "(double[1,2,3,4] x) => (double[1,2,3,4] y) { y = Attention(x, x, x) }"
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    d_y = np.random.default_rng(1).normal(size=(1, 2, 3, 4))
    found = run(differentiated(text, opset=24), x=x, d_y=d_y)["x_grad"]
    leaf = torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(leaf, leaf, leaf)
    (true,) = torch.autograd.grad(y, leaf, torch.tensor(d_y))
    np.testing.assert_allclose(found, true.numpy(), rtol=1e-10, atol=1e-12)


def test_gradients_are_never_the_storage_of_what_came_in() -> None:
    k, dk = torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2)
    options = {"of": "Attention", "version": 24, "taken": 3, "given": 3}
    grads = vector_jacobian(
        torch.randn(1, 1, 2, 2),
        k,
        k.clone(),
        None,
        dk,
        None,
        **options,
        wanted=(False, True, False),
    )
    assert torch.equal(grads[1], dk) and grads[1].data_ptr() != dk.data_ptr()
    assert grads[0] is None and grads[2] is None


def test_attributes_that_text_cannot_hold_are_refused() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.node("GridSample", [x, x], {"mode": ir.tensor(np.zeros(2))}, name="odd")
    graph = ir.Graph([x], [], nodes=[node], opset_imports={"": onnx.defs.onnx_opset_version()})
    with pytest.raises(NoGradientError, match="attribute 'mode' of type TENSOR, node 'odd'"):
        pulled_back(Ops(graph, "g/"), node, [x])


def test_an_operator_without_a_kernel_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"0 portable kernels for ai\.onnx::Nothing 7"):
        forward_kernel("", "Nothing", 7)
