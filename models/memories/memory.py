"""A memory: patterns of unit length, the lengths they had, and what they mean."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.energies import ModernHopfield
from models.memories.codecs import CODECS, Codec

_SAME = 1e-6  # distance of unit patterns that float32 cannot hold apart
_PART_NUMBERS = 1 << 22  # numbers of patterns that are compared at a time
_PART = 1e-6  # length of a part of a unit pattern below which it is little but rounding


class InvalidMemoryError(ValueError):
    """Items that make no memory: a code, the rule broken, and the first items that break it."""

    def __init__(self, code: str, rule: str, items: np.ndarray) -> None:
        super().__init__(rule)
        self.code, self.rule, self.items = code, rule, items


@dataclass(frozen=True)
class ClampedCoordinates:
    """Coordinates that are given: a mask over the D features, their values on the unit scale, and
    the length of the whole pattern that this scale assumes."""

    mask_D: np.ndarray
    values_k: np.ndarray
    norm: float


@dataclass(frozen=True)
class Memory:
    """K patterns on the unit sphere (K, D), float32, and their lengths before."""

    patterns_KD: Tensor
    norms_K: Tensor
    codec: Codec
    sha256: str

    @classmethod
    def from_items(cls, kind: str, items: np.ndarray) -> Memory:
        """Encode and normalise the items of a memory.

        Raises:
            MemoryFault: items that are not finite, have no length, or point the same way.
        """
        if items.dtype.kind == "f" and not (finite := np.isfinite(items)).all():
            bad = ~finite.reshape(len(items), -1).all(1)
            raise InvalidMemoryError("not_finite", "must be finite", np.flatnonzero(bad))
        codec = CODECS[kind].fit(items)
        features = codec.encode(items)
        norms = np.linalg.norm(features, axis=1)
        # Of a feature that cancels nothing is left but rounding.
        scale = max(float(np.abs(features).max(initial=0)), float(np.abs(items).max(initial=0)))
        if (zero := norms <= 1e-9 * scale).any() or not scale:
            rule = "has no length, so it has no direction to be drawn to"
            raise InvalidMemoryError("zero_norm", rule, np.flatnonzero(zero))
        unit = features / norms[:, None]
        again = _repeated(unit)
        if len(again):
            rule = "is the same as an earlier pattern, up to its length"
            raise InvalidMemoryError("duplicate", rule, again)
        digest = hashlib.sha256(f"{kind} {items.dtype.str} {items.shape} ".encode())
        digest.update(items.tobytes())
        return cls(
            torch.from_numpy(unit.astype(np.float32)),
            torch.from_numpy(norms.astype(np.float32)),
            codec,
            digest.hexdigest(),
        )

    @property
    def num_patterns(self) -> int:
        return self.patterns_KD.shape[0]

    @property
    def dim(self) -> int:
        return self.patterns_KD.shape[1]

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        held = (self.patterns_KD, self.norms_K, *vars(self.codec).values())
        return sum(array.nbytes for array in held if isinstance(array, Tensor | np.ndarray))

    def encode_states(self, items: np.ndarray) -> Tensor:
        """Items as states on the unit sphere.

        Raises:
            MemoryFault: an item without length.
        """
        features = self.codec.encode(items)
        norms = np.linalg.norm(features, axis=1, keepdims=True)
        if (zero := norms[:, 0] <= 0).any():
            raise InvalidMemoryError("zero_norm", "has no length", np.flatnonzero(zero))
        return torch.from_numpy((features / norms).astype(np.float32))

    def clamp_coordinates(self, index_k: np.ndarray, values_k: np.ndarray) -> ClampedCoordinates:
        """Put given coordinates on the unit scale.

        How long the whole pattern is cannot be known from a part of it. It is taken to hold the
        share of its length in this part that the pattern does whose part points the same way
        most; for part of a stored pattern that is its own length. Patterns with next to nothing
        in this part are left out: they would imply a length beyond all bounds.
        """
        mask = np.zeros(self.dim, bool)
        mask[index_k] = True
        values = np.empty(self.dim)
        values[index_k] = values_k
        part_Kk = self.patterns_KD[:, torch.from_numpy(mask)].double().numpy()
        length_K = np.linalg.norm(part_Kk, axis=1)
        wanted = values[mask]
        length = float(np.linalg.norm(wanted))
        norm = float(self.norms_K.mean())
        told_K = length_K > _PART
        if length and told_K.any():
            cosine_K = np.divide(
                part_Kk @ wanted, length_K, out=np.full(self.num_patterns, -np.inf), where=told_K
            )
            norm = length / float(length_K[int(cosine_K.argmax())])
        return ClampedCoordinates(mask, wanted / norm, norm)

    def score_parts(
        self,
        values_RD: np.ndarray,
        known_D: np.ndarray,
        channel_weights_C: np.ndarray | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """-|v - x_kv|^2 / 2 (R, K) of the coordinates v that are known, in the units of features;
        those of `values_RD` that are not known have no part in it.

        Args:
            channel_weights_C: compare with the weighted sum of each C neighbouring coordinates of
                a pattern, the channels of a pixel; `values_RD` and `known_D` are of pixels then.
            check: called before each part of the patterns; what it raises ends the comparison.
        """
        known = np.flatnonzero(known_D)
        wanted_Rv = values_RD[:, known]
        score_RK = np.empty((len(values_RD), self.num_patterns), np.float32)
        part = max(_PART_NUMBERS // self.dim, 1)
        for start in range(0, self.num_patterns, part):
            check()
            at = slice(start, start + part)
            patterns_KD = self.patterns_KD[at].numpy()
            if channel_weights_C is not None:
                patterns_KPC = patterns_KD.reshape(len(patterns_KD), -1, len(channel_weights_C))
                patterns_KD = patterns_KPC @ channel_weights_C.astype(np.float32)
            stored_Kv = patterns_KD[:, known] * self.norms_K[at, None].numpy()
            for row, wanted_v in enumerate(wanted_Rv):
                # Not by |v|^2 - 2 v . x + |x|^2, whose rounding beta would make large.
                score_RK[row, at] = -np.square(stored_Kv - wanted_v).sum(1) / 2
        return torch.from_numpy(score_RK)

    def decode(
        self, x_SD: Tensor, beta: float, known: ClampedCoordinates | None = None
    ) -> np.ndarray:
        """Items of samples (S, D).

        A sample gets the length of the patterns it attends to, sum_k p_k |pattern k| with
        p = softmax(beta X^T xi), so a stored pattern comes back as it was stored. Where
        coordinates were given, their scale is that of all and they come back as they were.
        """
        attention_SK = ModernHopfield(self.patterns_KD).weights(x_SD, beta)
        if known is None:
            norms_S = (attention_SK @ self.norms_K).double().numpy()
            features = x_SD.double().numpy() * norms_S[:, None]
        else:
            features = x_SD.double().numpy() * known.norm
            features[:, known.mask_D] = known.values_k * known.norm
        return self.codec.decode(features, attention_SK.double().numpy())


def _repeated(unit_KD: np.ndarray) -> np.ndarray:
    """Patterns that come again: those that float32 stores alike, and those that rounding alone
    holds apart, which are next to each other in a random projection. Only neighbours are compared,
    so that no memory takes long, however it was made."""
    rows = np.ascontiguousarray(unit_KD.astype(np.float32) + 0)  # of the zeros, -0 becomes 0
    _, first = np.unique(rows.view(f"V{rows[0].nbytes}")[:, 0], return_index=True)
    again = np.ones(len(rows), bool)
    again[first] = False
    direction = np.random.default_rng(0).standard_normal(unit_KD.shape[1])
    shadow = unit_KD @ direction / np.linalg.norm(direction)
    order = np.argsort(shadow, kind="stable")
    near = np.flatnonzero(np.diff(shadow[order]) <= _SAME)
    gap = np.linalg.norm(unit_KD[order[near]] - unit_KD[order[near + 1]], axis=1)
    same = np.zeros(len(rows), bool)
    same[near[gap < _SAME] + 1] = True  # as the one before, so of its run
    starts = np.flatnonzero(~same)
    earliest = np.minimum.reduceat(order, starts)
    run = np.cumsum(~same) - 1
    again[order] |= order != earliest[run]
    return np.flatnonzero(again)
