"""Items to store in memories: digits, an alignment, returns."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from models.memories import ALPHABET, GAP, encode_letters
from training.datasets.sources import data_folder

MAX_GAPS = 0.5


def load_digits(digit: int, count: int, folder: Path | None = None) -> np.ndarray:
    """The first `count` images of a digit in MNIST's training set, uint8 (count, 28, 28)."""
    images, labels = load_mnist_part("train", folder)
    return np.ascontiguousarray(images[labels == digit][:count])


def load_mnist_part(
    part: Literal["train", "t10k"], folder: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (n, 28, 28), and labels of one part of MNIST, as published."""
    root = (folder or data_folder()) / "images" / "mnist"
    images = _idx(root / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    return images, _idx(root / f"{part}-labels-idx1-ubyte.gz", 8)


def load_rrm_alignment(folder: Path | None = None) -> np.ndarray:
    """The seed alignment of Pfam's RRM family, PF00076: letters (68, 71), uint8.

    Columns in which more than half of the sequences have a gap are left out (appendix G).
    """
    rows: dict[str, str] = {}
    path = _found((folder or data_folder()) / "proteins" / "PF00076_seed.sto")
    for line in path.read_text().splitlines():
        if line.strip() and line[0] not in "#/":
            name, part = line.split()
            rows[name] = rows.get(name, "") + part
    letters = encode_letters(list(rows.values()))
    return np.ascontiguousarray(letters[:, (letters == ALPHABET.index(GAP)).mean(0) <= MAX_GAPS])


def load_returns(folder: Path | None = None) -> tuple[np.ndarray, list[str]]:
    """Daily log growth of 100 stocks of the S&P 500, 2021 to 2026, and their tickers."""
    path = _found((folder or data_folder()) / "finance" / "diviprog_sp500_prices.csv")
    prices = pd.read_csv(path, index_col=0)
    growth = np.diff(np.log(prices.to_numpy(np.float64)), axis=0)
    return growth.astype(np.float32), [str(name) for name in prices.columns]


def _idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(_found(path).read_bytes()), np.uint8, offset=header)


def _found(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"put {path.name} into {path.parent}, or set BASIN_DATA")
    return path
