"""Folders of images, one folder a class, in the layout that a model takes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onnxtrain.data.arrays import LABELS, Array, Arrays, Slot
from onnxtrain.data.lazy import Indices, Rows
from onnxtrain.errors import FeedError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Kinds of pixels, by number of channels."""
WHOLE = 2**30
"""Bytes of pixels up to which all images are decoded once and kept."""
HEAD = 4096
"""Bytes of a file that tell it from another one of the same name and size."""
USUAL = (1, 3)
"""Numbers of channels that are looked for first."""


@dataclasses.dataclass(frozen=True)
class Pictures:
    """How images become arrays.

    Attributes:
        size: Height and width; None takes the model's.
        crop: Whether the middle is cut out after resizing the shorter side, so that nothing is
            distorted; otherwise the image is stretched.
        mean: Subtracted from the values, which go from 0 to 1; one number or one a channel.
        std: Divides them afterwards.
    """

    size: tuple[int, int] | None = None
    crop: bool = True
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Height, width and channels of a model's images, and where the channels are."""

    height: int
    width: int
    channels: int
    channels_first: bool


def classes_of(folder: pathlib.Path) -> list[str]:
    """Names of the folders with images in them, in alphabetical order."""
    return sorted(
        sub.name for sub in folder.iterdir() if sub.is_dir() and any(map(_is_image, sub.iterdir()))
    )


def _is_image(path: pathlib.Path) -> bool:
    return path.suffix.lower() in SUFFIXES


class Images:
    """Images as bytes, decoded when they are asked for, or once if all of them fit into memory.

    Args:
        files: The images.
        layout: What they are brought to.
        crop: Whether the middle is cut out.

    Raises:
        FeedError: if Pillow is missing, or an image is damaged.
    """

    def __init__(self, files: Sequence[pathlib.Path], layout: Layout, crop: bool) -> None:
        self._files, self._layout, self._crop = list(files), layout, crop
        self.shape = (len(files), layout.height, layout.width, layout.channels)
        self.dtype = np.dtype(np.uint8)
        self._all: Array | None = None
        if int(np.prod(self.shape, dtype=np.int64)) <= WHOLE:
            self._all = self._read(range(len(files)))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, which: slice | Indices) -> Array:
        if self._all is not None:
            return self._all[which]
        return self._read(np.arange(len(self))[which].tolist())

    def _read(self, places: Iterable[int]) -> Array:
        return np.stack([_pixels(self._files[i], self._layout, self._crop) for i in places])

    @functools.cached_property
    def identity(self) -> bytes:
        """Names, sizes and first bytes of the files, and what they are brought to."""
        sha = hashlib.sha256(f"{self.shape} {self._crop}".encode())
        for file in self._files:
            with file.open("rb") as opened:
                sha.update(f"{file.parent.name}/{file.name} {file.stat().st_size} ".encode())
                sha.update(opened.read(HEAD))
        return sha.digest()


def read(folder: pathlib.Path, slots: Sequence[Slot], pictures: Pictures) -> Arrays:
    """Images and, as words, the names of their folders.

    Raises:
        FeedError: if Pillow is missing, an image is damaged, or the model takes no images.
    """
    slot = _image_slot(folder, slots)
    layout = layout_of(slot, pictures.size)
    names = classes_of(folder)
    files = [(f, name) for name in names for f in sorted((folder / name).iterdir()) if _is_image(f)]
    labels = np.array([name for _, name in files])
    images = Images([file for file, _ in files], layout, pictures.crop)
    return Arrays(
        {slot.name: _values(images, slot, layout, pictures), LABELS[0]: labels},
        tabular=False,
        source=str(folder),
    )


def _image_slot(folder: pathlib.Path, slots: Sequence[Slot]) -> Slot:
    fitting = [slot for slot in slots if slot.shape is not None and len(slot.shape) == 4]
    if len(fitting) != 1:
        shown = ", ".join(f"{slot.name} {_shown(slot)}" for slot in slots) or "none"
        raise FeedError(
            f"cannot feed the images of '{folder}': the model has {len(fitting)} inputs of four "
            f"dimensions, one is needed\n  inputs  {shown}\n"
            "  images go into models that take [batch, channels, height, width]; this one takes a "
            ".csv or an .npz file"
        )
    return fitting[0]


def _shown(slot: Slot) -> str:
    dims = ["?" if dim is None else str(dim) for dim in slot.shape or ()]
    return f"[{', '.join(dims)}]"


def layout_of(slot: Slot, size: tuple[int, int] | None) -> Layout:
    """The layout of a model's images: channels are the axis of 1, 3 or 4.

    Raises:
        FeedError: if the model does not tell it, or takes another size than was asked for.
    """
    assert slot.shape is not None
    _, first, second, last = slot.shape
    channels_first = first in USUAL or (last not in USUAL and first in MODES)
    channels = first if channels_first else last
    if channels not in MODES or channels is None:
        raise FeedError(
            f"input '{slot.name}' {_shown(slot)} has no axis of 1, 3 or 4 channels; it takes no "
            "images\n  give the data as an .npz file, or as module:function"
        )
    height, width = (second, last) if channels_first else (first, second)
    asked = size or (height, width)
    if asked[0] is None or asked[1] is None:
        raise FeedError(
            f"input '{slot.name}' {_shown(slot)} takes images of any size\n"
            "  say which with --image-size, for example --image-size 224"
        )
    if (height or asked[0], width or asked[1]) != asked:
        raise FeedError(
            f"input '{slot.name}' takes images of {height}x{width}, not of "
            f"{asked[0]}x{asked[1]}\n  leave out --image-size"
        )
    return Layout(asked[0], asked[1], channels, channels_first)


def _pixels(file: pathlib.Path, layout: Layout, crop: bool) -> Array:
    """An image as bytes: height, width, channels."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise FeedError(
            f"cannot read '{file}': Pillow is not installed\n  pip install 'onnxtrain[data]'"
        ) from None
    size = (layout.width, layout.height)
    try:
        with Image.open(file) as image:
            upright = ImageOps.exif_transpose(image).convert(MODES[layout.channels])
            fitted: Any = ImageOps.fit(upright, size) if crop else upright.resize(size)
    except (OSError, ValueError, SyntaxError) as error:
        raise FeedError(
            f"cannot read image '{file}': {error}\n  repair it, or take it out of the folder"
        ) from error
    return np.asarray(fitted, dtype=np.uint8).reshape(layout.height, layout.width, layout.channels)


def _values(images: Images, slot: Slot, layout: Layout, pictures: Pictures) -> Rows:
    """Numbers in the model's type and order of axes; whole numbers stay bytes."""
    mean, std = (_per_channel(v, layout.channels) for v in (pictures.mean, pictures.std))

    def change(pixels: Array) -> Array:
        values = pixels.astype(slot.dtype if slot.dtype.kind in "iu" else np.float32)
        if slot.dtype.kind not in "iu":
            values = ((values / 255 - mean) / std).astype(slot.dtype)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if first else values

    first = layout.channels_first
    count, height, width, channels = images.shape
    sizes = (channels, height, width) if first else (height, width, channels)
    told = f" {pictures.mean} {pictures.std}".encode()
    return Rows(images, (count, *sizes), slot.dtype, change, told=told)


def _per_channel(numbers: tuple[float, ...], channels: int) -> Array:
    if len(numbers) not in (1, channels):
        raise FeedError(
            f"--image-mean and --image-std have {len(numbers)} numbers, the images {channels} "
            "channels\n  give one number, or one a channel"
        )
    return np.array(numbers, dtype=np.float32)
