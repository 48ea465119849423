"""From what is stored to vectors that can be sampled, and back: one codec per kind of memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
GAP = "-"
ALPHABET = LETTERS + GAP
_PLACES = np.full(256, len(ALPHABET), np.uint8)
"""Of each byte its place in `ALPHABET`; one beyond where it has none."""
for _letters in (ALPHABET, ALPHABET.lower(), ALPHABET.replace(GAP, ".")):
    _PLACES[list(_letters.encode())] = np.arange(len(ALPHABET))


class Codec(ABC):
    """Fitted to the items of a memory; float64 features (N, D) of items and back."""

    kind: ClassVar[str]
    has_coordinates: ClassVar[bool]
    """Is each feature one number of the item, so that a client can know some and not others?"""

    @classmethod
    @abstractmethod
    def fit(cls, items: np.ndarray) -> Self:
        """The codec of a memory of these items."""

    @abstractmethod
    def encode(self, items: np.ndarray) -> np.ndarray:
        """Features, not normalised."""

    @abstractmethod
    def decode(self, features_SD: np.ndarray, attention_SK: np.ndarray) -> np.ndarray:
        """Items of samples.

        Args:
            features_SD: the samples, their norm restored.
            attention_SK: how much each attends to each stored item.
        """


@final
@dataclass(frozen=True)
class VectorCodec(Codec):
    """Vectors (N, D), as they are."""

    kind = "vectors"
    has_coordinates = True

    @classmethod
    def fit(cls, items: np.ndarray) -> Self:
        return cls()

    def encode(self, items: np.ndarray) -> np.ndarray:
        return items.astype(np.float64)

    def decode(self, features_SD: np.ndarray, attention_SK: np.ndarray) -> np.ndarray:
        return features_SD.astype(np.float32)


@final
@dataclass(frozen=True)
class ImageCodec(Codec):
    """Images (N, H, W) or (N, H, W, 3), floats in [0, 1] or bytes in [0, 255].

    Features are on the scale to 1; decoded images are floats, cut to [0, 1].
    """

    shape: tuple[int, ...]

    kind = "images"
    has_coordinates = True

    @classmethod
    def fit(cls, items: np.ndarray) -> Self:
        return cls(items.shape[1:])

    def encode(self, items: np.ndarray) -> np.ndarray:
        flat = items.reshape(len(items), -1).astype(np.float64)
        return flat / 255 if items.dtype == np.uint8 else flat

    def decode(self, features_SD: np.ndarray, attention_SK: np.ndarray) -> np.ndarray:
        cut = np.clip(features_SD, 0, 1).astype(np.float32)
        return cut.reshape(len(cut), *self.shape)


@final
@dataclass(frozen=True)
class SequenceCodec(Codec):
    """Aligned protein sequences (N, L), letters as their places in `ALPHABET`, uint8.

    Appendix G: one-hot over 20 amino acids (a gap is all zero), centred, projected on the leading
    principal axes that hold 95 % of the variance; decoded by the inverse and an argmax per
    position, so decoded sequences have no gaps. The paper normalises the projected vectors and
    decodes them so, at about a seventh of their length, and an exact copy comes back with 64 %
    of its letters right; here the norm is restored before decoding.
    """

    mean_F: np.ndarray
    axes_FD: np.ndarray

    VARIANCE = 0.95
    kind = "sequences"
    has_coordinates = False

    @classmethod
    def fit(cls, items: np.ndarray) -> Self:
        hot = one_hot(items)
        mean = hot.mean(0)
        _, s, vt = np.linalg.svd(hot - mean, full_matrices=False)
        held = np.cumsum(s**2) / max(float((s**2).sum()), 1e-300)
        count = min(int(np.searchsorted(held, cls.VARIANCE)) + 1, len(s))
        return cls(mean, np.ascontiguousarray(vt[:count].T))

    def encode(self, items: np.ndarray) -> np.ndarray:
        return (one_hot(items) - self.mean_F) @ self.axes_FD

    def decode(self, features_SD: np.ndarray, attention_SK: np.ndarray) -> np.ndarray:
        scores = features_SD @ self.axes_FD.T + self.mean_F
        best = scores.reshape(len(scores), -1, len(LETTERS)).argmax(2)
        return best.astype(np.uint8)


@final
@dataclass(frozen=True)
class ReturnsCodec(Codec):
    """Returns (N, A) of A assets on N days (appendix H.1-H.2).

    Each day is centred across the assets before it becomes a pattern. What is decoded is the
    combination of the stored days that a sample attends to, which brings back the move of the
    market that centring took away. It has too little spread, so each asset is standardised over
    the samples decoded together and given the mean and deviation of its history: an affine
    correction, for which it takes at least two samples. An asset whose samples have next to no
    spread (chains that stay in one basin) keeps what it has, around the mean of its history:
    rounding must not be told as volatility.
    """

    history_KA: np.ndarray

    SPREAD = 1e-3  # of the history's, below which it is not corrected
    kind = "returns"
    has_coordinates = False

    @classmethod
    def fit(cls, items: np.ndarray) -> Self:
        return cls(items.astype(np.float64))

    def encode(self, items: np.ndarray) -> np.ndarray:
        days = items.astype(np.float64)
        return days - days.mean(1, keepdims=True)

    def decode(self, features_SD: np.ndarray, attention_SK: np.ndarray) -> np.ndarray:
        days = attention_SK @ self.history_KA
        if len(days) < 2:
            return days.astype(np.float32)
        centred = days - days.mean(0)
        spread, wanted = centred.std(0), self.history_KA.std(0)
        has_spread = spread > self.SPREAD * wanted
        scale = np.divide(wanted, spread, out=np.ones_like(spread), where=has_spread)
        corrected = centred * scale + self.history_KA.mean(0)
        return corrected.astype(np.float32)


CODECS: dict[str, type[Codec]] = {
    c.kind: c for c in (VectorCodec, ImageCodec, SequenceCodec, ReturnsCodec)
}


def one_hot(items: np.ndarray) -> np.ndarray:
    """Letters (N, L) to (N, 20 L), float64; a gap has no one."""
    hot = np.eye(len(ALPHABET))[:, : len(LETTERS)][items]
    return hot.reshape(len(items), -1)


def encode_letters(sequences: list[str]) -> np.ndarray:
    """Sequences of equal length to places in `ALPHABET` (N, L); `.` is a gap, case is ignored.

    Raises:
        ValueError: a letter that is neither one of the 20 amino acids nor a gap.
    """
    try:
        text = "".join(sequences).encode("ascii")  # nothing that changes its length with its case
    except UnicodeEncodeError as error:
        raise ValueError("not an amino acid") from error
    places = _PLACES[np.frombuffer(text, np.uint8)]
    if (places >= len(ALPHABET)).any():
        raise ValueError("not an amino acid")
    return places.reshape(len(sequences), -1)


def decode_letters(items: np.ndarray) -> list[str]:
    """The reverse of `letters_of`."""
    table = np.array(list(ALPHABET))
    return ["".join(row) for row in table[items]]
