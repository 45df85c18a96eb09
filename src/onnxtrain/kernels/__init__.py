"""Kernels: plain functions over torch tensors, one family a module or package."""
