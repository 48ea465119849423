"""From files, good and bad, to pixels: a picture or a fault, never anything else."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from models.inputs.image_files.data import ImageData, ImageError
from models.inputs.image_files.decode import decode_image
from models.inputs.image_files.header import inspect_header
from service.endpoints.complete.masks import find_hidden
from tests.support.image_files import (
    BOMBS,
    DAMAGED,
    FILES,
    IGNORED,
    NOT_READ,
    chunk,
    exif,
    flat_png,
    interlaced,
    png,
    saved,
    smooth,
)

LIMIT = 4_000_000


def read(data: bytes, limit: int = LIMIT) -> ImageData:
    found = inspect_header(data, limit)
    picture = decode_image(found)
    assert picture.shape == found.shape
    return picture


def refusal(data: bytes, limit: int = LIMIT) -> ImageError:
    with pytest.raises(ImageError) as refused:
        read(data, limit)
    return refused.value


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_that_pillow_reads(name):
    picture = read(FILES[name])
    with Image.open(io.BytesIO(FILES[name])) as image:
        if name == "png 16 bits":
            np.testing.assert_array_equal(picture.pixels[:, :, 0], np.asarray(image))
            assert picture.pixels.dtype == np.uint16
            return
        transparent = "transparency" in image.info or image.mode in ("LA", "RGBA")
        assert (picture.alpha is not None) == transparent
        grey = image.mode in ("1", "L", "LA")
        wanted = ("LA" if grey else "RGBA") if transparent else ("L" if grey else "RGB")
        np.testing.assert_array_equal(picture.to_array(), np.asarray(image.convert(wanted)))
    assert picture.pixels.dtype == np.uint8


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_single_pixel(side, kind):
    assert read(saved(smooth(side, 1), kind), side).shape == (side, 1)
    assert refusal(saved(smooth(side, 1), kind), side - 1).code == "too_large"


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_turned_upright(kind, orientation):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(smooth(16, 24), kind, exif=exif(orientation), **options)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(
            read(data).to_array(), np.asarray(ImageOps.exif_transpose(image))
        )


@pytest.mark.parametrize("height", [1, 3, 5, 9])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_every_row_of_every_pass_is_counted(height, width):
    picture = smooth(height, width)
    np.testing.assert_array_equal(read(interlaced(picture)).pixels, picture)
    short = zlib.compress(bytes(height * (1 + 3 * width) - 1))
    data = saved(picture)[:33] + chunk(b"IDAT", short) + chunk(b"IEND")
    assert refusal(data).code == "truncated"


def test_sixteen_bits_are_turned_too():
    grey = np.arange(6, dtype=np.uint16).reshape(2, 3) * 9999
    found = read(saved(grey, exif=exif(6)))
    np.testing.assert_array_equal(found.pixels[:, :, 0], np.rot90(grey, -1))


@pytest.mark.parametrize(
    "tag", [b"", b"II", b"MM\0*", b"MM\0*\xff\xff\xff\xff", b"XX\0*" + bytes(99), exif(3)[:-14]]
)
def test_an_orientation_that_makes_no_sense_is_none(tag):
    np.testing.assert_array_equal(
        read(flat_png(3, chunk(b"eXIf", tag))).pixels, np.zeros((3, 3, 1), np.uint8)
    )


def test_a_colour_profile_is_kept():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for kind in ("PNG", "JPEG", "WEBP"):
        assert read(saved(smooth(9, 9), kind, icc_profile=profile)).profile == profile
    assert refusal(saved(smooth(9, 9), "JPEG", icc_profile=bytes(2 << 20))).code == "too_large"
    assert refusal(saved(smooth(9, 9), "WEBP", icc_profile=bytes(2 << 20))).code == "too_large"


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_not_read(name):
    data, code = NOT_READ[name]
    found = refusal(data)
    assert (found.code, found.kind) == (code, "unsupported-image")


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged(name):
    data, code = DAMAGED[name]
    found = refusal(data)
    assert found.code == code or (code is None and found.code in ("damaged", "truncated"))
    assert found.kind == "invalid-image"


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    data, code = BOMBS[name]
    assert len(data) < 400_000
    assert refusal(data).code == code


def test_a_stream_longer_than_the_picture_is_not_inflated():
    data = png(99, 99, 8, 0, bytes(64 << 20))
    tracemalloc.start()
    try:
        assert read(data).shape == (99, 99)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_pixels_after_the_last_are_not_read():
    """zlib would copy all of them again for each chunk."""
    image = flat_png(9)
    more = chunk(b"IDAT", bytes(2000)) * 16_000
    assert read(image[:-12] + more + image[-12:]).shape == (9, 9)


def test_texts_are_not_read_whatever_they_hold():
    assert read(IGNORED).shape == (9, 9)


def test_a_photograph_with_more_pictures_in_it_is_the_first():
    first, *rest = (Image.fromarray(smooth(9, 9) + np.uint8(i)) for i in range(3))
    data = saved(first, "MPO", save_all=True, append_images=rest)
    np.testing.assert_array_equal(read(data).to_array(), read(saved(first, "JPEG")).to_array())


@settings(max_examples=250, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FILES)))
def test_no_file_makes_the_decoder_fail(data, name):
    changed = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(changed) - 1))
        change = data.draw(st.sampled_from(["byte", "cut", "again", "number"]))
        if change == "byte":
            changed[at] = data.draw(st.integers(0, 255))
        elif change == "number":
            changed[at : at + 4] = struct.pack(">I", data.draw(st.integers(0, 2**32 - 1)))
        elif change == "cut":
            del changed[at : at + data.draw(st.integers(1, 20))]
        else:
            changed[at:at] = changed[at : at + data.draw(st.integers(1, 200))]
        if not changed:
            break
    with contextlib.suppress(ImageError):
        assert read(bytes(changed), 100_000).pixels.dtype in (np.uint8, np.uint16)


GREYS = np.array([[0, 127], [128, 255]], np.uint8)


def masks() -> dict[str, ImageData]:
    colour = np.array([[[0, 0, 0], [255, 0, 0]], [[0, 255, 0], [255, 255, 255]]], np.uint8)
    return {
        "grey": ImageData(GREYS[..., None]),
        "16 bits": ImageData(GREYS[..., None].astype(np.uint16) << 8),
        "colour": ImageData(colour),  # luma 76 and 149
        "black and white": read(png(2, 2, 1, 0, b"\0\0\0\xff")),
    }


@pytest.mark.parametrize("name", masks())
def test_white_or_black_is_what_is_nearer(name):
    expected = [[False, False], [True, True]]
    np.testing.assert_array_equal(find_hidden("white_fill", masks()[name]), expected)
    np.testing.assert_array_equal(find_hidden("black_fill", masks()[name]), np.invert(expected))


def test_transparent_is_less_than_half_opaque():
    mask = ImageData(np.zeros((2, 2, 3), np.uint8), GREYS)
    np.testing.assert_array_equal(find_hidden("alpha", mask), [[True, True], [False, False]])


@pytest.mark.parametrize(
    ("mode", "mask", "code"),
    [
        ("white_fill", ImageData(np.zeros((2, 2, 1), np.uint8)), "nothing_to_fill"),
        ("black_fill", ImageData(np.zeros((2, 2, 1), np.uint8)), "nothing_known"),
        ("white_fill", ImageData(np.full((2, 2, 3), 255, np.uint8)), "nothing_known"),
        ("alpha", ImageData(GREYS[..., None]), "no_alpha"),
        ("alpha", ImageData(GREYS[..., None], np.full((2, 2), 255, np.uint8)), "nothing_to_fill"),
        ("alpha", ImageData(GREYS[..., None], np.zeros((2, 2), np.uint8)), "nothing_known"),
    ],
)
def test_masks_that_say_nothing(mode, mask, code):
    with pytest.raises(ImageError) as refused:
        find_hidden(mode, mask)
    assert refused.value.code == code
