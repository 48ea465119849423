"""Inspect image files without decoding pixels: format, size and orientation.

Only the chunks that Pillow needs for pixels and color profile are chunks of a PNG or a JPEG: texts,
thumbnails and further images in the file are removed, so that none of them is ever decompressed. A
WebP is passed on whole, because only its pixels are compressed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from models.inputs.image_files.data import ImageError

_FORMATS = "PNG, JPEG or WebP"
_MAX_PARTS = 16_384  # chunks or segments of a file
_MAX_SCANS = 32  # of a progressive JPEG: each scan visits all pixels, and takes few bytes
_MAX_PROFILE = 1 << 20
_PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"IDAT", b"IEND")
_GRAY = 0  # color type of PNG
_SOI, _EOI, _SOS = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_TABLES = (0xC4, 0xDB, 0xDD, 0xE0, 0xEE)  # DHT, DQT, DRI, JFIF, Adobe: needed to decode
_UPRIGHT = 1
_OTHER_FORMATS = (  # by their first bytes
    ("HEIC", re.compile(rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)),
    ("AVIF", re.compile(rb".{4}ftypavi[fs]", re.DOTALL)),
    ("GIF", re.compile(rb"GIF8[79]a")),
    ("BMP", re.compile(rb"BM.{4}\0{4}", re.DOTALL)),
    ("TIFF", re.compile(rb"II\*\0|MM\0\*")),
    ("JPEG XL", re.compile(rb"\xff\x0a|\0{3}\x0cJXL ")),
    ("JPEG 2000", re.compile(rb"\0{3}\x0cjP  ")),
    ("PDF", re.compile(rb"%PDF-")),
)


@dataclass(frozen=True)
class EncodedImage:
    """An encoded image: the bytes needed for its pixels, its stored size and EXIF orientation."""

    data: bytes
    format: str
    width: int
    height: int
    orientation: int = _UPRIGHT

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the upright image."""
        is_transposed = self.orientation >= 5
        return (self.width, self.height) if is_transposed else (self.height, self.width)


def inspect_header(data: bytes, max_pixels: int) -> EncodedImage:
    """Inspect an image file.

    Raises:
        ImageError: no PNG, JPEG or WebP, an animation, more than `max_pixels`, or a corrupt file.
    """
    if not data:
        raise ImageError("empty", f"The image is empty (0 bytes). Send a {_FORMATS} file.")
    read = _reader(data)
    if read is None:
        name = next((f" {name}" for name, magic in _OTHER_FORMATS if magic.match(data)), "")
        rule = (
            f"Unsupported image format{name}: send {_FORMATS}. Convert it, for example with "
            "ImageMagick: `magick input output.png`."
        )
        raise ImageError("not_read", rule, "unsupported-image")
    try:
        image = read(data)
    except (struct.error, IndexError):
        raise _truncated() from None
    if not image.width or not image.height:
        raise _corrupt("image", "its width or height is 0")
    if image.width * image.height > max_pixels:
        raise ImageError(
            "too_large",
            f"The image has {image.width * image.height} pixels; at most {max_pixels} "
            "(BASIN_MAX_PIXELS) are allowed. Send a smaller image.",
        )
    return image


def _reader(data: bytes) -> Callable[[bytes], EncodedImage] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png
    if data.startswith(_SOI + b"\xff"):
        return _jpeg
    return _webp if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _png(data: bytes) -> EncodedImage:
    length, kind, width, height, depth, color = struct.unpack_from(">I4sIIBB", data, 8)
    if (length, kind) != (13, b"IHDR"):
        raise _corrupt("PNG", "the first chunk must be IHDR")
    if depth == 16 and color != _GRAY:
        rule = (
            "The PNG is a color image with 16 bits per channel. Convert it to 8 bits per "
            "channel, or to 16-bit grayscale."
        )
        raise ImageError("not_read", rule, "unsupported-image")
    chunks, orientation, at = [data[:8]], _UPRIGHT, 8
    profiled = False
    for _ in range(_MAX_PARTS):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise _truncated()
        if kind == b"IHDR" and at != 8:
            raise _corrupt("PNG", f"a second IHDR chunk at byte {at}")
        if kind == b"acTL":
            raise _animated()
        if kind == b"tRNS" and color == _GRAY and depth != 8:
            rule = (
                f"The PNG is grayscale with a transparent color and {depth} bits per channel. "
                "Convert it to 8 bits per channel."
            )
            raise ImageError("not_read", rule, "unsupported-image")
        if kind == b"eXIf":
            orientation = _orientation(data[at + 8 : end - 4])
        if kind in _PNG_PIXELS and not (
            kind == b"iCCP" and profiled
        ):  # each profile would be decompressed
            chunks.append(data[at:end])
            profiled |= kind == b"iCCP"
        if kind == b"IEND":
            return EncodedImage(b"".join(chunks), "PNG", width, height, orientation)
        at = end
    raise _too_many_chunks()


def _jpeg(data: bytes) -> EncodedImage:
    size, chunks, profile, orientation, at = None, [_SOI], 0, _UPRIGHT, 2
    for _ in range(_MAX_PARTS):
        if data[at] != 0xFF:
            raise _corrupt("JPEG", f"expected a segment marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # may be repeated as a filler
            at += 1
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        body, end = data[at + 4 : at + 2 + length], at + 2 + length
        if end > len(data):
            raise _truncated()
        if marker in _OTHER_FRAMES:
            rule = (
                "Unsupported JPEG coding. Export it as baseline or progressive JPEG with "
                "Huffman coding."
            )
            raise ImageError("not_read", rule, "unsupported-image")
        if marker in _FRAMES:
            size = _frame(body)
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            orientation = _orientation(body)
        of_profile = marker == 0xE2 and body.startswith(b"ICC_PROFILE\0")
        profile += length if of_profile else 0
        if marker in _FRAMES or marker in _TABLES or of_profile:
            chunks.append(data[at:end])
        if marker == _SOS[1]:
            break
        at = end
    else:
        raise _too_many_chunks()
    if size is None:
        raise _corrupt("JPEG", "it has no frame header")
    _check_profile(profile)
    # In pixel data every 0xFF is followed by 0, so these bytes can only be markers.
    end = data.find(_EOI, at) + len(_EOI)
    if end < len(_EOI):
        raise _truncated()
    if (num_scans := data.count(_SOS, at, end)) > _MAX_SCANS:
        raise ImageError(
            "too_large",
            f"The JPEG has {num_scans} scans; at most {_MAX_SCANS} are allowed. Export it as "
            "baseline JPEG.",
        )
    chunks.append(data[at:end])
    return EncodedImage(b"".join(chunks), "JPEG", *size, orientation)


def _frame(body: bytes) -> tuple[int, int]:
    depth, height, width, channels = struct.unpack_from(">BHHB", body)
    if depth != 8 or channels not in (1, 3):
        rule = (
            f"The JPEG has {channels} channels of {depth} bits. Convert it to RGB or grayscale "
            "with 8 bits per channel; CMYK is not supported."
        )
        raise ImageError("not_read", rule, "unsupported-image")
    return width, height


def _webp(data: bytes) -> EncodedImage:
    (length,) = struct.unpack_from("<I", data, 4)
    if (stop := 8 + length) > len(data):
        raise _truncated()
    sizes, orientation, at = set(), _UPRIGHT, 12
    for _ in range(_MAX_PARTS):
        if at >= stop:
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        start, end = at + 8, at + 8 + length
        if end > stop:
            raise _truncated()
        word = partial(int.from_bytes, byteorder="little")
        if kind == b"VP8X":
            if data[start] & 2:
                raise _animated()
            sizes.add(
                (1 + word(data[start + 4 : start + 7]), 1 + word(data[start + 7 : start + 10]))
            )
        elif kind == b"VP8 ":
            width, height = struct.unpack_from("<HH", data, start + 6)
            sizes.add((width & 0x3FFF, height & 0x3FFF))
        elif kind == b"VP8L":
            bits = word(data[start + 1 : start + 5])
            sizes.add((1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)))
        elif kind in (b"ANIM", b"ANMF"):
            raise _animated()
        elif kind == b"EXIF":
            orientation = _orientation(data[start:end])
        elif kind == b"ICCP":
            _check_profile(length)
        at = end + length % 2
    else:
        raise _too_many_chunks()
    if len(sizes) != 1:
        raise _corrupt("WebP", "its chunks give no size, or different sizes")
    width, height = sizes.pop()
    return EncodedImage(data[:stop], "WEBP", width, height, orientation)


def _orientation(exif: bytes) -> int:
    """Read the EXIF orientation (tag 0x0112 of the first directory); upright if it is invalid."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4], "")
    try:
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, at)
        for i in range(count if order else 0):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, at + 2 + 12 * i)
            if (tag, kind) == (0x0112, 3) and 1 <= value <= 8:
                return value
    except struct.error:
        pass
    return _UPRIGHT


def _check_profile(size: int) -> None:
    if size > _MAX_PROFILE:
        raise ImageError(
            "too_large",
            f"The color profile has {size} bytes; at most {_MAX_PROFILE} are allowed. Export "
            "the image without it.",
        )


def _corrupt(kind: str, fault: str) -> ImageError:
    return ImageError("damaged", f"Corrupt {kind}: {fault}. Export the image again.")


def _truncated() -> ImageError:
    return ImageError("truncated", "The image file is truncated. Send the whole file.")


def _animated() -> ImageError:
    return ImageError(
        "animated", "Animated images are not supported. Send one frame.", "unsupported-image"
    )


def _too_many_chunks() -> ImageError:
    return ImageError(
        "too_large",
        f"The image file has more than {_MAX_PARTS} chunks or segments. Export the image again, "
        "without metadata.",
    )
