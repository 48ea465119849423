"""Damage to files."""

from __future__ import annotations

from pathlib import Path
from random import Random


def flip_bytes(path: Path, rng: Random, share: float | None, stop: int | None = None) -> None:
    """Change this share of the bytes of a file, or one bit; none from `stop` on."""
    data = bytearray(path.read_bytes())
    end = len(data[:stop])
    if share is None:
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    else:
        for at in rng.sample(range(end), max(int(end * share), 1)):
            data[at] ^= rng.randrange(1, 256)
    path.write_bytes(data)
