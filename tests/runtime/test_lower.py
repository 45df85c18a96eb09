import pytest
import torch

from onnxtrain.errors import NodeError, NoKernelError
from onnxtrain.kernels.library import default_registry
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.plan import Step
from onnxtrain.types import CUDA
from runtime.small import REGISTRY, plan, prepared, session


def steps(text: str, **options: object) -> dict[str, Step]:
    return {step.kernel.op: step for step in plan(text, **options).block.steps}


def test_the_plan_reads_as_python() -> None:
    made = plan("(float[2,3] x) => (float[3,2] z) { y = Neg(x)  z = Transpose<perm=[1,0]>(y) }")
    assert made.source() == (
        "def step(x):\n"
        "    y = k_unary(x)  # Neg_y Neg -> float[2,3]\n"
        "    z = k_transpose(y, perm=(1, 0))  # Transpose_z Transpose -> float[3,2]\n"
        "    del y\n"
        "    return (z,)\n"
    )


def test_inputs_and_outputs_are_as_the_graph_declares_them() -> None:
    made = plan("(float[N,3] x, int64[1] k) => (float[N,K] y) { y, i = TopK(x, k) }")
    assert [a.name for a in made.inputs] == ["x", "k"]
    assert [a.name for a in made.outputs] == ["y"]
    assert str(made.inputs[0].shape) == "[N,3]"


def test_constant_host_inputs_become_literals() -> None:
    found = steps("(float[2,3] x) => (float[3,2] y) <int64[2] s = {3, 2}> { y = Reshape(x, s) }")
    assert found["Reshape"].args == ("x", "[3, 2]")
    assert found["Reshape"].reads == ("x", None)


def test_host_inputs_that_are_fed_are_read_at_run_time() -> None:
    found = steps("(float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    assert found["Reshape"].args == ("x", "s.tolist()")


def test_absent_inputs_are_none_and_trailing_ones_are_left_out() -> None:
    found = steps("(float[2,3] x) => (float[1,1] y) { y = ReduceSum(x) }")
    assert found["ReduceSum"].args == ("x",)


def test_large_host_constants_are_bound_by_name() -> None:
    numbers = ", ".join(["1"] * 40)
    made = plan(
        f"(float[1] x) => (float[M] y) <int64[40] s = {{{numbers}}}> {{ y = Reshape(x, s) }}"
    )
    name = made.block.steps[0].args[1]
    assert made.constants[name] == ([1] * 40, True)


@pytest.mark.parametrize("length, is_shown", [(10, True), (5000, False)])
def test_long_texts_are_bound_by_name(length: int, is_shown: bool) -> None:
    equation = "ij->ji" + " " * length
    text = f'(float[2,3] x) => (float[3,2] y) {{ y = Einsum<equation="{equation}">(x) }}'
    made = lower(prepared(text), default_registry(), LowerOptions(), ())
    assert (repr(equation) in made.source()) is is_shown
    assert (equation in [value for value, _ in made.constants.values()]) is not is_shown


def test_resources_are_bound_by_the_planner() -> None:
    found = steps("() => (float[2] y) { y = RandomUniform<shape=[2]>() }")
    assert found["RandomUniform"].keywords == {"shape": "(2,)", "rng": "rng", "device": "device"}


def test_wanted_says_which_outputs_are_read() -> None:
    found = steps("(float[4] x) => (float[2] b) { a, b = Split<num_outputs=2>(x) }")
    assert found["Split"].keywords["wanted"] == "(False, True)"
    assert found["Split"].outputs == (None, "b")


def test_options_reach_kernels_that_ask_for_them() -> None:
    registry = KernelRegistry()

    @kernel("Abs", needs=["deterministic", "opset", "node", "out_shape"], registry=registry)
    def absolute(x, *, deterministic, opset, node, out_shape):  # type: ignore[no-untyped-def]
        return x.abs()

    made = lower(
        prepared("(float[2,N] x) => (float[2,N] y) { y = Abs(x) }"),
        registry,
        LowerOptions(deterministic=True),
    )
    assert made.block.steps[0].keywords == {
        "deterministic": "True",
        "opset": "21",
        "node": "'Abs_y'",
        "out_shape": "(2, None)",
    }


def test_state_is_bound_instead_of_passed() -> None:
    made = plan("(float[2] w, float[2] x) => (float[2] y) { y = Add(w, x) }", state=("w",))
    assert [a.name for a in made.inputs] == ["x"]
    assert made.state == {"w": "s_w"}
    assert made.block.steps[0].args == ("s_w", "x")


def test_every_node_without_a_kernel_is_named_at_once() -> None:
    with pytest.raises(NoKernelError) as caught:
        plan("(double[2] x) => (double[2] z) { y = Exp(x)  w = Sigmoid(y)  z = Cos(w) }")
    text = str(caught.value)
    assert "no CPU kernel for ai.onnx::Exp (opset 21, T=double), node 'Exp_y'" in text
    assert "have  Exp 1+ on CPU|CUDA T={float}" in text
    assert "no CPU kernel for ai.onnx::Sigmoid (opset 21, T=double), node 'Sigmoid_w'" in text
    assert "no CPU kernel for ai.onnx::Cos (opset 21, T=double), node 'Cos_z'" in text
    assert "have  no kernel for this operator" in text


def test_an_attribute_that_the_kernel_does_not_know_is_refused() -> None:
    registry = KernelRegistry()

    @kernel("Transpose", registry=registry, view="x")
    def transpose(x):  # type: ignore[no-untyped-def]
        return x.T

    with pytest.raises(NoKernelError, match="does not know attribute 'perm' of node"):
        lower(
            prepared("(float[2,3] x) => (float[3,2] y) { y = Transpose<perm=[1,0]>(x) }"), registry
        )


def test_more_inputs_than_the_kernel_takes_are_refused() -> None:
    registry = KernelRegistry()

    @kernel("ReduceSum", registry=registry)
    def reduce_sum(x, *, keepdims=1, noop_with_empty_axes=0):  # type: ignore[no-untyped-def]
        return x.sum()

    text = "(float[2] x, int64[1] a) => (float[M] y) { y = ReduceSum(x, a) }"
    with pytest.raises(NodeError, match="takes at most 1 inputs, node 'ReduceSum_y' has 2"):
        lower(prepared(text), registry)


SHAPES = """(float[N,4] x, float[M] v) => (float[A,B] y) {
    s = Shape(x)  n = Neg(s)  d = Neg(n)  y = Reshape(v, d)
}"""


def test_on_a_device_shapes_are_computed_on_the_host() -> None:
    made = plan(SHAPES, provider=CUDA)
    found = [step.kernel.op for step in made.block.steps]
    assert found == ["Shape", "Neg", "Neg", "Reshape", "Copy"]
    assert made.block.steps[3].args == ("v", "d.tolist()")


def test_on_a_device_values_move_where_they_are_needed_once() -> None:
    made = plan(
        "(int64[2] x) => (int64[2] y, int64[2] z) "
        "{ s = Shape(x)  t = Neg(s)  y = Add(x, t)  z = Sub(x, t) }",
        provider=CUDA,
    )
    ops = [step.kernel.op for step in made.block.steps]
    assert ops.count("ToDevice") == 1
    assert ops.index("ToDevice") > ops.index("Neg")


def test_on_a_device_inputs_that_only_the_host_reads_stay_there() -> None:
    made = plan("(float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }", provider=CUDA)
    assert [a.host for a in made.inputs] == [False, True]


def test_a_kernel_for_the_provider_beats_a_portable_one() -> None:
    registry = KernelRegistry(REGISTRY.kernels())

    @kernel("Neg", on=CUDA, registry=registry)
    def neg_cuda(x):  # type: ignore[no-untyped-def]
        return -x

    text = "(float[2] x) => (float[2] y) { y = Neg(x) }"
    on_device = lower(prepared(text), registry, LowerOptions(CUDA))
    assert on_device.block.steps[0].function == "k_neg_cuda"
    assert lower(prepared(text), registry).block.steps[0].function == "k_unary"


def test_names_become_identifiers_that_do_not_clash() -> None:
    made = plan(
        "(float[2] device) => (float[2] step) { a_b = Neg(device)  rng = Abs(a_b)  "
        "step = Neg(rng) }"
    )
    assert made.block.parameters == ("device_2",)
    assert made.block.results == ("step_2",)


def test_the_same_value_may_be_returned_only_through_storage_of_its_own() -> None:
    made = plan("(float[2] x) => (float[2] x2, float[2] y) { y = Neg(x)  x2 = Identity(y) }")
    results = made.block.results
    assert len(set(results)) == 2


def test_dynamic_shapes_need_no_new_plan() -> None:
    runs = session(SHAPES)
    before = runs.plan
    for rows in (1, 3):
        y = runs.run_torch(None, {"x": torch.ones(rows, 4), "v": torch.arange(rows * 4.0)})[0]
        assert list(y.shape) == [rows, 4]
    assert runs.plan is before
