"""What tests of kernels have in common."""

import torch

from onnxtrain.kernels import fast

if fast.installed() and not torch.cuda.is_available():
    from kernels import interpreter

    interpreter.hurry()
