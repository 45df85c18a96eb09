"""Changes to whole models: training and evaluation form, the training graph, extraction."""
