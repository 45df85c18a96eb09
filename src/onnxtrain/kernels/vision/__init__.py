"""Images: sampling at real coordinates, regions and boxes, decoding."""

from onnxtrain.kernels.vision import boxes, decode, regions, sample

__all__ = ["boxes", "decode", "regions", "sample"]
