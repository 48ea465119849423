"""Crops of photographs with holes, and which photographs train, validate and test."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from training.common.results_log import hash_arrays
from training.datasets import Split, data_folder
from training.datasets.images import iterate_images
from training.tasks.photos.masks import draw_masks
from training.tasks.photos.prefill import prefill_windows

ARCHIVE = Path("images/bsds500/train_val.tar")
_APART, _CHOSEN_BY = 60, 20
_TILE, _LONGEST, _FEWEST = 256, 1024, 10  # of folders
_BSDS_NOTE = (
    "Photographs of BSDS500's train and val parts (Arbelaez et al. 2011); no licence is stated, "
    "they are given for research."
)
_SCALES = (0.75, 0.5, 0.35)
_SCALE_SHARES = (0.55, 0.17, 0.18, 0.10)  # of crops at full size, then of each of `_SCALES`
_GREY = 0.05  # share of the batches that are grey
_JPEG_STREAM = 0x4A  # of the seed, apart from masks
_QUALITIES = 30, 95  # of JPEG, both included
_AROUND = 8  # pixels on each side of a window that its prefill knows as well


class Windows(NamedTuple):
    """Windows (R, 3, S, S) in 0 to 1, masks (R, 1, S, S), 1 where hidden, and prefilled windows."""

    truth: Tensor
    mask: Tensor
    prefilled: Tensor


@dataclass(frozen=True)
class PhotoSet:
    """Training and validation photographs or parts of them, uint8 (n, 3, H, W), and an id of each
    photograph: its name in BSDS500, or the SHA-256 of its file. Test photographs are only listed:
    `benchmarks.inpaint` measures them."""

    name: str
    split: Split
    ids: tuple[str, ...]
    train: np.ndarray
    val: np.ndarray
    note: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        return hash_arrays(self.train, self.val, *self.split.parts().values())


def split_bsds(names: Sequence[str]) -> Split:
    """To train, the train part and 20 photographs of the val part; 20 to validate and 60 to test,
    by the SHA-256 of their names. The last are measured by what ships and by nothing else."""
    ordered = sorted(names)
    val = [name for name in ordered if Path(name).parent.name == "val"]
    val.sort(key=lambda name: hashlib.sha256(Path(name).name.encode()).hexdigest())
    test, chosen_by = val[:_APART], val[_APART : _APART + _CHOSEN_BY]
    place = {name: index for index, name in enumerate(ordered)}
    train = sorted({*ordered} - {*test, *chosen_by})
    parts = (np.array([place[name] for name in part]) for part in (train, chosen_by, test))
    return Split("sha256", *parts)


def list_bsds(archive: Path) -> list[str]:
    """The names of the photographs of BSDS500, in order.

    Raises:
        FileNotFoundError: saying which file to put where.
    """
    if not archive.exists():
        raise FileNotFoundError(f"{archive} does not exist; it is BSDS500's train and val parts")
    with tarfile.open(archive) as tar:
        return sorted(name for name in tar.getnames() if name.endswith(".jpg"))


def load_bsds(folder: Path | None = None, *, count: int | None = None) -> PhotoSet:
    """BSDS500, of which the 60 test photographs are not read; `count` of each part.

    Raises:
        FileNotFoundError: saying which file to put where.
    """
    archive = (folder or data_folder()) / ARCHIVE
    names = list_bsds(archive)
    split = split_bsds(names)
    train, val = (
        read_photos(archive, [names[index] for index in part[:count]])
        for part in (split.train, split.val)
    )
    return PhotoSet("bsds500", split, tuple(names), train, val, note=_BSDS_NOTE)


def iterate_bsds(archive: Path, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Photographs by their names, uint8 (H, W, 3)."""
    with tarfile.open(archive) as tar:
        for name in names:
            file = tar.extractfile(name)
            assert file is not None
            yield np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))


def read_photos(archive: Path, names: Sequence[str]) -> np.ndarray:
    """uint8 (n, 3, 321, 481); upright ones lie on their side."""
    photos = [
        np.rot90(image) if image.shape[0] > image.shape[1] else image
        for image in iterate_bsds(archive, names)
    ]
    return np.stack(photos).transpose(0, 3, 1, 2).copy()


def load_photo_folder(folder: Path) -> PhotoSet:
    """Your photographs, in `folder` or below: scaled to 1,024 pixels where they are longer, and cut
    into tiles of 256 x 256. 80/10/10, by the SHA-256 of their files.

    Raises:
        ValueError: there are too few photographs of 256 x 256 pixels or more.
    """
    files: dict[str, np.ndarray] = {}
    faults: list[str] = []
    for path, digest, pixels in iterate_images(folder, faults.append):
        image = Image.fromarray(pixels)
        image.thumbnail((_LONGEST, _LONGEST), Image.Resampling.BICUBIC)
        if min(image.size) < _TILE:
            scaled = f" when scaled to at most {_LONGEST} pixels a side"
            faults.append(f"{path}: smaller than {_TILE} x {_TILE} pixels{scaled}.")
            continue
        files.setdefault(digest, np.asarray(image))
    n = len(files)
    if n < _FEWEST:
        first = f" First of {len(faults)} that are left out: {faults[0]}" if faults else ""
        raise ValueError(f"{folder}: {n} different photographs; {_FEWEST} are needed.{first}")
    ids = sorted(files)
    tenth = max(1, n // 10)
    val, test, train = np.split(np.arange(n), [tenth, 2 * tenth])
    split = Split("sha256", train, val, test)
    both = (
        np.concatenate([_cut_tiles(files[ids[index]]) for index in part]) for part in (train, val)
    )
    note = " ".join(f"Left out: {fault}" for fault in faults)
    return PhotoSet(folder.resolve().name, split, tuple(ids), *both, note=note)


def _cut_tiles(image_HWC: np.ndarray) -> np.ndarray:
    """uint8 (n, 3, 256, 256): tiles that cover a photograph, overlapping as they must."""
    starts = [
        np.linspace(0, side - _TILE, -(-side // _TILE)).round().astype(int)
        for side in image_HWC.shape[:2]
    ]
    tiles = [image_HWC[y : y + _TILE, x : x + _TILE] for y in starts[0] for x in starts[1]]
    return np.stack(tiles).transpose(0, 3, 1, 2)


class WindowSource:
    """Batches of windows, drawn on the device that the photographs lie on.

    A `jpeg_share` of them is cut from photographs that were compressed as JPEG, at each scale by a
    quality of its own that follows from `seed`. The truth is the compressed photograph too: what is
    filled stands between pixels that a camera or a website has compressed, and has to go on their
    shifted colours and blocks; a clean patch between them would show.
    """

    def __init__(
        self,
        photos: Tensor,
        masks: int,
        size: int,
        seed: int,
        *,
        turn: bool,
        jpeg_share: float = 0.0,
    ) -> None:
        self.size, self.canvas, self.turn = size, size + 2 * _AROUND, turn
        self.jpeg_share, self._count = jpeg_share, len(photos)
        self.pyramid = [photos]
        if turn:
            self.pyramid += [_shrink(photos, scale) for scale in _SCALES]
        if jpeg_share:
            rng = np.random.default_rng([seed, _JPEG_STREAM])
            # Whole photographs, once: windows on their own would take longer than the network does.
            self.pyramid = [torch.cat([part, compress(part, rng)]) for part in self.pyramid]
        drawn, kinds = draw_masks(masks, self.canvas, seed)
        self.masks = torch.from_numpy(drawn).to(photos.device)
        self.kinds = torch.from_numpy(kinds).to(photos.device)
        self.generator = torch.Generator(photos.device)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """What is drawn from here on follows from `seed`."""
        self.generator.manual_seed(seed)
        self.rng = np.random.default_rng(seed)

    def draw(self, rows: int) -> Windows:
        """Windows to train on, at four scales; each eighth of the batch gets one random flip and
        transposition."""
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
        _, _, height, width = photos.shape
        along = torch.arange(self.canvas, device=photos.device)
        chosen = self._integers(self._count, rows)
        if self.jpeg_share:  # nothing is drawn otherwise, so that older recipes draw as they did
            draw = torch.rand(rows, device=photos.device, generator=self.generator)
            chosen = chosen + self._count * (draw < self.jpeg_share)
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


def compress(photos: Tensor, rng: np.random.Generator) -> Tensor:
    """Photographs uint8 (n, 3, H, W) compressed as JPEG and read again, each by a quality of its
    own."""
    compressed: list[np.ndarray] = []
    for photo in photos.permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        quality = int(rng.integers(*_QUALITIES, endpoint=True))
        Image.fromarray(photo).save(file, "JPEG", quality=quality)
        compressed.append(np.asarray(Image.open(file)))
    return torch.from_numpy(np.stack(compressed)).permute(0, 3, 1, 2).to(photos.device)


def _shrink(photos: Tensor, scale: float) -> Tensor:
    size = [round(scale * side) for side in photos.shape[2:]]
    parts = [
        F.interpolate(part.float(), size=size, mode="bilinear", antialias=True)
        for part in photos.split(16)
    ]
    return torch.cat(parts).round().clamp(0, 255).byte()
