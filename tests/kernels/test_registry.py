import functools
from typing import Any

import pytest

from onnxtrain.errors import NoKernelError, RegistrationError
from onnxtrain.kernels.library import (
    declared_kernels,
    default_registry,
    is_training,
    register_cpu_training_kernels,
    register_cuda_training_kernels,
)
from onnxtrain.kernels.registry import Kernel, KernelRegistry, kernel
from onnxtrain.types import CPU, CUDA, FLOATS, INTS, MS, DataType

FLOAT, INT64 = DataType.FLOAT, DataType.INT64


def fn(x: Any, axes: Any = None, *, alpha: float = 1.0, out: Any = None) -> Any:
    return x


def made(registry: KernelRegistry, op: str = "Op", function: Any = fn, **facts: Any) -> Kernel:
    @functools.wraps(function)
    def copy(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    kernel(op, registry=registry, **facts)(copy)
    found: Kernel = copy.__dict__["kernels"][-1]
    return found


def test_inputs_and_attributes_are_read_off_the_function() -> None:
    item = made(KernelRegistry(), host=["axes"], inplace=["x"])
    assert item.inputs == ("x", "axes")
    assert item.variadic is None and not item.any_attribute
    assert dict(item.attributes) == {"alpha": 1.0}
    assert item.input_name(1) == "axes"
    with pytest.raises(IndexError):
        item.input_name(2)


def test_variadic_inputs_have_one_name() -> None:
    def many(x: Any, *xs: Any) -> Any:
        return x

    item = made(KernelRegistry(), function=many, view="xs")
    assert [item.input_name(i) for i in range(3)] == ["x", "xs", "xs"]


def test_several_operators_may_share_a_function() -> None:
    registry = KernelRegistry()
    kernel("A", "B", registry=registry)(lambda x: x)
    assert ("", "A") in registry and ("", "B") in registry and len(registry) == 2


@pytest.mark.parametrize("fact", ["host", "inplace", "mutates", "updates", "view"])
def test_facts_must_name_parameters(fact: str) -> None:
    value = "y" if fact == "view" else ["y"]
    with pytest.raises(RegistrationError, match=rf"{fact} names \['y'\], but the parameters are"):
        made(KernelRegistry(), **{fact: value})


def test_facts_must_fit_the_signature() -> None:
    def plain(x: Any) -> Any:
        return x

    with pytest.raises(RegistrationError, match="declares inplace but has no out="):
        made(KernelRegistry(), function=plain, inplace=["x"])
    with pytest.raises(RegistrationError, match="declares updates but has no update="):
        made(KernelRegistry(), function=plain, updates=["x"])
    with pytest.raises(RegistrationError, match=r"needs \['rng'\] but does not take it"):
        made(KernelRegistry(), function=plain, needs=["rng"])

    def asks(x: Any, *, weather: str) -> Any:
        return x

    with pytest.raises(RegistrationError, match=r"unknown resource \['weather'\]"):
        made(KernelRegistry(), function=asks, needs=["weather"])


def test_two_kernels_for_the_same_nodes_are_refused() -> None:
    registry = KernelRegistry()
    made(registry, T=FLOATS)
    with pytest.raises(RegistrationError, match=r"two kernels claim ai\.onnx::Op") as caught:
        made(registry, T={FLOAT})
    assert "test_registry.py" in str(caught.value)
    made(registry, T=INTS)
    made(registry, T={FLOAT}, on=CUDA)
    made(registry, domain=MS, T=FLOATS)
    assert len(registry) == 4


def test_versions_that_do_not_overlap_live_side_by_side() -> None:
    registry = KernelRegistry()
    old, new = made(registry, until=12), made(registry, since=13)
    assert registry.find("", "Op", 12, {}, CPU) is old
    assert registry.find("", "Op", 13, {}, CPU) is new
    with pytest.raises(RegistrationError):
        made(registry, since=12, until=12)


def test_types_decide_and_unknown_types_fit_all() -> None:
    registry = KernelRegistry()
    item = made(registry, T={FLOAT}, Tind=INTS)
    assert registry.find("", "Op", 1, {"T": FLOAT, "Tind": INT64}, CPU) is item
    assert registry.find("", "Op", 1, {"T": None}, CPU) is item
    assert registry.find("", "Op", 1, {"T": INT64}, CPU) is None
    assert registry.find("", "Op", 1, {"T": FLOAT, "V": INT64}, CPU) is item


def test_a_provider_s_own_kernel_beats_a_portable_one() -> None:
    registry = KernelRegistry()
    portable, own = made(registry), made(registry, on=CUDA)
    assert registry.find("", "Op", 1, {}, CUDA) is own
    assert registry.find("", "Op", 1, {}, CPU) is portable


def test_a_miss_lists_what_exists() -> None:
    registry = KernelRegistry()
    made(registry, T={FLOAT}, since=7)
    with pytest.raises(NoKernelError) as caught:
        registry.resolve("", "Op", 13, {"T": INT64}, CPU, "n")
    text = str(caught.value)
    assert text.startswith("no CPU kernel for ai.onnx::Op (opset 13, T=int64), node 'n'\n")
    assert "have  Op 7+ on CPU|CUDA T={float} (" in text


def test_a_miss_suggests_a_kernel_of_another_domain_or_case() -> None:
    registry = KernelRegistry()
    made(registry, "Gelu", domain=MS)
    with pytest.raises(NoKernelError, match=r"did you mean com.microsoft::Gelu\?"):
        registry.resolve("", "GELU", 20, {}, CPU)


def test_the_library_imports_every_family_once() -> None:
    assert declared_kernels() is declared_kernels()
    assert len(default_registry()) == len(declared_kernels())
    assert ("", "Add") in default_registry()
    assert (MS, "SoftmaxGrad_13") in default_registry()


def test_a_miss_tells_that_onnx_has_no_such_operator() -> None:
    with pytest.raises(NoKernelError) as caught:
        default_registry().resolve("", "Erfc", 17, {"x": FLOAT}, CPU)
    text = str(caught.value)
    assert "\n  ONNX has no operator Erfc: if a converter left it in the file, convert" in text
    assert "\n  declare one with @kernel" in text


def test_training_kernels_can_be_added_to_a_registry() -> None:
    registry = KernelRegistry()
    register_cpu_training_kernels(registry)
    assert all(is_training(item) and CPU in item.on for item in registry.kernels())
    assert (MS, "ReluGrad") in registry and ("", "Add") not in registry
    before = len(registry)
    register_cpu_training_kernels(registry)
    register_cuda_training_kernels(registry)
    assert len(registry) >= before
    assert len({id(item) for item in registry.kernels()}) == len(registry)
