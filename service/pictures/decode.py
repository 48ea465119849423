"""From an examined file to pixels."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from service.pictures.headers import Encoded
from service.pictures.picture import Picture, PictureFault

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PLAIN = {"1": "L", "L": "L", "LA": "LA", "P": "RGB", "RGB": "RGB", "RGBA": "RGBA"}
_WITH_ALPHA = {"L": "LA", "P": "RGBA", "RGB": "RGBA"}


def decode(file: Encoded) -> Picture:
    """The picture in `file`, upright. A palette becomes RGB, black and white become grey.

    Raises:
        PictureFault: it cannot be decoded to its end.
    """
    try:
        with Image.open(io.BytesIO(file.data), formats=[file.format]) as image:
            if image.size != (file.width, file.height):
                raise PictureFault("damaged", "it is not of the size its header tells")
            image.load()
            return _picture(image, file.orientation)
    except PictureFault:
        raise
    except Exception:  # Pillow raises whatever its parsers stumble over
        raise PictureFault("damaged", "the picture cannot be decoded to its end") from None


def _picture(image: Image.Image, orientation: int) -> Picture:
    profile = image.info.get("icc_profile")
    if image.mode != "I;16":
        wanted = (_WITH_ALPHA if "transparency" in image.info else _PLAIN)[image.mode]
        image = image if image.mode == wanted else image.convert(wanted)
    if orientation in _TURNS:
        image = image.transpose(_TURNS[orientation])
    planes = np.asarray(image)
    planes = planes.reshape(*planes.shape[:2], -1)
    if image.mode in ("LA", "RGBA"):
        return Picture(planes[:, :, :-1], planes[:, :, -1], profile)
    return Picture(planes, None, profile)
