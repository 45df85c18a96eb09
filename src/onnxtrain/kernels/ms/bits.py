"""Numbers of 2 to 8 bits, several to a byte, low bits first."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def unpacked(data: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` numbers along the last axis of a tensor of bytes, as bytes."""
    if not 2 <= bits <= 8:
        raise ValueError(f"bits is {bits}, but it must be from 2 to 8")
    mask = (1 << bits) - 1
    if bits == 8:
        return data[..., :count]
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, device=data.device, dtype=torch.uint8)
        return ((data.unsqueeze(-1) >> shifts) & mask).flatten(-2)[..., :count]
    start = torch.arange(count, device=data.device) * bits
    byte, offset = start // 8, (start % 8).to(torch.int32)
    wide = functional.pad(data, (0, 1)).to(torch.int32)
    pair = wide[..., byte] | (wide[..., byte + 1] << 8)
    return ((pair >> offset) & mask).to(torch.uint8)
