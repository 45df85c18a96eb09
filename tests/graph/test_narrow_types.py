"""bfloat16 in opsets whose operators do not list it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain.graph.inference.infer import infer_node
from onnxtrain.training.trainer import Trainer
from onnxtrain.types import DataType


def value(name: str, dtype: DataType, *shape: int) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(int(dtype))), shape=ir.Shape(shape))


@pytest.mark.parametrize("opset", [9, 12, 16])
def test_where_and_cast(opset: int) -> None:
    condition, x = value("c", DataType.BOOL, 2, 1), value("x", DataType.BFLOAT16, 1, 3)
    where = ir.Node("", "Where", [condition, x, x], outputs=[ir.Value(name="y")])
    infer_node(where, {"": opset})
    to = ir.AttrInt64("to", int(DataType.BFLOAT16))
    cast = ir.Node("", "Cast", [value("f", DataType.FLOAT, 4)], [to], outputs=[ir.Value(name="z")])
    infer_node(cast, {"": opset})
    (y,), (z,) = where.outputs, cast.outputs
    assert y.shape == ir.Shape((2, 3)) and z.shape == ir.Shape((4,))
    assert x.dtype == y.dtype == z.dtype == DataType.BFLOAT16


def test_sequences_have_parts_of_the_same_type() -> None:
    x = value("x", DataType.BFLOAT16, 4, 3)
    split = ir.Node("", "SplitToSequence", [x], outputs=[ir.Value(name="s")])
    infer_node(split, {"": 18})
    assert split.outputs[0].type == ir.SequenceType(ir.TensorType(ir.DataType.BFLOAT16))


def test_old_models_train_in_sixteen_bits() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 6, opset_import: ["" : 11]>
        old (float[N, 4] x) => (float[N, 3] y) {
            a = MatMul(x, w) m = ReduceMax<axes=[1]>(a) d = Sub(a, m)
            e = Exp(d) h = HardSigmoid(e) y = MatMul(h, v)
        }"""
    )
    generator = np.random.default_rng(0)
    for name, shape in (("w", (4, 8)), ("v", (8, 3))):
        content = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    data = {"x": generator.standard_normal((6, 4)).astype(np.float32), "labels": np.arange(6) % 3}
    losses = {}
    for precision in ("fp32", "bf16"):
        trainer = Trainer(model, loss="cross_entropy", lr=0.01, seed=0, precision=precision)
        losses[precision] = [float(trainer.step(data)) for _ in range(4)]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
    assert losses["bf16"][-1] < losses["bf16"][0]
