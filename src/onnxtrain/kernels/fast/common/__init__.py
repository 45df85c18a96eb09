"""What Triton kernels share: how they are launched and cut, and how programs tell each other."""
