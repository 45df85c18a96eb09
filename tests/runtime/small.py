"""A registry of a dozen kernels, and models in text, for tests of the runtime alone."""

from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import torch

from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import DataType

REGISTRY = KernelRegistry()
TEST = "test.ops"
"""Domain of operators that exist for these tests only."""


def _binary(op: str, function: Any) -> None:
    @kernel(op, inplace=["a", "b"], registry=REGISTRY)
    def binary(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> Any:
        return function(a, b, out=out)


def _unary(op: str, function: Any) -> None:
    @kernel(op, inplace=["x"], registry=REGISTRY)
    def unary(x: torch.Tensor, *, out: torch.Tensor | None = None) -> Any:
        return function(x, out=out)


for _name, _function in {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}.items():
    _binary(_name, _function)
for _name, _function in {"Neg": torch.neg, "Abs": torch.abs}.items():
    _unary(_name, _function)


@kernel("Max", registry=REGISTRY)
def maximum(*xs: torch.Tensor) -> torch.Tensor:
    result = xs[0].clone()
    for x in xs[1:]:
        result = torch.maximum(result, x)
    return result


@kernel("Exp", registry=REGISTRY, T=[DataType.FLOAT])
def exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


@kernel("Identity", view="x", registry=REGISTRY)
def identity(x: torch.Tensor) -> torch.Tensor:
    return x


@kernel("Transpose", view="x", registry=REGISTRY)
def transpose(x: torch.Tensor, *, perm: tuple[int, ...] | None = None) -> torch.Tensor:
    return x.permute(perm or tuple(range(x.ndim))[::-1])


@kernel("Reshape", view="x", host=["shape"], registry=REGISTRY)
def reshape(x: torch.Tensor, shape: list[int], *, allowzero: int = 0) -> torch.Tensor:
    return x.reshape(shape)


@kernel("Split", view="x", host=["split"], outputs=0, registry=REGISTRY, needs=["wanted"])
def split(x: torch.Tensor, split: Any = None, *, axis: int = 0, wanted: Any, **_: Any) -> Any:
    return x.split(split or x.shape[axis] // len(wanted), dim=axis)


@kernel("ReduceSum", host=["axes"], registry=REGISTRY)
def reduce_sum(x: Any, axes: Any = None, *, keepdims: int = 1, **_: Any) -> Any:
    return x.sum(axes, keepdim=bool(keepdims))


@kernel("MatMul", registry=REGISTRY)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@kernel("Shape", host_out=[0], registry=REGISTRY)
def shape(x: torch.Tensor, *, start: int = 0, end: int | None = None) -> torch.Tensor:
    return torch.tensor(x.shape[start:end])


@kernel("TopK", host=["k"], outputs=2, registry=REGISTRY)
def top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    return tuple(torch.topk(x, k[0], axis))


@kernel("RandomUniform", needs=["rng", "device"], registry=REGISTRY)
def random_uniform(*, shape: Any, rng: Any, device: Any, **_: Any) -> torch.Tensor:
    return torch.rand(shape, generator=rng, device=device)


@kernel("Bump", domain=TEST, mutates=["x"], view="x", registry=REGISTRY)
def bump(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """x += by."""
    return x.add_(by)


@kernel("Accumulate", domain=TEST, updates=["x"], view="x", registry=REGISTRY)
def accumulate(x: torch.Tensor, by: torch.Tensor, *, update: bool = False) -> torch.Tensor:
    """x + by, kept in x if x is state."""
    return x.add_(by) if update else x + by


def model(text: str, opset: int = 21) -> onnx.ModelProto:
    """A model from ONNX's text form: ``(float[2] x) => (float[2] y) { y = Neg(x) }``."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "{TEST}": 1]> main '
    return onnx.parser.parse_model(head + text)


def prepared(text: str) -> ir.Model:
    """The same, with types and shapes."""
    return prepare(load_model(model(text)))


def plan(text: str, state: tuple[str, ...] = (), **options: Any) -> Plan:
    """The plan of a model."""
    return lower(prepared(text), REGISTRY, LowerOptions(**options), state)


def session(text: str | onnx.ModelProto, **options: Any) -> InferenceSession:
    """A session over the small registry."""
    source = model(text) if isinstance(text, str) else text
    return InferenceSession(source, SessionOptions(**options), registry=REGISTRY)
