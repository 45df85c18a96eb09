"""Nodes that call autograd functions: arguments, contexts, gradients, and what is refused."""

import gc
import re
from collections.abc import Iterator
from typing import Any

import onnx.helper
import onnx_ir as ir
import pytest
import torch

from onnxtrain.gradients.engine import backward
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.interop import python_op, registry
from onnxtrain.kernels.interop.arguments import put_together
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.cases.interop import ScaledProduct
from onnxtrain.types import MS, DataType

FLOAT, INT64 = int(DataType.FLOAT), int(DataType.INT64)


class Doubled(torch.autograd.Function):
    """Overwrites its first input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x.mul_(2).add_(y)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * grads[0], grads[0]


class Square(torch.autograd.Function):
    """x², from an input kept outside ``save_for_backward``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * grads[0]


class Kept(torch.autograd.Function):
    """An output that is itself kept, and a backward that hands what it kept on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0]


class Sometimes(torch.autograd.Function):
    """Overwrites its input if it is told so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, overwrite: bool) -> torch.Tensor:
        return x.neg_() if overwrite else -x


@pytest.fixture(scope="module", autouse=True)
def _alone() -> None:
    """Look for garbage among what these tests make, not among all that was there before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    python_op._overwritten.clear()
    yield
    gc.collect()
    assert python_op._contexts == {}


def name_of(function: type) -> str:
    return registry.qualified_name(function)


def call(function: type, *tensors: Any, convention: str | None = None, **more: Any) -> list[Any]:
    outputs = more.pop("outputs", 1)
    options = {"func_name": name_of(function), "wanted": (False, *[True] * outputs), **more}
    return list(
        python_op.python_op(*tensors, input_convention=convention or "d" * len(tensors), **options)
    )


def node(function: type, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return onnx.helper.make_node(
        "PythonOp",
        inputs,
        outputs,
        domain=MS,
        func_name=name_of(function),
        input_convention=attributes.pop("input_convention", "d" * len(inputs)),
        input_tensor_types=[FLOAT] * len(inputs),
        input_tensor_ranks=[1] * len(inputs),
        output_tensor_types=[FLOAT] * (len(outputs) - 1),
        output_tensor_ranks=[1] * (len(outputs) - 1),
        **attributes,
    )


def with_gradients(nodes: list[Any], inputs: list[str], outputs: list[str]) -> InferenceSession:
    """A session whose outputs are the graph's and the gradients of all inputs, for fed seeds."""
    infos = [
        [onnx.helper.make_tensor_value_info(name, FLOAT, [3]) for name in names]
        for names in (inputs, outputs)
    ]
    graph = onnx.helper.make_graph(nodes, "main", *infos)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(MS, 1)]
    model = prepare(load_model(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)))
    xs, ys = list(model.graph.inputs), list(model.graph.outputs)
    seeds = {y: ir.val(f"d_{y.name}", ir.DataType.FLOAT, [3]) for y in ys}
    model.graph.inputs.extend(seeds.values())
    grads = backward(model.graph, xs, seeds)
    model.graph.outputs.extend(grads[x] for x in xs)
    return InferenceSession(model)


def drawn(*names: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(3, generator=generator) for name in names}


def check(session: InferenceSession, function: Any, *names: str) -> None:
    """Values and gradients are those of a torch expression, run after run."""
    feeds = drawn(*names, *(argument.name for argument in session.get_inputs()[len(names) :]))
    leaves = [feeds[name].clone().requires_grad_() for name in names]
    results = function(*leaves)
    seeds = [value for name, value in feeds.items() if name not in names]
    true = [*results, *torch.autograd.grad(results, leaves, seeds)]
    for _ in range(3):
        for ours, expected in zip(session.run_torch(None, feeds), true, strict=True):
            torch.testing.assert_close(ours, expected.detach())


def test_a_function_and_its_gradient() -> None:
    made = node(
        ScaledProduct,
        ["a", "b"],
        ["context", "y", "z"],
        input_convention="dcd",
        input_float_scalars=[0.5],
        input_float_scalar_positions=[1],
    )
    check(with_gradients([made], ["a", "b"], ["y", "z"]), lambda a, b: (a * b / 2, 2 * a), "a", "b")


def test_a_missing_gradient_is_zero() -> None:
    made = node(
        ScaledProduct,
        ["a", "b"],
        ["context", "y", "z"],
        input_convention="dcd",
        input_float_scalars=[0.5],
        input_float_scalar_positions=[1],
    )
    session = with_gradients([made], ["a", "b"], ["z"])
    feeds = drawn("a", "b", "d_z")
    z, da, db = session.run_torch(None, feeds)
    assert torch.equal(z, 2 * feeds["a"]) and torch.equal(da, 2 * feeds["d_z"])
    assert torch.equal(db, torch.zeros(3))


def test_what_a_function_keeps_is_not_overwritten() -> None:
    """h dies after Exp, which could take its storage over if the context did not hold it."""
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["h"]),
        node(Square, ["h"], ["context", "s"]),
        onnx.helper.make_node("Exp", ["h"], ["e"]),
        onnx.helper.make_node("Mul", ["s", "e"], ["y"]),
    ]
    check(with_gradients(nodes, ["x"], ["y"]), lambda x: [x * x * (-x).exp()], "x")


def test_a_kept_output_is_not_overwritten() -> None:
    nodes = [
        node(Kept, ["x"], ["context", "e"]),
        onnx.helper.make_node("Neg", ["e"], ["n"]),
        onnx.helper.make_node("Sigmoid", ["n"], ["y"]),
    ]
    session = with_gradients(nodes, ["x"], ["y"])
    feeds = drawn("x", "d_y")
    y, dx = session.run_torch(None, feeds)
    torch.testing.assert_close(y, torch.sigmoid(-feeds["x"].exp()))
    torch.testing.assert_close(dx, feeds["x"].exp())


def test_a_function_may_overwrite_its_input() -> None:
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["h"]),
        node(Doubled, ["h", "y"], ["context", "d"], tensor_reuse_map=[-1, 0]),
        onnx.helper.make_node("Add", ["d", "h"], ["z"]),
    ]
    check(with_gradients(nodes, ["x", "y"], ["z"]), lambda x, y: [-3 * x + y], "x", "y")
    assert python_op._overwritten[Doubled] == frozenset({0})


def test_inputs_stay_as_they_are() -> None:
    x, y = torch.ones(2), torch.ones(2)
    for _ in range(2):
        assert call(Doubled, x, y)[1].tolist() == [3, 3]
    assert x.tolist() == y.tolist() == [1, 1]
    call(Doubled, x, y, safe_run_mode=0)
    assert x.tolist() == [3, 3]


def test_a_function_overwrites_the_same_inputs_each_time() -> None:
    def sometimes(overwrite: int) -> None:
        positions = {"input_bool_scalars": [overwrite], "input_bool_scalar_positions": [1]}
        call(Sometimes, torch.ones(2), convention="dc", **positions)

    sometimes(0)
    with pytest.raises(ValueError, match="Sometimes overwrites tensor 0, which it did not at its"):
        sometimes(1)


def test_a_promised_reuse_must_happen() -> None:
    with pytest.raises(ValueError, match="output 0 does not reuse tensor 0, although"):
        call(Square, torch.ones(2), tensor_reuse_map=[-1, 0])


def test_a_context_lives_once() -> None:
    options = {"func_name": name_of(Square), "output_convention": "d", "wanted": (True,)}
    context, _ = call(Square, torch.ones(2), input_requires_grads=[1], wanted=(True, True))
    number = context.tolist()
    assert number > 0x1000000 and context.dtype is torch.int64
    gradient = python_op.python_op_grad
    [dx] = gradient(number, torch.ones(2), output_tensor_requires_grads=[1], **options)
    assert dx.tolist() == [2, 2]
    with pytest.raises(ValueError, match=f"context {number} of .*Square is not alive"):
        gradient(number, torch.ones(2), output_tensor_requires_grads=[1], **options)


def test_a_context_dies_with_the_tensor_that_holds_its_number() -> None:
    context, _ = call(Square, torch.ones(2), input_requires_grads=[1], wanted=(True, True))
    assert len(python_op._contexts) == 1
    del context
    gc.collect()
    assert python_op._contexts == {}


def test_no_context_is_kept_that_nobody_reads() -> None:
    context, y = call(Square, torch.full((2,), 3.0), training_mode=1)
    assert context.item() == 0 and y.tolist() == [9, 9] and not y.requires_grad
    assert python_op._contexts == {}


def test_gradients_that_are_not_asked_for_are_not_given() -> None:
    context, _ = call(
        Doubled, torch.ones(2), torch.ones(2), input_requires_grads=[1, 1], wanted=(True, True)
    )
    found = python_op.python_op_grad(
        [context.item()],
        torch.ones(2),
        func_name=name_of(Doubled),
        output_convention="dd",
        output_tensor_requires_grads=[1, 1],
        wanted=(False, True),
    )
    assert found[0] is None and found[1].tolist() == [1, 1]


def test_arguments_are_put_together() -> None:
    marker = object()
    found = put_together(
        "cdccdcccc",
        ["first", "second"],
        {
            "input_bool_scalars": [1],
            "input_bool_scalar_positions": [0],
            "input_int_scalars": [7, -1],
            "input_int_scalar_positions": [2, 8],
            "input_float_scalars": [0.5],
            "input_float_scalar_positions": [3],
            "input_int_tuples": [1, 2, 3],
            "input_int_tuple_positions": [5, 6],
            "input_int_tuple_begins": [0, 2],
            "input_pointer_scalars": [registry.register_object(marker)],
            "input_pointer_scalar_positions": [7],
        },
    )
    assert found == [True, "first", 7, 0.5, "second", (1, 2), (3,), marker, -1]
    flags = {"tuples": [1, 0], "tuple_positions": [0, 1], "tuple_begins": [0, 0]}
    flags = {f"input_bool_{key}": value for key, value in flags.items()}
    assert put_together("cc", [], flags) == [(), (True, False)]


@pytest.mark.parametrize(
    ("convention", "constants", "message"),
    [
        ("dd", {}, "input_convention 'dd' does not fit 1 tensors"),
        ("x", {}, "input_convention 'x' does not fit 1 tensors"),
        ("dc", {}, "input_convention 'dc' does not fit 1 tensors and constants at positions []"),
        ("dc", {"input_int_scalars": [1]}, "input_int_scalars has 1 entries, input_int_scalar_"),
        ("d", {"input_int_tuple_begins": [0]}, "input_int_tuple_positions has 0 entries"),
        ("d", {"input_complex_scalars": [0]}, "attribute 'input_complex_scalars' is unknown"),
        (
            "dc",
            {"input_pointer_scalars": [5], "input_pointer_scalar_positions": [1]},
            "no Python object is registered as 5",
        ),
    ],
)
def test_arguments_that_contradict_each_other(
    convention: str, constants: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        put_together(convention, ["tensor"], constants)


def test_types_and_counts_are_checked() -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match=r"input 0 is torch.float32, input_tensor_types says"):
        call(Square, x, input_tensor_types=[INT64])
    with pytest.raises(ValueError, match=r"output 0 is torch.float32, output_tensor_types says"):
        call(Square, x, output_tensor_types=[INT64])
    with pytest.raises(ValueError, match="input_tensor_types has 2 entries for 1 tensors"):
        call(Square, x, input_tensor_types=[FLOAT, FLOAT])
    with pytest.raises(ValueError, match=r"Square gave 1 outputs, the node has 2"):
        call(Square, x, outputs=2)
    with pytest.raises(ValueError, match="input_requires_grads has 3 entries"):
        call(Square, x, input_requires_grads=[1, 1, 1])


@pytest.mark.parametrize("name", ["nothing.Here", "os.path.join", "Square", "torch.nn.Linear", ""])
def test_only_autograd_functions_are_called(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no torch.autograd.Function '{name}'")):
        registry.autograd_function(name)


def test_a_function_may_have_a_name_of_its_own() -> None:
    registry.register_autograd_function(Square, "my.square")
    assert registry.autograd_function("my.square") is Square
