"""The files of a training run: models, checkpoints and how they are written."""
