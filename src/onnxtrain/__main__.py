"""``python -m onnxtrain`` is the command ``onnxtrain``."""

from onnxtrain.cli import app

if __name__ == "__main__":
    app(prog_name="onnxtrain")
