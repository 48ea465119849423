"""An image means the same however it is given, and so does a mask."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from basin_client import Client, InputError
from basin_client.images import encode_image, image_files
from PIL import Image

from models.inputs.image_files.data import ImageData
from models.inputs.image_files.decode import decode_image
from models.inputs.image_files.header import inspect_header
from tests.support.image_files import smooth
from tests.support.server import Server

RGB = smooth(20, 24)
GREY = RGB[:, :, 0] if RGB.ndim == 3 else RGB


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def decoded(given: object) -> ImageData:
    return decode_image(inspect_header(encode_image(given), 1 << 20))


def test_the_same_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(GREY).save(path)
    with path.open("rb") as file, Image.open(path) as image:
        for given in (
            path,
            str(path),
            path.read_bytes(),
            bytearray(path.read_bytes()),
            file,
            image,
        ):
            np.testing.assert_array_equal(decoded(given).pixels[:, :, 0], GREY)
    arrays = (GREY, GREY[:, :, None], GREY.astype(int), GREY / 255, torch.from_numpy(GREY / 255))
    for given in (*arrays, (GREY / 255).astype(np.float32)):
        np.testing.assert_array_equal(decoded(given).pixels[:, :, 0], GREY)
    levels = GREY.astype(np.uint16) * 257
    for given in (levels, Image.fromarray(levels)):
        np.testing.assert_array_equal(decoded(given).pixels[:, :, 0], levels)
    np.testing.assert_array_equal(decoded(GREY > 100).pixels[:, :, 0], (GREY > 100) * 255)
    color = np.dstack([GREY, GREY // 2, GREY // 3])
    np.testing.assert_array_equal(decoded(color).pixels, color)
    alpha = np.dstack([color, 255 - GREY])
    np.testing.assert_array_equal(decoded(alpha).to_array(), alpha)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_however_it_is_given(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "phone.jpg"
    Image.fromarray(GREY).save(path, exif=exif, quality=95)
    by_path = decoded(path)
    with Image.open(path) as image:
        np.testing.assert_array_equal(decoded(image).pixels, by_path.pixels)
    assert by_path.shape == (GREY.shape if orientation < 5 else GREY.shape[::-1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("missing.png", r"missing\.png: No such file"),
        (np.zeros((3, 20, 24)), "Move the channels last"),
        (np.zeros((20, 24, 2)), r"shape \(20, 24, 2\)"),
        (np.zeros((0, 24)), "at least one pixel"),
        (np.full((4, 4), 2.0), "floats are 0"),
        (np.full((4, 4), np.nan), "floats are 0"),
        (np.full((4, 4), 256), "use uint8"),
        (np.full((4, 4), -1), "use uint8"),
        (np.zeros((4, 4, 3), np.uint16) + 300, "use uint8"),
        (Image.new("CMYK", (4, 4)), r"image\.convert\('RGB'\)"),
        (Image.new("F", (4, 4)), "mode F"),
        (io.BytesIO(b""), "no bytes left"),
        (io.StringIO("x"), "open as text"),
        ({"a": 1}, "Unsupported image type dict"),
    ],
)
def test_what_is_no_image(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_image(given)


def test_several(tmp_path: Path) -> None:
    assert len(image_files(iter([GREY, GREY]))) == 2
    assert len(image_files(GREY)) == len(image_files(b"x")) == len(image_files("a.png")) == 1


def test_masks_by_one_rule(client: Client) -> None:
    """Bool, 0/1, 0/255, 16 bits, floats, and what is transparent marks nothing."""
    hole = np.zeros(GREY.shape, bool)
    hole[5:9, 6:12] = True
    stroke = np.dstack([np.full(GREY.shape, 255)] * 3 + [hole * 255]).astype(np.uint8)
    outside = np.dstack([hole * 255] * 3 + [np.full(GREY.shape, 255)]).astype(np.uint8)
    masks = [hole, hole.astype(int), hole * 255, hole * np.uint16(65535), hole.astype(float)]
    masks += [stroke, outside, Image.fromarray(hole)]
    first = None
    for mask in masks:
        completed = np.array(client.complete(GREY, mask, model="et-tile").images[0])
        np.testing.assert_array_equal(completed[~hole], GREY[~hole])
        first = completed if first is None else first
        np.testing.assert_array_equal(completed, first)
    black = client.complete(GREY, ~hole, mask_mode="black_fill", model="et-tile").images[0]
    np.testing.assert_array_equal(np.array(black), first)
    ones = client.complete(GREY, (~hole).astype(int), mask_mode="black_fill", model="et-tile")
    np.testing.assert_array_equal(np.array(ones.images[0]), first)


def test_the_hole_alone_and_its_uncertainty(client: Client) -> None:
    hole = np.zeros(GREY.shape, bool)
    hole[5:9, 6:12] = True
    whole = client.complete(GREY, hole, model="et-pane")
    assert whole.box is None
    assert whole.uncertainty == []
    part = client.complete(
        GREY, hole, model="et-pane", mask_mode="soft", region="hole", include=["uncertainty"]
    )
    assert part.box == (6, 5, 6, 4)
    left, top, width, height = part.box
    crop = whole.images[0].crop((left, top, left + width, top + height))
    np.testing.assert_array_equal(np.array(part.images[0]), np.array(crop))
    [uncertainty] = part.uncertainty
    assert uncertainty.size == (width, height)
    assert (np.array(uncertainty) > 0).all()
