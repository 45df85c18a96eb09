"""Teach the last layers of a trained network something new; the rest stays as it is."""

import numpy as np

from onnxtrain import Trainer
from onnxtrain.demo import digits
from onnxtrain.demo.model import digits_cnn

training, held_out = digits.load()

# First the whole network learns to read digits.
trainer = Trainer(digits_cnn(), loss="cross_entropy", lr=3e-3, device="cpu", seed=0)
for _ in range(40):
    trainer.step(training)
trainer.save("digits-trained.onnx")

# Then its head alone learns to tell odd from even, in the place of the first two classes.
parity = {"image": training["image"], "labels": training["labels"] % 2}
head = Trainer(
    "digits-trained.onnx",
    loss="cross_entropy",
    lr=1e-2,
    trainable=["fc*"],
    batch_norm="freeze",
    device="cpu",
    seed=0,
)
for decision in head.decisions:
    print(f"{decision.name:16} {'trained' if decision.trained else 'kept':8} {decision.reason}")
for _ in range(40):
    head.step(parity)
scores = head.predict({"image": held_out["image"]})["logits"].numpy()
right = np.mean(scores.argmax(axis=1) == held_out["labels"] % 2)
print(f"odd or even: {right:.3f} of {len(held_out['labels'])} held-out digits")
head.save("parity-trained.onnx")
