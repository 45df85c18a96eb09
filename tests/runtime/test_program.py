import linecache

import pytest
import torch

from onnxtrain.errors import NodeError, NoKernelError
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.runtime.lower import lower
from onnxtrain.runtime.program import Program
from runtime.small import REGISTRY, plan, prepared

HOST = torch.device("cpu")


def program(text: str, **state: torch.Tensor) -> Program:
    return Program(plan(text, state=tuple(state)), HOST, state)


def test_a_program_runs_its_plan() -> None:
    run = program("(float[2] x) => (float[2] y, float[2] z) { y = Neg(x)  z = Abs(y) }")
    y, z = run(torch.tensor([1.0, -2.0]))
    assert y.tolist() == [-1, 2] and z.tolist() == [1, 2]


def test_constants_are_copied_out_of_the_model() -> None:
    run = program("(float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }")
    assert run(torch.zeros(2))[0].tolist() == [1, 2]


def test_bound_state_is_used_as_it_is_and_can_be_replaced() -> None:
    text = "(float[2] w, float[2] x) => (float[2] y) { y = Mul(w, x) }"
    weight = torch.tensor([1.0, 2.0])
    run = program(text, w=weight)
    weight.mul_(10)
    assert run(torch.ones(2))[0].tolist() == [10, 20]
    run.bind("w", torch.tensor([3.0, 4.0]))
    assert run(torch.ones(2))[0].tolist() == [3, 4]


def test_no_gradients_are_recorded() -> None:
    run = program("(float[2] x) => (float[2] y) { y = Neg(x) }")
    assert not run(torch.ones(2, requires_grad=True))[0].requires_grad


def test_random_numbers_start_anew_with_a_seed() -> None:
    made = plan("() => (float[4] y) { y = RandomUniform<shape=[4]>() }")
    first, second = Program(made, HOST, seed=7), Program(made, HOST, seed=7)
    a, b = first()[0], first()[0]
    assert torch.equal(a, second()[0]) and not torch.equal(a, b)
    first.seed(7)
    assert torch.equal(a, first()[0])


def test_random_numbers_of_others_are_left_alone() -> None:
    made = plan("() => (float[4] y) { y = RandomUniform<shape=[4]>() }")
    before = torch.get_rng_state()
    first, second = Program(made, HOST), Program(made, HOST)
    assert not torch.equal(first()[0], second()[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_failure_names_the_node_its_operator_and_its_inputs() -> None:
    run = program("(float[M,N] x, float[K,L] w) => (float[M,L] y) { y = MatMul(x, w) }")
    with pytest.raises(NodeError) as caught:
        run(torch.ones(2, 3), torch.ones(4, 5))
    text = str(caught.value)
    assert text.startswith("node 'MatMul_y' (ai.onnx::MatMul) failed: RuntimeError: ")
    assert "inputs  a: float32[2, 3], b: float32[4, 5]" in text
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failure_shows_values_that_the_host_reads() -> None:
    run = program("(float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    with pytest.raises(NodeError, match=r"x: float32\[2, 3\], shape: int64\[2\]"):
        run(torch.ones(2, 3), torch.tensor([5, 5]))


def test_a_failure_tells_which_inputs_give_one_name_two_sizes() -> None:
    run = program("(float[N,3] x, float[M] w, float[N,3] y) => (float[N,3] z) { z = Add(x, y) }")
    told = r"sizes   'N' is 2 in 'x' and 5 in 'y': sizes of one name are equal, name them apart"
    with pytest.raises(NodeError, match=told):
        run(torch.ones(2, 3), torch.ones(2), torch.ones(5, 3))
    with pytest.raises(NodeError) as caught:
        run(torch.ones(5, 3), torch.ones(2), torch.ones(5, 4))
    assert "sizes" not in str(caught.value)


def test_errors_of_the_package_pass_unchanged() -> None:
    registry = KernelRegistry()

    @kernel("Neg", registry=registry)
    def neg(x):  # type: ignore[no-untyped-def]
        raise NoKernelError("not this one")

    made = lower(prepared("(float[2] x) => (float[2] y) { y = Neg(x) }"), registry)
    with pytest.raises(NoKernelError, match="not this one"):
        Program(made, HOST)(torch.ones(2))


def test_the_source_is_known_to_tracebacks() -> None:
    run = program("(float[2] x) => (float[2] y) { y = Neg(x) }")
    names = [name for name in linecache.cache if name.startswith("<onnxtrain step")]
    assert any("y = k_unary(x)" in "".join(linecache.getlines(name)) for name in names)
    assert run.steps[0].kernel.op == "Neg"


def test_hooks_run_around_every_step() -> None:
    run = program("(float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }")
    seen: list[tuple[str, int]] = []
    hooked = run.with_hook(lambda i: seen.append(("in", i)), lambda i: seen.append(("out", i)))
    assert hooked(torch.ones(2))[0].tolist() == [1, 1]
    assert seen == [("in", 0), ("out", 0), ("in", 1), ("out", 1)]
    run(torch.ones(2))
    assert len(seen) == 4


def test_a_step_that_yields_runs_in_two_halves() -> None:
    registry = KernelRegistry(REGISTRY.kernels())

    @kernel("Hand", domain="test.ops", special="yield", outputs=0, registry=registry)
    def hand(*xs):  # type: ignore[no-untyped-def]
        raise AssertionError("never called")

    text = "(float[2] x) => (float[2] g) { y = Neg(x)  d = test.ops.Hand(y)  g = Mul(d, x) }"
    made = lower(prepared(text), registry)
    assert made.yields
    run = Program(made, HOST)
    handed, rest = run.start(torch.tensor([1.0, 2.0]))
    assert [v.tolist() for v in handed] == [[-1, -2]]
    (grad,) = run.finish(rest, [torch.tensor([10.0, 10.0])])
    assert grad.tolist() == [10, 20]
