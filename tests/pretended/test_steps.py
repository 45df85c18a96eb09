"""Steps on a GPU are recorded: devices are not mixed, and the host waits for nothing."""

from __future__ import annotations

import pytest
import torch

from onnxtrain import Trainer
from training.mixed import MODELS, trainer_of

pytestmark = pytest.mark.gpu
WARM, STEPS = 3, 6


def losses_of(trainer: Trainer, name: str) -> list[float]:
    """Of steps of which the last ones may not wait."""
    _, data = MODELS[name]
    batch = {key: torch.from_numpy(value).to("cuda") for key, value in data().items()}
    losses = [trainer.step(batch) for _ in range(WARM)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses += [trainer.step(batch) for _ in range(STEPS - WARM)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_recorded_without_waiting(name: str, precision: str) -> None:
    make, _ = MODELS[name]
    trainer = trainer_of(make(), "cuda", precision=precision, clip_grad_norm=1.0)
    losses = losses_of(trainer, name)
    recorder = trainer._whole.recorder
    assert recorder is not None and recorder.why_not is None and recorder.recordings == 1
    assert losses[-1] < losses[0] and len(set(losses)) == STEPS
