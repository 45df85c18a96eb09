"""Pictures from files."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@kernel("ImageDecoder", since=20)
def image_decoder(encoded_stream: Tensor, *, pixel_format: str = "RGB") -> Tensor:
    """The picture in a file, as bytes [height, width, channel]; Pillow decodes it on the host."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("decoding pictures needs the package Pillow") from error
    if pixel_format not in _MODES:
        raise ValueError(f"pixel_format is '{pixel_format}', but it must be one of {list(_MODES)}")
    picture = Image.open(io.BytesIO(encoded_stream.cpu().numpy().tobytes()))
    pixels = torch.from_numpy(np.array(picture.convert(_MODES[pixel_format])))
    pixels = pixels.unsqueeze(-1) if pixels.ndim == 2 else pixels
    return (pixels.flip(-1) if pixel_format == "BGR" else pixels).to(encoded_stream.device)
