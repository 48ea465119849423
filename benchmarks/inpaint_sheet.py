"""Twelve filled holes to look at, the worst among them, for the documentation.

Six photographs that come with scikit-learn and scikit-image (china and flower: CC BY 2.0;
astronaut and rocket: public domain; chelsea and coffee: CC0) with the holes of `benchmarks.holes`:
of the 24, the four on which the checkpoint gains least over Navier-Stokes, four in the middle, and
the four on which it gains most. A row has the hole in grey, Navier-Stokes, the checkpoint, what was
there, and the error that the checkpoint expects; 128 x 128 pixels where most is hidden.

    python -m benchmarks.inpaint_sheet docs/figures/inpainting.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw
from skimage import data
from sklearn.datasets import load_sample_image

from benchmarks.holes import KINDS, draw_hole
from benchmarks.inpaint import REPO, Network, fill_opencv

_CROP, _ZOOM, _GAP, _LINE = 128, 2, 6, 18
_PICK = 4


class Case(NamedTuple):
    """One hole: what was there, what is hidden, what two methods make of it, the error expected,
    and the gain in dB over Navier-Stokes."""

    title: str
    truth: np.ndarray
    hidden: np.ndarray
    navier_stokes: np.ndarray
    completed: np.ndarray
    doubt: np.ndarray
    gain: float


def load_photos() -> dict[str, np.ndarray]:
    """RGB photographs that are installed with scikit-learn and scikit-image."""
    photos = {f"{name}.jpg": load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        photos[name] = getattr(data, name)()
    return {name: np.ascontiguousarray(photo[..., :3]) for name, photo in photos.items()}


def fill_case(name: str, truth: np.ndarray, kind: str, network: Network) -> Case:
    """One photograph with one kind of hole."""
    hidden = draw_hole(kind, name, truth.shape[:2])
    blank = np.where(hidden[..., None], np.uint8(0), truth)
    filled = network.fill(blank, hidden)
    completed = filled.write(blank)
    navier_stokes = fill_opencv(cv2.INPAINT_NS)(blank, hidden)
    doubt = np.zeros(hidden.shape, np.float32)
    if filled.expected_error is not None:
        doubt.ravel()[filled.places] = filled.expected_error
    errors = [
        np.square(image[hidden].astype(float) - truth[hidden]).mean()
        for image in (navier_stokes, completed)
    ]
    gain = float(10 * np.log10(errors[0] / errors[1]))
    title = f"{name}, {kind}: {gain:+.1f} dB"
    return Case(title, truth, hidden, navier_stokes, completed, doubt, gain)


def draw_row(case: Case) -> Image.Image:
    """Five crops beside each other under a title."""
    sums = cv2.boxFilter(case.hidden.astype(np.float32), -1, (_CROP, _CROP), anchor=(0, 0))
    height, width = case.hidden.shape
    y, x = np.unravel_index(
        sums[: height - _CROP + 1, : width - _CROP + 1].argmax(),
        (height - _CROP + 1, width - _CROP + 1),
    )
    part = np.s_[y : y + _CROP, x : x + _CROP]
    holed = np.where(case.hidden[..., None], np.uint8(127), case.truth)
    doubt = np.clip(case.doubt * 4 * 255, 0, 255).astype(np.uint8)[..., None].repeat(3, 2)
    side = _CROP * _ZOOM
    row = Image.new("RGB", (5 * (side + _GAP) - _GAP, side + _LINE), (255, 255, 255))
    ImageDraw.Draw(row).text((0, 2), case.title, fill=0)
    for place, image in enumerate((holed, case.navier_stokes, case.completed, case.truth, doubt)):
        crop = Image.fromarray(image[part]).resize((side, side), Image.Resampling.BICUBIC)
        row.paste(crop, (place * (side + _GAP), _LINE))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=REPO / "checkpoints" / "et-photos")
    args = parser.parse_args()
    network = Network(args.checkpoint)
    cases = [
        fill_case(name, truth, kind, network)
        for name, truth in load_photos().items()
        for kind in KINDS
    ]
    cases.sort(key=lambda case: case.gain)
    middle = (len(cases) - _PICK) // 2
    chosen = [*cases[:_PICK], *cases[middle : middle + _PICK], *cases[-_PICK:]]
    rows = [draw_row(case) for case in chosen]
    sheet = Image.new("RGB", (rows[0].width, sum(row.height + _GAP for row in rows)), "white")
    for place, row in enumerate(rows):
        sheet.paste(row, (0, place * (row.height + _GAP)))
    sheet.save(args.out, quality=82)
    for case in cases:
        print(case.title)


if __name__ == "__main__":
    main()
