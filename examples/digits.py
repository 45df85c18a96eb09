"""Train an ONNX file on scikit-learn's digits: the program of the README."""

import numpy as np
from sklearn.datasets import load_digits

from onnxtrain import Trainer
from onnxtrain.demo.model import digits_cnn

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x, y = (digits.images[order, None] / 16).astype("float32"), digits.target[order]
model = digits_cnn()  # an onnx.ModelProto; a path to any ONNX file does as well
trainer = Trainer(model, loss="cross_entropy", optimizer="adamw", lr=3e-3, device="cpu", seed=0)
for epoch in range(3):
    for i in range(0, 1500, 50):
        loss = trainer.step({"image": x[i : i + 50], "labels": y[i : i + 50]})
    scores = trainer.predict({"image": x[1500:]})["logits"]
    right = (scores.argmax(1).numpy() == y[1500:]).mean()
    print(f"epoch {epoch}  loss {float(loss):.3f}  held-out accuracy {right:.3f}")
trainer.save("digits-trained.onnx")  # the same graph with other weights
