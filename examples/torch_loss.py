"""Train with a loss of your own: any torch function of the model's outputs and the batch."""

import torch
import torch.nn.functional as F

from onnxtrain import Trainer
from onnxtrain.demo import digits
from onnxtrain.demo.model import digits_cnn


def focal_loss(outputs: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy that counts an example less the surer the network is of the right answer."""
    surprise = F.cross_entropy(outputs["logits"], batch["labels"], reduction="none")
    return ((1 - torch.exp(-surprise)) ** 2 * surprise).mean()


training, held_out = digits.load()
trainer = Trainer(digits_cnn(), loss=focal_loss, lr=3e-3, device="cpu", seed=0)
for epoch in range(3):
    for i in range(0, 1400, 50):
        loss = trainer.step({name: array[i : i + 50] for name, array in training.items()})
    scores = trainer.predict({"image": held_out["image"]})["logits"].numpy()
    right = (scores.argmax(axis=1) == held_out["labels"]).mean()
    print(f"epoch {epoch}  loss {float(loss):.4f}  held-out accuracy {right:.3f}")
