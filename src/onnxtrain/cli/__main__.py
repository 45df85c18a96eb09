"""``python -m onnxtrain.cli``: the command line without its console script."""

from onnxtrain.cli import app

app(prog_name="onnxtrain")
