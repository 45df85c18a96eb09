"""Training: parameters and their checkpoint, the module, the optimizer, schedules, the trainer."""
