"""Crops of BSDS500's photographs with holes: which are trained on, chosen on, and set apart."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from training.studies.photos.masks import draw_masks
from training.studies.photos.prefill import prefill_windows

ARCHIVE = Path("images/bsds500/train_val.tar")
_APART, _CHOSEN_ON = 60, 20
_SCALES = (0.75, 0.5, 0.35)
_SCALE_SHARES = (0.55, 0.17, 0.18, 0.10)  # of crops at full size, then of each of `_SCALES`
_GREY = 0.05  # share of the batches that are grey
_AROUND = 8  # pixels on each side of a window that its prefill knows as well


class PhotoSplit(NamedTuple):
    """Names in the archive. `test` is measured once, by what ships, and by nothing else."""

    train: list[str]
    val: list[str]
    test: list[str]


class Windows(NamedTuple):
    """Windows (R, 3, S, S) in 0 to 1, masks (R, 1, S, S), 1 where hidden, and prefilled windows."""

    truth: Tensor
    mask: Tensor
    prefilled: Tensor


def split_photos(archive: Path) -> PhotoSplit:
    """Of the val part, by the SHA-256 of their names: 60 photographs set apart, 20 to choose on."""
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if name.endswith(".jpg"))
    val = [name for name in names if Path(name).parent.name == "val"]
    val.sort(key=lambda name: hashlib.sha256(Path(name).name.encode()).hexdigest())
    test, chosen_on = val[:_APART], val[_APART : _APART + _CHOSEN_ON]
    return PhotoSplit(sorted({*names} - {*test, *chosen_on}), chosen_on, test)


def read_photos(archive: Path, names: Sequence[str]) -> Tensor:
    """uint8 (n, 3, 321, 481); upright ones lie on their side."""
    photos: list[np.ndarray] = []
    with tarfile.open(archive) as tar:
        for name in names:
            file = tar.extractfile(name)
            assert file is not None
            image = Image.open(io.BytesIO(file.read())).convert("RGB")
            if image.height > image.width:
                image = image.transpose(Image.Transpose.ROTATE_90)
            photos.append(np.asarray(image))
    return torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).contiguous()


class WindowSource:
    """Batches of windows, drawn on the device that the photographs lie on."""

    def __init__(self, photos: Tensor, masks: int, size: int, seed: int, *, turn: bool) -> None:
        self.size, self.canvas, self.turn = size, size + 2 * _AROUND, turn
        self.pyramid = [photos]
        if turn:
            self.pyramid += [_shrink(photos, scale) for scale in _SCALES]
        drawn, kinds = draw_masks(masks, self.canvas, seed)
        self.masks = torch.from_numpy(drawn).to(photos.device)
        self.kinds = torch.from_numpy(kinds).to(photos.device)
        self.generator = torch.Generator(photos.device).manual_seed(seed)
        self.rng = np.random.default_rng(seed)

    def draw(self, rows: int) -> Windows:
        """Windows to train on: of four scales, turned, an eighth of them alike."""
        counts = [round(share * rows) for share in _SCALE_SHARES]
        counts[0] += rows - sum(counts)
        both = zip(self.pyramid, counts, strict=True)
        images = torch.cat([self._crop(photos, count) for photos, count in both])
        if self.rng.random() < _GREY:
            images = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        order = torch.randperm(rows, device=images.device, generator=self.generator)
        chosen = self._integers(len(self.masks), rows)
        masks = self.masks[chosen][:, None].float()
        return self._prepare(self._turn(images[order]), self._turn(masks))

    def draw_in_order(self, rows: int, iterations: int = 200) -> tuple[Windows, Tensor]:
        """Windows to measure on, with the first masks, and the kinds of those."""
        images, masks = self._crop(self.pyramid[0], rows), self.masks[:rows, None].float()
        return self._prepare(images, masks, iterations), self.kinds[:rows]

    def _integers(self, below: int, count: int) -> Tensor:
        device = self.masks.device
        return torch.randint(below, (count,), device=device, generator=self.generator)

    def _crop(self, photos: Tensor, rows: int) -> Tensor:
        count, _, height, width = photos.shape
        chosen, along = self._integers(count, rows), torch.arange(self.canvas, device=photos.device)
        y = self._integers(height - self.canvas + 1, rows)[:, None] + along
        x = self._integers(width - self.canvas + 1, rows)[:, None] + along
        cut = photos.permute(0, 2, 3, 1)[chosen[:, None, None], y[:, :, None], x[:, None]]
        return cut.permute(0, 3, 1, 2).float() / 255

    def _turn(self, values: Tensor) -> Tensor:
        if not self.turn:
            return values
        parts: list[Tensor] = []
        for part in values.chunk(8):
            flips = [axis for axis in (-1, -2) if self.rng.random() < 0.5]
            part = part.flip(flips)
            parts.append(part.transpose(-1, -2) if self.rng.random() < 0.5 else part)
        return torch.cat(parts)

    def _prepare(self, images: Tensor, masks: Tensor, iterations: int = 40) -> Windows:
        filled = prefill_windows(images, masks, iterations)
        inside = slice(_AROUND, _AROUND + self.size)
        cut = (values[..., inside, inside].contiguous() for values in (images, masks, filled))
        return Windows(*cut)


def _shrink(photos: Tensor, scale: float) -> Tensor:
    size = [round(scale * side) for side in photos.shape[2:]]
    parts = [
        F.interpolate(part.float(), size=size, mode="bilinear", antialias=True)
        for part in photos.split(16)
    ]
    return torch.cat(parts).round().clamp(0, 255).byte()
