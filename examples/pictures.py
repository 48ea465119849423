"""Photographs with holes, filled by a running server, as a picture for the documentation.

    python -m examples.pictures --url http://127.0.0.1:8000 --out docs/figures/completions.jpg

The photographs come with scikit-learn: no model was trained on them. `--write` also renews
`photo.jpg` and `mask.png` beside this file.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images

HERE = Path(__file__).parent
WIDTH, HEIGHT = 640, 480
_GAP = 8


def photographs() -> list[Image.Image]:
    """A temple and a flower, 640 x 480."""
    found = []
    for pixels in load_sample_images()["images"]:
        photo = Image.fromarray(np.asarray(pixels))
        scale = HEIGHT / photo.height
        large = photo.resize((round(photo.width * scale), HEIGHT), Image.Resampling.LANCZOS)
        left = (large.width - WIDTH) // 2
        found.append(large.crop((left, 0, left + WIDTH, HEIGHT)))
    return found


def scratches(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """Eight thin lines that bend."""
    for _ in range(8):
        start, angle = rng.uniform((0, 0), (WIDTH, HEIGHT)), rng.uniform(0, 2 * np.pi)
        points = [start]
        for _ in range(30):
            angle += rng.normal(0, 0.3)
            points.append(points[-1] + 12 * np.array([np.cos(angle), np.sin(angle)]))
        draw.line([tuple(point) for point in points], fill=255, width=int(rng.integers(2, 6)))


def blobs(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """Ten spots of up to thirty pixels."""
    for _ in range(10):
        x, y = rng.uniform((40, 40), (WIDTH - 40, HEIGHT - 40))
        a, b = rng.uniform(8, 16, 2)
        draw.ellipse((x - a, y - b, x + a, y + b), fill=255)


def block(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """A square of 64 pixels."""
    x, y = rng.uniform((80, 80), (WIDTH - 144, HEIGHT - 144))
    draw.rectangle((x, y, x + 63, y + 63), fill=255)


def writing(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """A line of text across."""
    draw.text((60, rng.uniform(100, 360)), "basin basin basin", fill=255, font_size=64)


MASKS: dict[str, Callable[[ImageDraw.ImageDraw, np.random.Generator], None]] = {
    "scratches": scratches,
    "blobs": blobs,
    "block": block,
    "writing": writing,
}


def mask_of(name: str, seed: int = 0) -> Image.Image:
    """White where it is to be filled."""
    mask = Image.new("L", (WIDTH, HEIGHT))
    MASKS[name](ImageDraw.Draw(mask), np.random.default_rng(seed))
    return mask


def completed(url: str, photo: Image.Image, mask: Image.Image, model: str) -> Image.Image:
    """What the server makes of it; what was known is checked to have come back as it was."""
    files = {"image": _png(photo), "mask": _png(mask)}
    headers = {"accept": "image/png"}
    answer = httpx.post(
        f"{url}/complete", files=files, data={"model": model}, headers=headers, timeout=120
    )
    found = Image.open(io.BytesIO(answer.raise_for_status().content)).convert("RGB")
    known = np.asarray(mask) == 0
    assert (np.asarray(found)[known] == np.asarray(photo)[known]).all()
    return found


def show(url: str, model: str) -> Image.Image:
    """Photographs with their holes in grey, and as the server fills them: a row for each mask."""
    rows = []
    for name in MASKS:
        row: list[Image.Image] = []
        for seed, photo in enumerate(photographs()):
            mask = mask_of(name, seed)
            holed = photo.copy()
            holed.paste((127, 127, 127), mask=mask)
            row += [holed, completed(url, photo, mask, model)]
        rows.append(row)
    sheet = Image.new(
        "RGB",
        (len(rows[0]) * (WIDTH + _GAP) - _GAP, len(rows) * (HEIGHT + _GAP) - _GAP),
        (255, 255, 255),
    )
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            sheet.paste(picture, (x * (WIDTH + _GAP), y * (HEIGHT + _GAP)))
    return sheet


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="et-photos")
    parser.add_argument("--out", type=Path, default=Path("completions.jpg"))
    parser.add_argument("--write", action="store_true", help="photo.jpg and mask.png too")
    options = parser.parse_args()
    if options.write:
        photographs()[1].save(HERE / "photo.jpg", quality=90)
        mask_of("scratches", 1).save(HERE / "mask.png", optimize=True)
    sheet = show(options.url, options.model)
    sheet.resize((sheet.width // 2, sheet.height // 2), Image.Resampling.LANCZOS).save(
        options.out, quality=88
    )


if __name__ == "__main__":
    main()
