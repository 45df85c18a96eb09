"""Training through branches and loops."""

import numpy as np
import onnx.parser
import torch

from onnxtrain import Trainer

RECURRENT = """<ir_version: 10, opset_import: ["": 21]> main
(float[N,4] x) => (float[N,3] y) <float[4,4] w, float[4,3] v, int64 m = {3}> {
  h = Loop (m, , x) <body = b (int64 i, bool go, float[N,4] s) => (bool on, float[N,4] t) {
    on = Identity(go)  one = Constant<value = int64 {1}>()  late = Less(one, i)  p = MatMul(s, w)
    t = If (late) <then_branch = c () => (float[N,4] a) { a = Tanh(p) },
                   else_branch = d () => (float[N,4] e) { f = Sin(p)  e = Add(f, s) }> }>
  y = MatMul(h, v) }"""


def recurrent() -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    w, v = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 4), (4, 3)))
    model = onnx.parser.parse_model(RECURRENT)
    del model.graph.input[1:]
    for name, array in {"w": w, "v": v}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, w, v


def test_gradients_are_those_of_the_unrolled_model(device: str) -> None:
    model, w, v = recurrent()
    trainer = Trainer(model, loss="cross_entropy", device=device)
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(3, size=8)
    found = trainer.gradients({"x": x, "labels": labels})
    leaves = [torch.tensor(array, requires_grad=True) for array in (w, v)]
    state = torch.tensor(x)
    for i in range(3):
        p = state @ leaves[0]
        state = torch.tanh(p) if i > 1 else torch.sin(p) + state
    scores = state @ leaves[1]
    torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
    for name, leaf in zip(("w", "v"), leaves, strict=True):
        torch.testing.assert_close(found[name].cpu(), leaf.grad, rtol=1e-5, atol=1e-6)


def test_the_loss_falls(device: str) -> None:
    trainer = Trainer(recurrent()[0], loss="cross_entropy", lr=0.02, device=device)
    x = np.random.default_rng(2).normal(size=(32, 4)).astype(np.float32)
    batch = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)}
    losses = [float(trainer.step(batch)) for _ in range(40)]
    assert losses[-1] < losses[0] / 1.5
