"""Files: models and checkpoints, read carefully and written atomically (no torch)."""
