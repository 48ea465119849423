"""Files that are pictures, and files that are made to look like one."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

RNG = np.random.default_rng(11)
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def saved(array: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(out, kind, **options)
    return out.getvalue()


def smooth(height: int, width: int, channels: int = 3) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    planes = [(rows * 7 + columns * (3 + c)) % 256 for c in range(channels)]
    return (
        np.squeeze(np.stack(planes, -1).astype(np.uint8), -1)
        if channels == 1
        else np.stack(planes, -1).astype(np.uint8)
    )


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, depth: int, colour: int, raw: bytes, *extra: bytes, level: int = 6
) -> bytes:
    """A PNG from scanlines, each with its filter in front; `extra` chunks come before them."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(raw, level))
    return SIGNATURE + chunk(b"IHDR", header) + b"".join(extra) + pixels + chunk(b"IEND")


def flat_png(side: int, *extra: bytes) -> bytes:
    """A grey square; a million pixels take a kilobyte."""
    return png(side, side, 8, 0, bytes((side + 1) * side), *extra)


def exif(orientation: int) -> bytes:
    return b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def with_scans(jpeg: bytes, count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    start = jpeg.rfind(b"\xff\xda")
    return jpeg[:-2] + jpeg[start:-2] * count + b"\xff\xd9"


def interlaced(array: np.ndarray) -> bytes:
    """Of uint8 (H, W, 3), in the seven passes of Adam7."""
    passes = ("0088", "4088", "0448", "2044", "0224", "1022", "0112")
    raw = b""
    for x, y, across, down in (map(int, each) for each in passes):
        raw += b"".join(b"\0" + row.tobytes() for row in array[y::down, x::across] if len(row))
    height, width, _ = array.shape
    whole = png(width, height, 8, 2, raw)
    header = whole[12:28] + b"\1"
    return whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]


INTERLACED = interlaced(smooth(20, 30))
PALETTE = Image.fromarray(smooth(20, 30)).quantize(9)
FILES = {
    "png": saved(smooth(20, 30)),
    "png grey": saved(smooth(20, 30, 1)),
    "png alpha": saved(smooth(20, 30, 4)),
    "png grey and alpha": saved(Image.fromarray(smooth(20, 30, 1)).convert("LA")),
    "png palette": saved(PALETTE),
    "png palette with transparency": saved(PALETTE, transparency=3),
    "png black and white": saved(Image.fromarray(smooth(20, 30, 1)).convert("1")),
    "png 16 bits": saved((smooth(20, 30, 1).astype(np.uint16) << 8) + 17),
    "png transparent colour": saved(smooth(20, 30), transparency=(0, 0, 0)),
    "png interlaced": INTERLACED,
    "jpeg": saved(smooth(20, 30), "JPEG"),
    "jpeg grey": saved(smooth(20, 30, 1), "JPEG"),
    "jpeg progressive": saved(smooth(20, 30), "JPEG", progressive=True),
    "webp": saved(smooth(20, 30), "WEBP"),
    "webp lossless alpha": saved(smooth(20, 30, 4), "WEBP", lossless=True, exif=exif(1)),
}

FRAMES = [Image.fromarray(np.roll(smooth(9, 9), 3 * i, 1)) for i in range(3)]
NOT_READ = {
    "gif": (saved(smooth(9, 9, 1), "GIF"), "not_read"),
    "bmp": (saved(smooth(9, 9), "BMP"), "not_read"),
    "tiff": (saved(smooth(9, 9), "TIFF"), "not_read"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "not_read"),
    "fits": (b"SIMPLE  =                    T".ljust(2880), "not_read"),
    "text": (b"this is a picture, called a.png", "not_read"),
    "animated png": (
        saved(FRAMES[0], save_all=True, append_images=FRAMES[1:], duration=9),
        "animated",
    ),
    "animated webp": (
        saved(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:], duration=9),
        "animated",
    ),
    "cmyk": (saved(Image.new("CMYK", (9, 9)), "JPEG"), "not_read"),
    "16 bits of colour": (png(2, 2, 16, 2, bytes(2 * 13)), "not_read"),
    "16 bits of colour and alpha": (png(2, 2, 16, 6, bytes(2 * 17)), "not_read"),
    "16 bits, one transparent": (png(2, 2, 16, 0, bytes(10), chunk(b"tRNS", b"\0\0")), "not_read"),
    "arithmetic jpeg": (saved(smooth(9, 9), "JPEG").replace(b"\xff\xc0", b"\xff\xc9"), "not_read"),
}

PNG, JPEG, WEBP = FILES["png"], FILES["jpeg"], FILES["webp"]
DAMAGED = {
    "nothing": (b"", "empty"),
    "half a png": (PNG[: len(PNG) // 2], "truncated"),
    "png without end": (PNG[:-12], "truncated"),
    "png without pixels": (png(9, 9, 8, 0, b""), "truncated"),
    "png of cut pixels": (
        SIGNATURE + PNG[8:33] + chunk(b"IDAT", PNG[41:-60]) + chunk(b"IEND"),
        "truncated",
    ),
    "png with few pixels": (png(9, 9, 8, 0, bytes(89)), "truncated"),
    "png with few bits": (png(9, 9, 1, 0, bytes(26)), "truncated"),
    "png of no stream": (
        SIGNATURE + PNG[8:33] + chunk(b"IDAT", b"zlib?") + chunk(b"IEND"),
        "damaged",
    ),
    "png of no size": (png(0, 9, 8, 0, bytes(20)), "damaged"),
    "png of two headers": (PNG[:33] + PNG[8:33] + PNG[33:], "damaged"),
    "png without header": (SIGNATURE + chunk(b"IDAT", b"") + chunk(b"IEND"), "damaged"),
    "png of a wrong sum": (PNG[:-20] + b"!!!!" + PNG[-16:], "damaged"),
    "png of seven bits": (png(9, 9, 7, 0, bytes(99)), "damaged"),
    "a signature": (SIGNATURE, "truncated"),
    "half a jpeg": (JPEG[: len(JPEG) // 2], "truncated"),
    "jpeg without end": (JPEG[:-2], "truncated"),
    "jpeg of noise": (JPEG[:2] + b"\xff" + RNG.bytes(99), None),
    "jpeg without size": (JPEG[:2] + JPEG[JPEG.find(b"\xff\xda") :], "damaged"),
    "half a webp": (WEBP[: len(WEBP) // 2], "truncated"),
    "webp of two sizes": (
        (two := WEBP[12:] + saved(smooth(9, 9), "WEBP")[12:])
        and b"RIFF" + struct.pack("<I", len(two) + 4) + b"WEBP" + two,
        "damaged",
    ),
}

CMAP = zlib.compress(bytes(8 << 20), 9)
BOMBS = {
    "wide": (flat_png(9216), "too_large"),
    "a line": (png(4_000_001, 1, 8, 0, bytes(4_000_002)), "too_large"),
    "billions": (png(2**31 - 1, 2**31 - 1, 8, 6, bytes(99)), "too_large"),
    "profile": (flat_png(9, chunk(b"iCCP", b"p\0\0" + CMAP)), "damaged"),
    "chunks": (flat_png(9, *[chunk(b"tEXt", b"a\0b")] * 20_000), "too_large"),
    "fillers": (JPEG[:2] + b"\xff" * 100_000 + JPEG[2:], "too_large"),
    "scans": (with_scans(FILES["jpeg progressive"], 100), "too_large"),
    "canvas": (
        b"RIFF"
        + struct.pack("<I", 22)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\xff" * 6,
        "too_large",
    ),
}
TEXTS = [chunk(b"zTXt", b"t\0\0" + CMAP), chunk(b"iTXt", b"t\0\1\0\0\0" + CMAP)]
IGNORED = flat_png(9, *TEXTS * 9)  # never inflated
