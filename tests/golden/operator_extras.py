"""Models for ``make_operators.py`` that a row cannot hold: with strings, or of several nodes."""

import dataclasses
import re
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NAMES = {"float32": "float", "float64": "double", "object": "string"}


@dataclasses.dataclass(frozen=True)
class Extra:
    """A graph: its nodes and outputs as ONNX text, and its feeds."""

    name: str
    body: str
    outputs: str
    feeds: dict[str, Any]
    says: str = ""
    opset: int = 21

    @property
    def op(self) -> str:
        """The operator it is about: the last training operator, or the only one."""
        found = re.findall(r"com\.microsoft\.(\w+)", self.body) or re.findall(r"= (\w+)", self.body)
        return str(found[-1])

    @property
    def key(self) -> str:
        """Name among all cases."""
        return f"{self.op}-{self.name}"

    def text(self) -> str:
        """The model."""
        inputs = ", ".join(f"{declared(value)} {name}" for name, value in self.feeds.items())
        opsets = f'["" : {self.opset}, "com.microsoft" : 1]'
        head = f"<ir_version: 10, opset_import: {opsets}>"
        return f"{head}\n{self.op} ({inputs}) => ({self.outputs}) {{ {self.body} }}"


def declared(value: Any) -> str:
    """Type of an input as ONNX text writes it."""
    if isinstance(value, list):
        return "seq(float[])"
    dims = f"[{','.join(map(str, value.shape))}]" if value.ndim else ""
    return NAMES.get(value.dtype.name, value.dtype.name) + dims


def f(*shape: int) -> Array:
    """Floats that are all different, between 0 and 1."""
    count = int(np.prod(shape))
    return ((np.arange(count, dtype=np.float32) + 1) / (count + 1)).reshape(shape)


def v(*items: float) -> Array:
    """A vector of floats."""
    return np.array(items, np.float32)


def i(*items: Any) -> Array:
    """A vector (or matrix) of int64."""
    return np.array(items, np.int64)


def s(item: Any) -> Array:
    """A scalar: float32, int64 or bool."""
    array = np.array(item)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def words(*items: str) -> Array:
    """A vector of strings."""
    return np.array(items, object)


def ms(name: str, node: str, outputs: str, says: str = "", opset: int = 21, **feeds: Any) -> Extra:
    """One node of the training domain."""
    made = ", ".join(part.split()[-1] for part in outputs.split(", "))
    return Extra(name, f"{made} = com.microsoft.{node}", outputs, feeds, says, opset)


def onnx(name: str, node: str, outputs: str, says: str, **feeds: Any) -> Extra:
    """One node of a training operator in ONNX's own domain."""
    made = ", ".join(part.split()[-1] for part in outputs.split(", "))
    return Extra(name, f"{made} = {node}", outputs, feeds, says)


SCALAR = 'SummaryScalar <tags = ["loss", "rate"]> (x)'
HISTOGRAM = 'SummaryHistogram <tag = "weights"> (x)'
TEXT = 'SummaryText <tag = "note"> (x)'
MERGE = (
    's = com.microsoft.SummaryScalar <tags = ["a", "b"]> (x) '
    't = com.microsoft.SummaryText <tag = "c"> (y) '
    "u = com.microsoft.SummaryMerge (s, t)"
)
BARRIER = "p = Neg (x) q = Neg (w) a, b = com.microsoft.PassThrough (p, q) y = Neg (a) z = Neg (b)"
VALUES = [
    ms("float", SCALAR, "string s", x=v(0, 1.5)),
    ms("double", SCALAR, "string s", x=np.array([0.1, 1e30])),
    ms("bool", SCALAR, "string s", x=np.array([True, False])),
    ms("both_signs", HISTOGRAM, "string s", x=v(-9, -2, 0, 2, 3, 9)),
    ms("many", HISTOGRAM, "string s", x=f(4, 5) * 50 - 20),
    ms("double", HISTOGRAM, "string s", x=np.array([0.5, 1e-30, -1e19])),
    ms("special", HISTOGRAM, "string s", x=v(np.nan, np.inf, -np.inf, 1, 1e-13)),
    ms("empty", HISTOGRAM, "string s", x=f(0)),
    ms("vector", TEXT, "string s", x=words("a", "bc")),
    ms("matrix", TEXT, "string s", x=words("a", "b", "c", "d").reshape(2, 2)),
    Extra("two", MERGE, "string u", {"x": v(1, 2), "y": words("hello")}),
    Extra("between", BARRIER, "float[2] y, double[1] z", {"x": v(1, 2), "w": np.array([3.0])}),
]
