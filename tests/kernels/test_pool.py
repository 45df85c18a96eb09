"""Gradients of pools, whose output's sizes the graph declares, and what pools refuse."""

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F

from graph.text import proto
from onnxtrain.errors import GraphError, NodeError
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.kernels.nn.max_pool import max_pool, max_pool_grad
from onnxtrain.kernels.nn.max_pool_planes import max_pool_in_planes_grad
from onnxtrain.kernels.nn.places import plane_starts
from onnxtrain.kernels.nn.pool import average_pool, average_pool_grad
from onnxtrain.kernels.nn.window import resolve
from onnxtrain.testing.cases import pool as cases
from onnxtrain.testing.model import run_model
from onnxtrain.types import DataType

AVERAGES = [case for case in cases.CASES if case.op == "AveragePool"]
MAXIMA = [
    case
    for case in cases.CASES
    if case.op == "MaxPool" and case.outputs == 2 and case.opset is None
]


def _random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _model(op: str, inputs: list[tuple[str, torch.Tensor]], shape: list, **attributes) -> object:
    kinds = {torch.float64: DataType.DOUBLE, torch.int64: DataType.INT64}
    values = [
        ir.Value(name=name, type=ir.TensorType(kinds[t.dtype]), shape=ir.Shape(["n", *t.shape[1:]]))
        for name, t in inputs
    ]
    node = ir.node(op, values, attributes)
    node.outputs[0].name = "dx"
    node.outputs[0].type = ir.TensorType(DataType.DOUBLE)
    node.outputs[0].shape = ir.Shape(shape)
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": 21}, name="g")
    return ir.to_proto(ir.Model(graph, ir_version=10))


@pytest.mark.parametrize("case", AVERAGES, ids=str)
def test_average_pool_grad_is_the_gradient(case) -> None:
    x = _random(*case.draw()[0].shape).requires_grad_()
    y = case.reference(x, **case.attributes)
    dy = _random(*y.shape)
    [expected] = torch.autograd.grad(y, x, dy)
    ours = average_pool_grad(dy, **case.attributes, out_shape=(None, *x.shape[1:]))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    half = average_pool_grad(dy.half(), **case.attributes, out_shape=tuple(x.shape))
    torch.testing.assert_close(half.double(), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("case", MAXIMA, ids=str)
def test_max_pool_grad_undoes_max_pool(case) -> None:
    [x] = case.draw()
    order = {"storage_order": case.attributes.get("storage_order", 0)}
    y, indices = max_pool(x, **case.attributes, wanted=(True, True))
    dy = _random(*y.shape)
    x.requires_grad_()
    [expected] = torch.autograd.grad(case.reference(x, **case.attributes)[0], x, dy)
    ours = max_pool_grad(dy, indices, **order, out_shape=(None, *x.shape[1:]))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


HOLLOW = {
    "wide": ({"kernel_shape": (1, 2), "pads": (1, 3, 0, 2)}, (1, 2, 3, 4)),
    "gaps": ({"kernel_shape": (2, 2), "dilations": (1, 3), "pads": (0, 2, 0, 2)}, (2, 1, 3, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("window", HOLLOW)
def test_a_window_of_padding_alone_has_the_lowest_number_and_no_place(window, dtype) -> None:
    attributes, shape = HOLLOW[window]
    y, indices = max_pool(torch.ones(shape, dtype=dtype), **attributes, wanted=(True, True))
    kind = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    nowhere = indices < 0
    assert nowhere.any() and not nowhere.all()
    assert set(indices[nowhere].tolist()) == {-1}
    assert set(y[nowhere].tolist()) == {kind.min} and set(y[~nowhere].tolist()) == {1}


def test_the_maximum_of_data_that_is_infinitely_low_has_a_place() -> None:
    x = torch.full((1, 1, 2), -torch.inf)
    y, indices = max_pool(x, kernel_shape=(1,), pads=(1, 1), wanted=(True, True))
    assert y.isinf().tolist() == [[[False, True, True, False]]]
    assert indices.tolist() == [[[-1, 0, 1, -1]]]


@pytest.mark.parametrize(
    ("window", "opset", "order"),
    [
        *(("wide", *version) for version in [(7, 0), (8, 0), (8, 1), (13, 0), (22, 0), (22, 1)]),
        *(("gaps", *version) for version in [(10, 0), (10, 1), (22, 0), (22, 1)]),
    ],
)
def test_windows_of_padding_alone_hand_no_gradient_on(window, opset, order) -> None:
    attributes, shape = HOLLOW[window]
    more = {"storage_order": order} if order else {}
    x = cases.apart(*shape).make(torch.Generator().manual_seed(1))
    y = cases.max_only(x.requires_grad_(), **attributes)
    dy = _random(*y.shape)
    [expected] = torch.autograd.grad(y, x, dy)
    settings = ", ".join(f"{k}={list(v)}" for k, v in attributes.items())
    settings += "".join(f", {k}={v}" for k, v in more.items())
    dims = ",".join(map(str, shape))
    model = proto(
        f"(double[{dims}] x) => (double[A,B,C,D] y) {{ y = MaxPool<{settings}>(x) }}", opset
    )
    graph = build_gradient_graph(model, "x", "y")
    [*_, ours] = run_model(graph, {"x": x.detach(), "y_grad": dy})
    assert torch.equal(ours, expected)
    dx = _random(*shape)
    again = build_gradient_graph(graph, "y_grad", "x_grad")
    [*_, ours] = run_model(again, {"x": x.detach(), "y_grad": dy, "x_grad_grad": dx})
    probe = _random(*dy.shape).requires_grad_()
    [back] = torch.autograd.grad(cases.max_only(x, **attributes), x, probe, create_graph=True)
    [expected] = torch.autograd.grad(back, probe, dx)
    assert torch.equal(ours, expected)


@pytest.mark.gpu
def test_one_channel_that_is_the_last_axis_in_memory() -> None:
    """Of float64, which torch reads where no such number may begin if channels are last."""
    x = torch.arange(4.0, dtype=torch.float64, device="cuda").as_strided((1, 1, 2, 2), (4, 1, 2, 1))
    y, where = max_pool(x, kernel_shape=[2, 2], wanted=(True, True))
    assert y.flatten().tolist() == [3] and where is not None and where.flatten().tolist() == [3]


def test_shared_maxima_add_up() -> None:
    dy = torch.tensor([[[3.0, 4.0, 5.0]]], dtype=torch.float16)
    indices = torch.tensor([[[1, 1, 3]]])
    ours = max_pool_grad(dy, indices, out_shape=(1, 1, 4))
    assert ours.tolist() == [[[0.0, 7.0, 0.0, 5.0]]] and ours.dtype == torch.float16


def test_many_small_gradients_are_not_lost() -> None:
    dy = torch.full((1, 1, 4096), 0.25, dtype=torch.float16)
    ours = max_pool_grad(dy, torch.zeros_like(dy, dtype=torch.int64), out_shape=(1, 1, 2))
    assert ours.tolist() == [[[1024.0, 0.0]]]


def test_the_runtime_takes_the_sizes_from_the_graph_and_the_batch_from_dy() -> None:
    x = _random(3, 2, 5, 6).requires_grad_()
    y, places = F.max_pool2d(x, 2, return_indices=True)
    dy = _random(*y.shape)
    [expected] = torch.autograd.grad(y, x, dy)
    indices = places + (torch.arange(6) * 30).reshape(3, 2, 1, 1)
    model = _model("MaxPoolGrad", [("dy", dy), ("i", indices)], ["n", 2, 5, 6])
    [ours] = run_model(model, {"dy": dy, "i": indices})
    assert torch.equal(ours, expected)


def test_the_runtime_runs_average_pool_grad_of_any_batch() -> None:
    x = _random(3, 2, 4, 5, 6).requires_grad_()
    dy = _random(3, 2, 3, 4, 5)
    [expected] = torch.autograd.grad(F.avg_pool3d(x, 2, 1), x, dy)
    model = _model("AveragePoolGrad", [("dy", dy)], ["n", 2, 4, 5, 6], kernel_shape=[2, 2, 2])
    [ours] = run_model(model, {"dy": dy})
    torch.testing.assert_close(ours, expected)


def test_unknown_sizes_are_refused() -> None:
    dy = _random(1, 2, 3)
    model = _model("AveragePoolGrad", [("dy", dy)], ["n", 2, "w"], kernel_shape=[2])
    with pytest.raises(NodeError, match="sizes of dX must be declared"):
        run_model(model, {"dy": dy})
    with pytest.raises(ValueError, match="sizes of dX must be declared"):
        max_pool_grad(dy, torch.zeros(1, 2, 3, dtype=torch.int64), out_shape=None)


def test_gradients_that_do_not_fit_are_refused() -> None:
    dy, indices = _random(1, 1, 2), torch.tensor([[[0, 4]]])
    with pytest.raises(ValueError, match=r"out of range \[0, 4\)"):
        max_pool_grad(dy, indices, out_shape=(1, 1, 4))
    with pytest.raises(ValueError, match="differ in shape"):
        max_pool_grad(dy, indices[..., :1], out_shape=(1, 1, 4))
    with pytest.raises(ValueError, match=r"pooling \(5,\) gives \(4,\)"):
        average_pool_grad(dy, kernel_shape=(2,), out_shape=(1, 1, 5))


def test_pools_need_one_to_three_spatial_axes() -> None:
    with pytest.raises(ValueError, match="1 to 3 spatial axes"):
        average_pool(_random(2, 3), kernel_shape=())
    with pytest.raises(ValueError, match="must have 2 values"):
        max_pool(_random(1, 1, 4, 4), kernel_shape=(2,), wanted=(True,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strides": (0, 1)}, "all stride values must be positive"),
        ({"dilations": (1, -1)}, "all dilation values must be positive"),
        ({"pads": (1, 1, 1)}, "must have 4 values"),
        ({"auto_pad": "SAME"}, "must be one of NOTSET, SAME_UPPER"),
        ({"auto_pad": "SAME_UPPER", "pads": (1, 1, 1, 1)}, "both 'auto_pad'"),
    ],
)
def test_windows_that_make_no_sense_are_refused(change, message) -> None:
    window = {"strides": None, "dilations": None, "pads": None, "auto_pad": "NOTSET", **change}
    with pytest.raises(ValueError, match=message):
        resolve((5, 5), (2, 2), **window)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("LpPool<kernel_shape=[0]>", "all kernel_shape values must be positive"),
        ("MaxPool<kernel_shape=[0]>", "all kernel_shape values must be positive"),
        ("AveragePool<kernel_shape=[0]>", "all kernel_shape values must be positive"),
        ("LpPool<kernel_shape=[2], p=0>", "p is 0, must be at least 1"),
        ("GlobalLpPool<p=0>", "p is 0, must be at least 1"),
        ("LpNormalization<p=3>", "p is 3, must be 1 or 2"),
        ("LRN<size=0>", "size is 0, must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(call: str, message: str) -> None:
    model = proto(f"(double[1,2,3] x) => (double[A,B,C] y) {{ y = {call}(x) }}", 21)
    with pytest.raises(NodeError, match=message):
        run_model(model, {"x": _random(1, 2, 3)})


def test_the_gradient_of_no_neighbours_is_refused() -> None:
    model = proto("(double[1,2,3] x) => (double[1,2,3] y) { y = LRN<size=0>(x) }", 21)
    with pytest.raises(GraphError, match="size is 0, must be at least 1"):
        build_gradient_graph(model, "x", "y")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("pool", [{"strides": (2, 2)}, {"pads": (1, 1, 1, 1)}, {"ceil_mode": 1}])
def test_maxima_of_planes_get_their_gradient_in_the_layout_of_the_images(layout, pool) -> None:
    x = _random(2, 3, 5, 6).contiguous(memory_format=layout).requires_grad_()
    y, indices = max_pool(x.detach(), kernel_shape=(3, 3), **pool, wanted=(True, True))
    pads, strides = pool.get("pads", (0, 0))[:2], pool.get("strides", (1, 1))
    wanted = F.max_pool2d(x, 3, strides, pads, ceil_mode="ceil_mode" in pool)
    torch.testing.assert_close(y, wanted.detach())
    dy = _random(*y.shape).contiguous(memory_format=layout)
    wanted.backward(dy)
    grad = max_pool_grad(dy, indices, x.shape, kernel_shape=(3, 3), **pool, out_shape=None)
    torch.testing.assert_close(grad, x.grad)
    assert grad.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("pool", ["max", "average"])
def test_pools_that_keep_the_sizes_of_images_have_their_gradient(pool, dtype) -> None:
    """Images and results are alike then, but are not the same."""
    x, dy = _random(3, 16, 40, 40).to(dtype), _random(3, 16, 40, 40).flip(0).to(dtype)
    options = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "out_shape": tuple(x.shape)}
    leaf = x.double().requires_grad_()
    if pool == "max":
        _, indices = max_pool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], wanted=(True, True))
        found = max_pool_grad(dy, indices, **options)
        F.max_pool2d(leaf, 3, 1, 1).backward(dy.double())
    else:
        found = average_pool_grad(dy, **options)
        F.avg_pool2d(leaf, 3, 1, 1, count_include_pad=False).backward(dy.double())
    torch.testing.assert_close(found.double(), leaf.grad, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_places_in_another_plane_are_those_of_the_whole_image() -> None:
    dy, indices = torch.tensor([[[[2.0]], [[3.0]]]]), torch.tensor([[[[5]], [[2]]]])
    grad = max_pool_grad(dy, indices, (1, 2, 2, 2), kernel_shape=(2, 2), out_shape=None)
    assert grad.flatten().tolist() == [0.0, 0.0, 3.0, 0.0, 0.0, 2.0, 0.0, 0.0]


def test_planes_without_elements_have_a_beginning() -> None:
    starts = plane_starts(torch.zeros(2, 3, 1, 1, dtype=torch.int64), (0, 4))
    assert starts.shape == (2, 3, 1, 1)


@pytest.mark.parametrize("channels", [1, 4, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("last", [False, True])
def test_maxima_are_the_same_and_lie_as_their_images(
    channels: int, dtype: torch.dtype, last: bool
) -> None:
    """On a CPU pools of many channels are taken with the channels last, whatever they came in."""
    torch.manual_seed(0)
    x = torch.randn(3, channels, 9, 8).round(decimals=1).to(dtype)
    order = torch.channels_last if last else torch.contiguous_format
    form = {"kernel_shape": (3, 2), "strides": (2, 1)}
    y, places = max_pool(x.contiguous(memory_format=order), **form, wanted=(True, True))
    assert places is not None and y.dtype is dtype
    if channels > 1:
        assert y.is_contiguous(memory_format=order)
        assert places.is_contiguous(memory_format=order)
    windows = x.unfold(2, 3, 2).unfold(3, 2, 1)
    assert torch.equal(y, windows.amax((-2, -1)))
    assert torch.equal(x.flatten()[places.flatten()], y.flatten())


def test_places_outside_of_a_plane_are_refused() -> None:
    dy, form = torch.ones(1, 1, 2, 2), {"kernel_shape": (2, 2), "strides": (2, 2)}
    for wrong in (-1, 16):
        places = torch.tensor([[[[0, 2], [8, wrong]]]], dtype=torch.int32)
        with pytest.raises(ValueError, match=r"outside of planes of \(4, 4\)"):
            max_pool_in_planes_grad(dy, places, (1, 1, 4, 4), **form, out_shape=None)
    with pytest.raises(ValueError, match="differ in shape"):
        max_pool_in_planes_grad(dy[..., :1], places, (1, 1, 4, 4), **form, out_shape=None)
