"""JPEG files as published: a folder, or a .tar.xz of it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

_ENDINGS = (".jpg", ".jpeg")


def read_jpegs(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names below `folder` and contents of the JPEG files in it, or in its .tar.xz beside it.

    Raises:
        FileNotFoundError: saying what to put where.
    """
    archive = folder.with_name(f"{folder.name}.tar.xz")
    if folder.is_dir():
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in _ENDINGS:
                yield path.relative_to(folder).as_posix(), path.read_bytes()
        return
    if not archive.is_file():
        raise FileNotFoundError(f"put {archive.name} into {archive.parent}, or set BASIN_DATA")
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.lower().endswith(_ENDINGS) else None
            if content is not None:
                yield member.name.partition("/")[2], content.read()


def decode_jpeg(jpeg: bytes) -> np.ndarray:
    """uint8 (H, W, 3)."""
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
        return np.asarray(image.convert("RGB"))
