"""Transposed products are computed as products of the transposed."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join

FLAGS = list(itertools.product((0, 1), repeat=2))


def _model(a: int, b: int, extra: str = "", outputs: str = "float[n, m] y") -> ir.Model:
    shapes = ("4, 3" if a else "3, 4", "5, 4" if b else "4, 5")
    return prepare(
        load_model(
            onnx.parser.parse_model(f"""
                <ir_version: 10, opset_import: ["" : 17]>
                turned (float[{shapes[0]}] a, float[{shapes[1]}] b, float[3, 5] c) => ({outputs})
                {{ p = Gemm<transA={a}, transB={b}, alpha=0.5>(a, b{extra}) y = Transpose(p) }}
            """)
        )
    )


def _run(model: ir.Model) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {v.name: v.shape.numpy() for v in model.graph.inputs if v.shape is not None}
    feeds = {name: random.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    return InferenceSession(ir.to_proto(model).SerializeToString()).run(None, feeds)


@pytest.mark.parametrize(("a", "b"), FLAGS)
def test_the_transpose_is_gone_and_nothing_changes(a: int, b: int) -> None:
    model = _model(a, b)
    (expected,) = _run(_model(a, b))
    assert join(model) == 1
    assert [node.op_type for node in model.graph] == ["Gemm"]
    np.testing.assert_allclose(_run(model)[0], expected, rtol=1e-6)


def test_a_product_that_is_read_elsewhere_or_has_a_summand_stays() -> None:
    assert join(_model(0, 0, ", c")) == 0
    assert join(_model(0, 0, outputs="float[n, m] y, float[m, n] p")) == 0
