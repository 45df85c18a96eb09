"""Models for ``make_operators.py`` beside the table's rows.

They have strings or several nodes, which a row cannot hold, or inputs at the edge of what an
operator is defined for: NaN, infinity, divisors of zero, nothing at all.
"""

import dataclasses
import re
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NAMES = {"float32": "float", "float64": "double", "object": "string"}


@dataclasses.dataclass(frozen=True)
class Extra:
    """A graph: its nodes and outputs as ONNX text, its feeds, and what a refusal must name."""

    name: str
    body: str
    outputs: str
    feeds: dict[str, Any]
    says: str = ""

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
        head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
        return f"{head}\n{self.op} ({inputs}) => ({self.outputs}) {{ {self.body} }}"


def declared(value: Any) -> str:
    """Type of an input as ONNX text writes it."""
    if isinstance(value, list):
        return "seq(float[])"
    dims = f"[{','.join(map(str, value.shape))}]" if value.ndim else ""
    return NAMES.get(value.dtype.name, value.dtype.name) + dims


def node(name: str, text: str, outputs: str, feeds: dict[str, Any], says: str = "") -> Extra:
    """A graph of one node."""
    made = ", ".join(part.split()[-1] for part in outputs.split(", "))
    return Extra(name, f"{made} = {text}", outputs, feeds, says)


def ms(name: str, text: str, outputs: str, feeds: dict[str, Any], says: str = "") -> Extra:
    """A graph of one node of the training domain."""
    return node(name, f"com.microsoft.{text}", outputs, feeds, says)


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


SCALAR = 'SummaryScalar <tags = ["loss", "rate"]> (x)'
HISTOGRAM = 'SummaryHistogram <tag = "weights"> (x)'
TEXT = 'SummaryText <tag = "note"> (x)'
MERGE = (
    's = com.microsoft.SummaryScalar <tags = ["a", "b"]> (x) '
    't = com.microsoft.SummaryText <tag = "c"> (y) '
    "u = com.microsoft.SummaryMerge (s, t)"
)
BARRIER = "p = Neg (x) q = Neg (w) a, b = com.microsoft.PassThrough (p, q) y = Neg (a) z = Neg (b)"
STRINGS = [
    ms("float", SCALAR, "string s", {"x": v(0, 1.5)}),
    ms("double", SCALAR, "string s", {"x": np.array([0.1, 1e30])}),
    ms("bool", SCALAR, "string s", {"x": np.array([True, False])}),
    ms("both_signs", HISTOGRAM, "string s", {"x": v(-9, -2, 0, 2, 3, 9)}),
    ms("many", HISTOGRAM, "string s", {"x": f(4, 5) * 50 - 20}),
    ms("double", HISTOGRAM, "string s", {"x": np.array([0.5, 1e-30, -1e19])}),
    ms("special", HISTOGRAM, "string s", {"x": v(np.nan, np.inf, -np.inf, 1, 1e-13)}),
    ms("empty", HISTOGRAM, "string s", {"x": f(0)}),
    ms("vector", TEXT, "string s", {"x": words("a", "bc")}),
    ms("matrix", TEXT, "string s", {"x": words("a", "b", "c", "d").reshape(2, 2)}),
    Extra("two", MERGE, "string u", {"x": v(1, 2), "y": words("hello")}),
    Extra("between", BARRIER, "float[2] y, double[1] z", {"x": v(1, 2), "w": np.array([3.0])}),
]

NAN, INF = float("nan"), float("inf")
ODD = {"dY": v(1, 2, NAN, NAN, 3, 4, 5), "X": v(NAN, 0, 0, 1, -0.0, INF, -INF)}
SOME = np.array([True, False, True, False])
POINTWISE = [
    *(
        ms("special", f"{op} (dY, X)", "float[7] y", ODD)
        for op in ("ReluGrad", "LeakyReluGrad", "SigmoidGrad", "TanhGrad")
    ),
    *(
        ms("special", f"{op} (dY, X)", "float[7] y", ODD)
        for op in ("GeluGrad", "FastGeluGrad", "QuickGeluGrad")
    ),
    ms(
        "zero",
        "DivGrad (dY, A, B)",
        "float[3] dA, float[3] dB",
        {"dY": v(1, 0, -1), "A": v(1, 1, 2), "B": v(0, 0, 0)},
    ),
    ms(
        "masked_nan",
        "DropoutGrad (dy, m, r)",
        "float[4] y",
        {"dy": v(1, NAN, NAN, 4), "m": SOME, "r": s(0.25)},
    ),
    ms(
        "no_ratio_drops_nothing",
        "DropoutGrad (dy, m, r)",
        "float[4] y",
        {"dy": v(1, 2, 3, 4), "m": SOME, "r": s(0.0)},
    ),
    ms("masked_nan", "FakeQuantGrad (dY, m)", "float[4] y", {"dY": v(1, NAN, NAN, 4), "m": SOME}),
    *(
        ms(name, "FakeQuant (x, k, z)", "float[5] y, bool[5] m", {"x": x, "k": s(1.0), "z": s(z)})
        for name, x, z in (
            ("halves", v(0.5, 1.5, 2.5, -0.5, -1.5), 128.0),
            ("special", v(NAN, INF, -INF, 1e30, -1e30), 0.0),
            ("fraction", v(0.5, 1.2, -3, 300, 0), 2.75),
        )
    ),
    ms("down", "Scale <scale_down = 1> (x, k)", "double[2] y", {"x": np.ones(2), "k": i(3)}),
]
EMPTY = {"x": f(2, 0, 3), "a": i(1)}
SHAPE_PAIRS = (
    ("leading", (2, 16, 4, 4), (1, 1, 4, 4)),
    ("both", (2, 1, 4), (3, 1)),
    ("scalar", (), (2, 3)),
    ("extra_one", (3,), (1, 3)),
    ("ones", (1, 1), (5,)),
    ("nothing", (0, 3), (1, 3)),
)
SHAPED = [
    *(
        ms(name, "BroadcastGradientArgs (a, b)", "int64[A] x, int64[B] y", {"a": i(*a), "b": i(*b)})
        for name, a, b in SHAPE_PAIRS
    ),
    ms("empty_kept", "ReduceSumTraining (x, a)", "float[A,B,C] y", EMPTY),
    ms("empty", "ReduceSumTraining <keepdims = 0> (x, a)", "float[A,B] y", EMPTY),
    ms("repeated", "ReduceSumTraining (x, a)", "float[A,B] y", {"x": f(2, 3), "a": i(1, -1)}),
    ms(
        "no_axes",
        "ReduceSumTraining <noop_with_empty_axes = 1, keepdims = 0> (x, a)",
        "float[A,B] y",
        {"x": f(2, 3), "a": i()},
    ),
    ms(
        "whole",
        "GatherNDGrad (n, j, dY)",
        "float[A,B] y",
        {"n": i(2, 3), "j": np.zeros((2, 0), np.int64), "dY": f(2, 2, 3)},
    ),
    ms(
        "lengths_of_nothing",
        "ConcatTraining <axis = 0> (a, b)",
        "float[A,B] y, int64[N] n",
        {"a": f(0, 2), "b": f(0, 2)},
    ),
    ms("overflow", "ReduceAllL2 (a, b)", "float y", {"a": v(1e20), "b": v(1e20)}),
    ms("nan", "ReduceAllL2 (a, b)", "float y", {"a": v(NAN), "b": v(1)}),
]
SCORES, IGNORED = {"x": f(3, 4)}, {"t": i(-1, -1, -1)}
LOGS = {"dY": s(1.0), "x": -f(3, 4), "t": i(1, -1, 0)}
LOSS_OUT = "float Y, float[A,B] L"
LOSSES = [
    ms("ignored", "SoftmaxCrossEntropyLossInternal (x, t)", LOSS_OUT, SCORES | IGNORED),
    ms(
        "minus_one", "SoftmaxCrossEntropyLossInternal (x, t)", LOSS_OUT, SCORES | {"t": i(1, -1, 0)}
    ),
    ms("minus_one", "SoftmaxCrossEntropyLossGrad (dY, x, t)", "float[A,B] y", LOGS),
    ms("ignored", "SoftmaxCrossEntropyLossGrad (dY, x, t)", "float[A,B] y", LOGS | IGNORED),
    ms(
        "nan_ignored",
        "SoftmaxCrossEntropyLossGrad (dY, x, t)",
        "float[A,B] y",
        LOGS | {"x": np.where(LOGS["t"][:, None] < 0, np.float32(NAN), LOGS["x"])},
    ),
    ms(
        "ignored",
        'NegativeLogLikelihoodLossInternal2 (x, t, "", k)',
        "float Y",
        {"x": -f(3, 4), **IGNORED, "k": s(-1)},
    ),
    node(
        "no_weight",
        "SparseSoftmaxCrossEntropy (x, t, w)",
        LOSS_OUT,
        {"x": f(3, 4), "t": i(0, 1, 2), "w": v(0, 0, 0)},
    ),
    node(
        "no_weight",
        "SparseSoftmaxCrossEntropyGrad (dY, x, t, w)",
        "float[A,B] y",
        {"dY": s(1.0), "x": -f(3, 4), "t": i(0, 1, 2), "w": v(0, 0, 0)},
    ),
]
ADAM = {"R": s(0.1), "T": s(0), "w": v(1, 2), "g": v(3, 4), "m": v(0.1, 0.2), "n": v(0.3, 0.4)}
ADAM_OUT = "int64 T1, float[2] m1, float[2] n1, float[2] w1, float[2] g1"
ADAMW = {"lr": s(0.1), "t": s(1), "w": [v(1, 2)], "g": [v(3, NAN)], "m": [v(0, 0)], "n": [v(0, 0)]}
ADAMW_NODE = "AdamWOptimizer <alpha = 0.9, beta = 0.999> (lr, t, w, g, m, n)"
SEQUENCES = "bool done, seq(float[N]) w1, seq(float[N]) m1, seq(float[N]) n1"
UPDATES = [
    ms("step_0", "AdamOptimizer (R, T, w, g, m, n)", ADAM_OUT, ADAM),
    ms("nan", ADAMW_NODE, SEQUENCES, ADAMW),
    ms(
        "step_0",
        ADAMW_NODE,
        SEQUENCES,
        ADAMW | {"t": s(0), "g": [v(3, 4)]},
    ),
    ms("nan", "InplaceClipGradNorm (g)", "seq(float[N]) c", {"g": [v(NAN, 1), v(2)]}),
    ms("infinite", "InplaceClipGradNorm (g)", "seq(float[N]) c", {"g": [v(INF, 1), v(2)]}),
]
VALUES = [*STRINGS, *POINTWISE, *SHAPED, *LOSSES, *UPDATES]
