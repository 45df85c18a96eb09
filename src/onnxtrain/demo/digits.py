"""Scikit-learn's handwritten digits, split into a part to train on and a part to judge by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

HELD_OUT = 0.2
BRIGHTEST = 16.0


def load(seed: int = 0) -> tuple[Arrays, Arrays]:
    """1437 images to train on and 360 to judge by, each class in the same share."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / BRIGHTEST).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    parts = train_test_split(images, labels, test_size=HELD_OUT, random_state=seed, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts
    return (
        {"image": train_images, "labels": train_labels},
        {"image": test_images, "labels": test_labels},
    )
