"""Models and batches for training in 16 bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain import Trainer
from training.small import batch_of, mlp, model_of, normal

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PRECISIONS = ["bf16", "fp16"]
OPTIMIZERS = ["adamw", "adam", "sgd", "momentum", "lamb"]


def cnn() -> onnx.ModelProto:
    return model_of(
        """(float[N,3,8,8] x) => (float[N,3] y) {
            a = Conv<pads=[1,1,1,1]>(x, w1) n = BatchNormalization(a, g, b, m, v) r = Relu(n)
            p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) c = Conv(p, w2) q = Relu(c)
            f = GlobalAveragePool(q) z = Flatten(f) y = Gemm<transB=1>(z, w3, b3)
        }""",
        {
            **{"w1": normal(6, 3, 3, 3, seed=1), "w2": normal(8, 6, 3, 3, seed=2)},
            **{"w3": normal(3, 8, seed=3), "b3": normal(3, seed=4)},
            **{"g": np.ones(6, np.float32), "b": np.zeros(6, np.float32)},
            **{"m": np.zeros(6, np.float32), "v": np.ones(6, np.float32)},
        },
    )


def transformer() -> onnx.ModelProto:
    """A block with two attention heads and a mask, over tokens of a vocabulary of 20."""
    return model_of(
        """(int64[N,6] x, bool[N,1,1,6] mask) => (float[N,3] y) {
            e = Gather(embedding, x) t = Add(e, positions)
            n = LayerNormalization(t, g1, b1) qkv = MatMul(n, w_qkv)
            q, k, v = Split<axis=2>(qkv, parts)
            qs = Reshape(q, heads) qh = Transpose<perm=[0,2,1,3]>(qs)
            ks = Reshape(k, heads) kh = Transpose<perm=[0,2,3,1]>(ks)
            vs = Reshape(v, heads) vh = Transpose<perm=[0,2,1,3]>(vs)
            s = MatMul(qh, kh) s2 = Mul(s, half) s3 = Where(mask, s2, least) p = Softmax(s3)
            o = MatMul(p, vh) ot = Transpose<perm=[0,2,1,3]>(o) of = Reshape(ot, flat)
            a = MatMul(of, w_o) r = Add(t, a)
            n2 = LayerNormalization(r, g2, b2) h1 = MatMul(n2, w_1) h2 = Add(h1, b_1) h3 = Tanh(h2)
            h4 = MatMul(h3, w_2) r2 = Add(r, h4)
            pool = ReduceMean<axes=[1], keepdims=0>(r2) y = Gemm<transB=1>(pool, w_y, b_y)
        }""",
        {
            **{"embedding": normal(20, 8, seed=1), "positions": normal(1, 6, 8, seed=2)},
            **{"w_qkv": normal(8, 24, seed=3), "w_o": normal(8, 8, seed=4)},
            **{
                "w_1": normal(8, 16, seed=5),
                "b_1": normal(16, seed=6),
                "w_2": normal(16, 8, seed=7),
            },
            **{"w_y": normal(3, 8, seed=8), "b_y": normal(3, seed=9)},
            **{name: np.ones(8, np.float32) for name in ("g1", "g2")},
            **{name: np.zeros(8, np.float32) for name in ("b1", "b2")},
            **{"half": np.float32(0.5), "least": np.finfo(np.float32).min},
            **{"heads": np.array([0, 0, 2, 4]), "flat": np.array([0, 0, 8])},
            "parts": np.array([8, 8, 8]),
        },
    )


def images() -> dict[str, np.ndarray]:
    x = normal(12, 3, 8, 8, seed=7)
    return {"x": x, "labels": np.random.default_rng(8).integers(0, 3, 12)}


def sentences() -> dict[str, np.ndarray]:
    random = np.random.default_rng(9)
    mask = np.ones((12, 1, 1, 6), bool)
    mask[3:, ..., 4:] = False
    x, labels = random.integers(0, 20, (12, 6)), random.integers(0, 3, 12)
    return {"x": x, "mask": mask, "labels": labels}


MODELS = {
    "mlp": (mlp, lambda: batch_of(12)),
    "cnn": (cnn, images),
    "transformer": (transformer, sentences),
}


def trainer_of(model: onnx.ModelProto, device: str = "cpu", **options) -> Trainer:
    given = {"loss": "cross_entropy", "device": device, "lr": 0.01, "seed": 0}
    return Trainer(model, **{**given, **options})


def overflowing(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**batch, "x": batch["x"] * np.float32(1e6)}
