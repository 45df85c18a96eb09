"""A loss joined with its gradient gives the same step."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from onnxtrain import InferenceSession, Trainer, onnxblock
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join
from onnxtrain.transforms.backward.loss import join_losses
from onnxtrain.types import OWN

TEXT = """
<ir_version: 10, opset_import: ["" : 17]>
scored (float[batch, 4] x, int64[batch] labels) => (float loss)
<float[4, 3] w = {0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, -0.8, 0.9, 1.0, 1.1, -1.2},
 float[3] by_class = {0.5, 1.0, 2.0}> {
    scores = MatMul(x, w)
    loss, log_prob = SoftmaxCrossEntropyLoss<ATTRIBUTES>(scores, labels, WEIGHTS)
}
"""


def _model(attributes: str = 'reduction="mean"', weights: str = "") -> onnx.ModelProto:
    text = TEXT.replace("ATTRIBUTES", attributes).replace(", WEIGHTS", weights)
    return onnx.parser.parse_model(text)


def _step(model: onnx.ModelProto, joined: bool) -> tuple[int, dict[str, np.ndarray]]:
    graph = prepare(load_model(build_gradient_graph(model, ["w"], ["loss"], loss="loss")))
    count = join_losses(graph) if joined else 0
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    feeds = {
        "x": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32),
        "labels": np.array([0, 2, -1, 1, 2], np.int64),
    }
    names = ["loss", "w_grad"]
    return count, dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("attributes", ['reduction="mean"', 'reduction="sum", ignore_index=-1'])
@pytest.mark.parametrize("weights", ["", ", by_class"])
def test_joined_losses_give_the_same(attributes: str, weights: str) -> None:
    model = _model(attributes, weights)
    count, found = _step(model, joined=True)
    _, expected = _step(model, joined=False)
    assert count == 1
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-6)


def test_log_probabilities_that_others_read_are_kept() -> None:
    model = _model()
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("log_prob", onnx.TensorProto.FLOAT, ["batch", 3])
    )
    graph = prepare(load_model(build_gradient_graph(model, ["w"], ["loss"], loss="loss")))
    assert join(graph) == 0


def test_a_gradient_that_depends_on_the_loss_is_left_alone() -> None:
    model = _model()
    node = onnx.helper.make_node("Mul", ["loss", "loss"], ["square"])
    model.graph.node.append(node)
    model.graph.output[0].name = "square"
    graph = prepare(load_model(build_gradient_graph(model, ["w"], ["square"], loss="square")))
    assert join(graph) == 0


def test_a_trainer_joins_and_learns() -> None:
    torch.manual_seed(0)
    text = TEXT[: TEXT.index("    loss,")] + "}"
    text = text.replace(", int64[batch] labels", "").replace("float loss", "float[batch, 3] scores")
    trainer = Trainer(onnx.parser.parse_model(text), loss=onnxblock.loss.CrossEntropyLoss(),
                      lr=0.05, device="cpu")  # fmt: skip
    plan = trainer.module.runner(training=True).plan
    assert [s.kernel.op for s in plan.block.steps if s.kernel.domain == OWN] == [
        "CrossEntropyWithGrad"
    ]
    x = torch.randn(32, 4)
    batch = {"x": x, "labels": (x[:, 0] > 0).long()}
    first = float(trainer.step(batch))
    for _ in range(60):
        last = float(trainer.step(batch))
    assert last < 0.5 * first
