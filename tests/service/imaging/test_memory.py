"""A hundred pictures at once: what they need is bounded, and so is what they do to a server."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.inputs.image_files.data import ImageData
from models.inputs.inpainting.fill import Answers, fill_holes
from models.inputs.inpainting.plan import Tiling, plan_windows
from service.endpoints.complete.decoding import DecodedRequest, decode_request
from service.endpoints.complete.infer import write_pixels
from service.endpoints.complete.parse import read_request
from service.errors import Problem
from service.imaging.decoder_pool import ImageDecoder
from service.imaging.encode import embed_json, encode_base64_png, encode_sheet, make_grid
from service.settings import Settings
from tests.models.inputs.image_files.test_decode import read
from tests.service.endpoints.complete.test_parse import HOLE, IMAGE, body, text
from tests.support.image_files import BOMBS, FILES, chunk, saved, smooth
from tests.support.paths import REPO

SCRIPT = """
import asyncio, collections, json, pathlib, sys
from service.errors import Problem
from service.imaging.decoder_pool import ImageDecoder
from service.endpoints.complete.decoding import decode_request
from service.endpoints.complete.parse import read_request
from service.settings import Settings

async def one(reader, body):
    try:
        request = read_request(body, "application/json", Settings())
        async with reader.reserve() as run:
            await run(decode_request, request)
            await asyncio.sleep(0.2)
            return "read"
    except Problem as problem:
        return problem.kind

async def main(bodies):
    reader = ImageDecoder()
    answers = await asyncio.gather(*(one(reader, body) for body in bodies))
    reader.close()
    return answers

def mebibytes(field):  # of this process alone: ru_maxrss begins with the parent's
    (line,) = [s for s in open("/proc/self/status") if s.startswith(field)]
    return int(line.split()[1]) / 1024

small, *bodies = pathlib.Path(sys.argv[1]).read_bytes().splitlines()
asyncio.run(main([small]))
before = mebibytes("VmRSS")
answers = asyncio.run(main(bodies))
print(json.dumps([mebibytes("VmHWM") - before, collections.Counter(answers)]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_a_hundred_at_once_take_little_memory(tmp_path):
    """Bombs, and pictures as large as they may be, of 16 megabytes once they are decoded."""
    large = np.zeros((2000, 2000, 4), np.uint8)
    large[5:9, 5:9] = 255
    whole = body(image=text(saved(large)), mask=text(saved(large[:, :, 0])))
    bombs = [text(data) for data, _ in BOMBS.values()]
    bodies = [body(), *[body(image=bomb) for bomb in bombs] * 5]
    bodies += [*[body(mask=bomb) for bomb in bombs] * 5, *[whole] * 20]
    (tmp_path / "bodies").write_bytes(b"\n".join(bodies))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "bodies"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    mebibytes, answers = json.loads(done.stdout)
    assert len(bodies) > 100
    assert answers == {"invalid-image": 10 * len(bombs), "read": 20}
    assert 16 < mebibytes < 300


def test_a_place_is_free_again_whatever_happened():
    request = read_request(body(), "application/json", Settings())
    cut = IMAGE[:33] + chunk(b"IDAT", b"x\x9c") + chunk(b"IEND")
    broken = read_request(body(image=text(cut)), "application/json", Settings())

    async def main() -> tuple[DecodedRequest, bool]:
        reader = ImageDecoder(places=1)
        for _ in range(3):
            with pytest.raises(Problem):
                async with reader.reserve() as run:
                    await run(decode_request, broken)
        async with reader.reserve() as run:
            opened = await run(decode_request, request)
            waiting = asyncio.ensure_future(reader.reserve().__aenter__())
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            waiting.cancel()
        async with reader.reserve() as run:
            await run(decode_request, request)
        reader.close()
        return opened, bool(done)

    opened, at_once = asyncio.run(main())
    assert not at_once
    np.testing.assert_array_equal(opened.hole.hidden, HOLE == 255)


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("png")))
def test_what_is_written_is_what_was_read(name):
    picture = read(FILES[name])
    again = read(encode_sheet([picture]))
    np.testing.assert_array_equal(again.to_array(), picture.to_array())
    assert again.pixels.dtype == picture.pixels.dtype


@pytest.mark.parametrize("name", FILES)
def test_from_a_body_to_a_png(name):
    """As a route does it, for every kind of file."""
    request = read_request(body(image=text(FILES[name])), "application/json", Settings())
    opened = decode_request(request)
    plan = plan_windows(opened.hole.hidden, Tiling.from_size(16), 100)
    filled = fill_holes(
        opened.image.pixels, plan, lambda windows, _: Answers(1 - windows.pixels, None)
    )
    again = read(encode_sheet([write_pixels(opened.image, filled)]))
    assert again.pixels.dtype == opened.image.pixels.dtype
    known = ~opened.hole.hidden
    np.testing.assert_array_equal(again.pixels[known], opened.image.pixels[known])
    assert (again.pixels[~known] != opened.image.pixels[~known]).any()
    assert (again.alpha is None) == (opened.image.alpha is None)
    if again.alpha is not None:
        np.testing.assert_array_equal(again.alpha[known], opened.image.alpha[known])


def test_a_png_tells_what_goes_with_it():
    picture = ImageData(smooth(5, 7), None, b"profile")
    with Image.open(
        io.BytesIO(embed_json(encode_sheet([picture]), '{"seed":"é"}'.encode()))
    ) as image:
        image.load()
        assert json.loads(image.text["basin"]) == {"seed": "é"}  # type: ignore[attr-defined]
        assert image.info["icc_profile"] == b"profile"
        np.testing.assert_array_equal(np.asarray(image), picture.pixels)
    assert encode_base64_png(picture) == text(encode_sheet([picture]))


def test_several_are_one_sheet():
    planes = [ImageData(smooth(5, 7, 4)[:, :, :3], smooth(5, 7, 4)[:, :, 3], b"profile")] * 3
    with Image.open(io.BytesIO(encode_sheet(planes))) as image:
        assert (image.mode, image.size) == ("RGBA", (2 * 7 + 2, 2 * 5 + 2))
        assert image.info["icc_profile"] == b"profile"
        np.testing.assert_array_equal(np.asarray(image)[:5, :7], smooth(5, 7, 4))
    fine = ImageData(np.full((5, 7, 1), 0x8040, np.uint16))
    with Image.open(io.BytesIO(encode_sheet([fine, fine]))) as image:
        assert (image.mode, image.getpixel((0, 0))) == ("L", 0x80)
    assert read(encode_sheet([fine])).pixels.dtype == np.uint16
    as_numbers = make_grid(np.stack([smooth(5, 7)] * 2) / 255)
    np.testing.assert_array_equal(as_numbers, make_grid(np.stack([smooth(5, 7)] * 2)))
