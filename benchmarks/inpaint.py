"""Holes of whole photographs filled: what ships beside OpenCV, Laplace's equation and scikit-image.

Scratches of 2 to 6 pixels, writing over 9 %, a block of 64 and strokes of 20 pixels
(`benchmarks.holes`, the same on every machine), on photographs that nothing was trained on or
validated by: the 60 test photographs of `training photos`, of BSDS500's val part, or your own. PSNR
and SSIM of the hidden pixels, known ones kept as they are; the share of photographs on which the
checkpoint is ahead of Navier-Stokes; Spearman's correlation between the error that is expected of a
hidden pixel and the true one; how often the energy of a window rose at a step; seconds.

    python -m benchmarks.inpaint                                  # BSDS500's 60 photographs
    python -m benchmarks.inpaint --photos FOLDER --test-only      # your own, those not trained on
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from skimage.restoration import inpaint_biharmonic

from benchmarks.holes import KINDS, SMALLEST, draw_hole
from benchmarks.machine import describe
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.inpainting.fill import Answers, FilledPixels, Windows, fill_holes
from models.inputs.inpainting.laplace import fill_harmonic
from models.inputs.inpainting.plan import Tiling, plan_windows
from models.tasks.completer import CompletionNetwork
from training.datasets import data_folder
from training.datasets.images import iterate_images
from training.metrics import rank_correlation
from training.tasks.complete.evaluate import ssim_map
from training.tasks.photos.data import (
    ARCHIVE,
    iterate_bsds,
    list_bsds,
    load_photo_folder,
    split_bsds,
)

REPO = Path(__file__).parents[1]
METHODS = ("telea", "navier-stokes", "laplace", "biharmonic", "et")
_RADIUS = 3  # pixels that OpenCV's methods read around a point, as in its examples
_SAMPLE = 4_000  # hidden pixels of each hole that correlations are of


class Network:
    """A checkpoint that fills holes, and what it tells while it does."""

    def __init__(self, folder: Path, **tiling: int) -> None:
        network = load_checkpoint(folder).network
        assert isinstance(network, CompletionNetwork)
        self.network = network
        self.tiling = replace(Tiling.from_size(network.config.size), **tiling)
        self.rises = self.steps = self.windows = 0
        self.errors: list[np.ndarray] = []  # (2, n): true and expected
        self.forward_s = 0.0

    def fill(self, image: np.ndarray, hidden: np.ndarray) -> FilledPixels:
        """The hidden pixels of an image, as the server fills them."""
        return fill_holes(image, plan_windows(hidden, self.tiling, 10**9), self._complete)

    def _complete(self, windows: Windows, _: object) -> Answers:
        batch = self.network.pack_windows(*windows)
        began = time.perf_counter()
        output = self.network.infer(batch, [DynamicsParams()] * batch.rows)
        self.forward_s += time.perf_counter() - began
        for solution in output.solutions:
            energy_TR = np.stack([moment.energy_R for moment in solution.trace])
            self.rises += int((np.diff(energy_TR, axis=0) >= 0).sum())
            self.steps += energy_TR[1:].size
        self.windows += batch.rows
        return Answers(*self.network.read_outputs(output.logits))


def _fill_laplace(image: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    flat, places = image.reshape(-1, 3), np.flatnonzero(hidden)
    values = fill_harmonic(places, hidden.shape, lambda known: flat[known] / 255)
    return FilledPixels(places, values, None).write(image)


def _fill_biharmonic(image: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    filled = inpaint_biharmonic(image / 255, hidden, channel_axis=-1)
    return np.rint(255 * np.clip(filled, 0, 1)).astype(np.uint8)


def fill_opencv(method: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """One of OpenCV's methods, of an image whose hidden pixels are blank."""
    return lambda image, hidden: cv2.inpaint(image, hidden.astype(np.uint8), _RADIUS, method)


def read_bsds(part: str) -> Iterator[tuple[str, np.ndarray]]:
    """The validation or test photographs of BSDS500."""
    archive = data_folder() / ARCHIVE
    names = list_bsds(archive)
    split = split_bsds(names)
    chosen = [names[index] for index in {"val": split.val, "test": split.test}[part]]
    yield from zip(chosen, iterate_bsds(archive, chosen), strict=True)


def read_folder(folder: Path, *, test_only: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Photographs in a folder and below; `test_only`: only the test photographs of `training photos
    --images` of that folder. Those that cannot be read, or are too small, are printed."""
    photos = load_photo_folder(folder) if test_only else None
    chosen = None if photos is None else {photos.ids[index] for index in photos.split.test}
    for path, digest, image in iterate_images(folder, print):
        if chosen is not None and digest not in chosen:
            continue
        if min(image.shape[:2]) < SMALLEST:
            print(f"{path}: smaller than {SMALLEST} x {SMALLEST} pixels.")
            continue
        yield path.name, image


def measure_photo(
    name: str, image: np.ndarray, kind: str, network: Network, methods: tuple[str, ...]
) -> dict[str, Any]:
    """A row of figures: of each method PSNR, SSIM and seconds."""
    hidden = draw_hole(kind, name, image.shape[:2])
    # OpenCV's gradients read what is under the mask: left there, the answer would leak.
    blank = np.where(hidden[..., None], np.uint8(0), image)
    fillers = {
        "telea": fill_opencv(cv2.INPAINT_TELEA),
        "navier-stokes": fill_opencv(cv2.INPAINT_NS),
        "laplace": _fill_laplace,
        "biharmonic": _fill_biharmonic,
    }
    row: dict[str, Any] = {"photo": name, "kind": kind, "hidden": round(float(hidden.mean()), 4)}
    truth = torch.from_numpy(image.astype(np.float64) / 255).permute(2, 0, 1)[None]
    for method in methods:
        forward_s, began = network.forward_s, time.perf_counter()
        if method == "et":
            filled = network.fill(blank, hidden)
            completed = filled.write(blank)
        else:
            filled, completed = None, fillers[method](blank, hidden)
        seconds = time.perf_counter() - began
        if not np.array_equal(completed[~hidden], image[~hidden]):
            raise ValueError(f"{name}, {method}: known pixels were changed")
        off = (completed[hidden].astype(np.float64) - image[hidden]) / 255
        values = torch.from_numpy(completed.astype(np.float64) / 255).permute(2, 0, 1)[None]
        similar = ssim_map(values, truth)[0].mean(0).numpy()[hidden].mean()
        psnr = -10 * np.log10(max(np.square(off).mean(), 1e-10))
        row[method] = {"psnr": psnr, "ssim": float(similar), "seconds": seconds}
        if filled is not None:
            row[method]["forward_s"] = network.forward_s - forward_s
            if filled.expected_error is not None:
                both = np.stack([np.abs(off).mean(1), filled.expected_error])
                chosen = np.random.default_rng(0).permutation(both.shape[1])[:_SAMPLE]
                network.errors.append(both[:, chosen])
                row[method]["doubt"] = rank_correlation(*both[:, chosen])
    return row


def format_table(rows: list[dict[str, Any]], methods: tuple[str, ...]) -> str:
    """A row for each kind of hole and method: means over photographs, medians of seconds."""
    lines = [
        "| holes | method | PSNR | SSIM | over Navier-Stokes | photos ahead of it | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        for method in methods:
            cells = [row[method] for row in of_kind]
            gains = [row[method]["psnr"] - row["navier-stokes"]["psnr"] for row in of_kind]
            lines.append(
                f"| {kind} | {method} | {_mean(cells, 'psnr'):.2f} | {_mean(cells, 'ssim'):.3f} | "
                f"{statistics.fmean(gains):+.2f} | {np.mean(np.array(gains) > 0):.0%} | "
                f"{statistics.median(cell['seconds'] for cell in cells):.2f} |"
            )
    return "\n".join(lines)


def _mean(cells: list[dict[str, float]], name: str) -> float:
    return statistics.fmean(cell[name] for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--photos", type=Path, help="folder; else BSDS500's test photographs")
    parser.add_argument("--test-only", action="store_true", help="of --photos")
    parser.add_argument("--part", choices=("test", "val"), default="test", help="of BSDS500")
    parser.add_argument("--checkpoint", type=Path, default=REPO / "checkpoints" / "et-photos")
    parser.add_argument("--stride", type=int, help="pixels between windows; else as served")
    parser.add_argument("--depth", type=int, help="pixels; deeper ones at half size first")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, help="JSON lines, one a photograph and kind of hole")
    args = parser.parse_args()
    methods = tuple(args.methods.split(","))
    if unknown := sorted({*methods} - {*METHODS}):
        parser.error(f"unknown method {unknown[0]}; known are {', '.join(METHODS)}")
    if missing := sorted({"navier-stokes", "et"} - {*methods}):
        parser.error(f"--methods must have {missing[0]}, with which others are compared")
    tiling = {name: getattr(args, name) for name in ("stride", "depth") if getattr(args, name)}
    network = Network(args.checkpoint, **tiling)
    rows: list[dict[str, Any]] = []
    if args.out:
        args.out.write_text("")
    own = args.photos and read_folder(args.photos, test_only=args.test_only)
    for name, image in own or read_bsds(args.part):
        for kind in KINDS:
            rows.append(measure_photo(name, image, kind, network, methods))
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if not rows:
        parser.error(f"{args.photos} has no photograph to measure")
    print(format_table(rows, methods))
    ours = [row["et"] for row in rows]
    share = sum(cell["forward_s"] for cell in ours) / sum(cell["seconds"] for cell in ours)
    doubts = [cell["doubt"] for cell in ours if "doubt" in cell]
    print(
        f"\n{len(rows) // len(KINDS)} photographs. The energy rose in {network.rises} of "
        f"{network.steps} steps of {network.windows} windows. The network took {share:.0%} of the "
        f"time. {describe()}."
    )
    if doubts:
        everywhere = rank_correlation(*np.concatenate(network.errors, 1))
        print(
            f"Correlation of doubt and error: {everywhere:.2f} over up to {_SAMPLE} hidden pixels "
            f"of each hole, {statistics.fmean(doubts):.2f} within one hole."
        )


if __name__ == "__main__":
    main()
