"""The table of operator cases, shipped so that ``onnxtrain check`` can run it anywhere."""
