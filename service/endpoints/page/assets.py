"""The files that pages load: a fixed table, read once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.media_types import HTML

_FOLDER = Path(__file__).resolve().parent / "static"
_TYPES = {
    ".html": f"{HTML}; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file, as it is and compressed once, so that no request compresses it beside others."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def load_assets() -> dict[str, Asset]:
    """Return all files by their path in the folder."""
    assets = dict[str, Asset]()
    for path in sorted(_FOLDER.rglob("*")):
        if (media_type := _TYPES.get(path.suffix)) is not None:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            name = path.relative_to(_FOLDER).as_posix()
            assets[name] = Asset(content, gzip.compress(content, 6, mtime=0), media_type, etag)
    return assets
