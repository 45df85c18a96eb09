"""Loss and accuracy of a training, as a picture."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass
class Curves:
    """Figures of a training: the loss of every step, the others once an epoch."""

    losses: list[float] = dataclasses.field(default_factory=list)
    epochs: list[int] = dataclasses.field(default_factory=list)
    test_losses: list[float] = dataclasses.field(default_factory=list)
    accuracies: list[float] = dataclasses.field(default_factory=list)

    def add(self, loss: float, accuracy: float) -> None:
        """Note the figures of the epoch that ends with the last step."""
        self.epochs.append(len(self.losses))
        self.test_losses.append(loss)
        self.accuracies.append(accuracy)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a PNG with the loss on the left and the accuracy on the right."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
        left.plot(range(1, len(self.losses) + 1), self.losses, color="0.75", label="training step")
        left.plot(self.epochs, self.test_losses, "o-", color="tab:blue", label="held out")
        left.set(xlabel="step", ylabel="cross entropy", yscale="log", title="loss")
        left.legend()
        right.plot(
            self.epochs,
            [100 * a for a in self.accuracies],
            "o-",
            color="tab:green",
            label="held out",
        )
        right.set(xlabel="step", ylabel="right answers, %", title="accuracy")
        right.legend(loc="lower right")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)
        plt.close(figure)
