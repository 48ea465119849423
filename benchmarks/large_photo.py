"""Peak memory and time of a server that fills scratches in photographs of 12 to 48 megapixels.

`examples/photo.jpg` scaled up, sent as JPEG with a mask as PNG, answered as PNG; four scratches of
5 pixels. Memory is what the server's process had at most, beyond what it had before the request.
Linux alone: it reads and resets VmHWM.

    python -m benchmarks.large_photo [megapixels ...]
"""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
from PIL import Image, ImageDraw

from benchmarks.machine import describe
from benchmarks.server import process

_PHOTO = Path(__file__).parents[1] / "examples" / "photo.jpg"
_SCRATCHES, _LONG, _THICK = 4, 800, 5
_SETTINGS = {
    "BASIN_MAX_PIXELS": "64000000",
    "BASIN_MAX_RESPONSE_BYTES": str(1 << 28),
    "BASIN_DEADLINE_S": "600",
}


def make_request(width: int, height: int) -> tuple[bytes, bytes, np.ndarray, np.ndarray]:
    """The photograph as JPEG, its mask as PNG, its pixels as the server reads them, the mask."""
    photo = Image.open(_PHOTO).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    jpeg, png = io.BytesIO(), io.BytesIO()
    photo.save(jpeg, "JPEG", quality=90)
    mask = Image.new("L", (width, height))
    rng, pen = np.random.default_rng(0), ImageDraw.Draw(mask)
    for _ in range(_SCRATCHES):
        x, y = rng.uniform(0, width - _LONG), rng.uniform(0, height - _LONG)
        along = rng.uniform(0, np.pi / 2)
        end = x + _LONG * np.cos(along), y + _LONG * np.sin(along)
        pen.line([(x, y), end], fill=255, width=_THICK)
    mask.save(png, "PNG")
    return jpeg.getvalue(), png.getvalue(), np.asarray(Image.open(jpeg)), np.asarray(mask) > 127


def read_memory(pid: int, name: str) -> float:
    """A field of /proc/PID/status, in MiB."""
    field = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert field is not None
    return int(field[1]) / 1024


def measure(client: httpx.Client, pid: int, megapixels: float) -> str:
    """A row of the table.

    Raises:
        ValueError: a known pixel was changed.
    """
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    width = round(megapixels * 1e6 / height)
    jpeg, png, before, hidden = make_request(width, height)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    idle, began = read_memory(pid, "VmRSS"), time.perf_counter()
    files = {"image": ("a.jpg", jpeg), "mask": ("b.png", png)}
    response = client.post("/complete", files=files, headers={"accept": "image/png"}, timeout=900)
    took, peak = time.perf_counter() - began, read_memory(pid, "VmHWM")
    response.raise_for_status()
    image = Image.open(io.BytesIO(response.content))
    windows = re.search(r'"windows":\s*(\d+)', str(image.info["basin"]))
    assert windows is not None
    if not np.array_equal(np.asarray(image)[~hidden], before[~hidden]):
        raise ValueError("known pixels were changed")
    pixels = width * height
    per_pixel = (peak - idle) * 2**20 / pixels
    return (
        f"| {width} x {height} | {hidden.sum()} | {windows[1]} | {took:.1f} | {peak:.0f} | "
        f"{peak - idle:.0f} | {per_pixel:.1f} |"
    )


def main() -> None:
    sizes = [float(each) for each in sys.argv[1:]] or [12.0, 24.0, 48.0]
    Image.MAX_IMAGE_PIXELS = None
    with TemporaryDirectory() as own:
        stores = {name: f"{own}/{name}" for name in ("BASIN_JOB_STORE", "BASIN_GRAPH_STORE")} | {
            "BASIN_MEMORY_STORE": f"{own}/memories"
        }
        with process(**_SETTINGS, **stores) as (server, client):
            measure(client, server.pid, 1.0)  # what comes with the first request is no photograph's
            print(
                "| photograph | hidden pixels | windows | seconds | peak, MiB | beyond idle, MiB | "
                "bytes a pixel |\n|---|---|---|---|---|---|---|"
            )
            for megapixels in sizes:
                print(measure(client, server.pid, megapixels), flush=True)
    print(f"\n{describe()}.")


if __name__ == "__main__":
    main()
