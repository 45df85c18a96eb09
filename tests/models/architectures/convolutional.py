"""ResNet-50, MobileNetV3 and U-Net, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from architectures.family import Family, Inputs, Size


def _conv_bn(
    inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.reduce = _conv_bn(inner, width, 1)
        self.middle = _conv_bn(width, width, 3, stride)
        self.expand = _conv_bn(width, outer, 1)
        nn.init.zeros_(self.expand[1].weight)  # each block begins as its shortcut
        same = stride == 1 and inner == outer
        self.shortcut = nn.Identity() if same else _conv_bn(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.middle(torch.relu(self.reduce(x))))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet of bottleneck blocks; depths (3, 4, 6, 3) and width 64 make ResNet-50."""

    def __init__(self, width: int, depths: Sequence[int], classes: int, **_: int) -> None:
        super().__init__()
        self.stem = _conv_bn(3, width, 7, 2)
        blocks, inner = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                blocks.append(Bottleneck(inner, width * 2**stage, stride))
                inner = 4 * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.relu(self.stem(images)), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class SqueezeExcite(nn.Module):
    """Channels weighted by a hard sigmoid of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = 8 * math.ceil(channels / 32)
        self.down = nn.Conv2d(channels, inner, 1)
        self.up = nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.up(torch.relu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(weights)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(
        self, inner: int, middle: int, outer: int, kernel: int, stride: int, squeeze: bool
    ) -> None:
        super().__init__()
        self.expand = _conv_bn(inner, middle, 1)
        self.depthwise = _conv_bn(middle, middle, kernel, stride, groups=middle)
        self.squeeze = SqueezeExcite(middle) if squeeze else nn.Identity()
        self.project = _conv_bn(middle, outer, 1)
        self.same = stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        y = self.project(self.squeeze(y))
        return x + y if self.same else y


class MobileNetV3(nn.Module):
    """Inverted residuals with hard-swish; each row is (expansion, channels, kernel, stride, SE)."""

    ROWS = ((1, 2, 3, 2, True), (4, 3, 3, 2, False), (4, 3, 5, 1, True), (6, 5, 5, 2, True))

    def __init__(self, width: int, repeats: int, classes: int, **_: int) -> None:
        super().__init__()
        self.stem = _conv_bn(3, width, 3, 2)
        blocks, inner = [], width
        for expansion, channels, kernel, stride, squeeze in self.ROWS:
            for index in range(repeats):
                outer = channels * width
                step = stride if index == 0 else 1
                middle = expansion * inner
                blocks.append(InvertedResidual(inner, middle, outer, kernel, step, squeeze))
                inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.last = _conv_bn(inner, 2 * inner, 1)
        self.head = nn.Sequential(nn.Linear(2 * inner, 4 * inner), nn.Hardswish(), nn.Dropout(0.0))
        self.classes = nn.Linear(4 * inner, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.last(self.blocks(F.hardswish(self.stem(images)))))
        return self.classes(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class UNet(nn.Module):
    """Down by max pooling, up by transposed convolution and by interpolation, with skips."""

    def __init__(self, width: int, classes: int, **_: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._double(3, width), self._double(width, 2 * width)])
        self.bottom = self._double(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.narrow = nn.Conv2d(2 * width, width, 1)
        self.join = nn.ModuleList(
            [self._double(4 * width, 2 * width), self._double(2 * width, width)]
        )
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(inner: int, outer: int) -> nn.Module:
        first, second = _conv_bn(inner, outer, 3), _conv_bn(outer, outer, 3)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        upper = self.down[0](images)
        lower = self.down[1](F.max_pool2d(upper, 2))
        x = self.up(self.bottom(F.max_pool2d(lower, 2)))
        x = self.join[0](torch.cat([lower, x], 1))
        x = F.interpolate(self.narrow(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(self.join[1](torch.cat([upper, x], 1)))


def _images(size: Size, samples: int, _: int) -> Inputs:
    return {"images": torch.randn(samples, 3, size["image"], size["image"])}


_AXES = {"images": {0: "batch"}}

RESNET50 = Family(
    ResNet,
    _images,
    _AXES,
    small={"width": 4, "depths": (3, 4, 6, 3), "classes": 5, "image": 64},
    large={"width": 64, "depths": (3, 4, 6, 3), "classes": 1000, "image": 224},
)
MOBILENETV3 = Family(
    MobileNetV3,
    _images,
    _AXES,
    small={"width": 4, "repeats": 1, "classes": 5, "image": 64},
    large={"width": 16, "repeats": 3, "classes": 1000, "image": 224},
)
UNET = Family(
    UNet,
    _images,
    _AXES,
    small={"width": 4, "classes": 3, "image": 16},
    large={"width": 32, "classes": 3, "image": 128},
)
