"""Several heads: each samples in a principal subspace of the memory (appendix Q)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.sampling.temperature import truncated_svd

_RANK_TOLERANCE = 1e-5


class TooManyHeadsError(ValueError):
    """The memory spans fewer axes than there are heads."""


@dataclass(frozen=True)
class SubspaceHeads:
    """Orthonormal bases (D, d_h), one per head, of consecutive principal axes."""

    mean_D: Tensor
    bases_Dd: tuple[Tensor, ...]
    shares: tuple[float, ...]
    """Share of the memory's variance that each head sees."""

    @classmethod
    def from_patterns(cls, patterns_KD: Tensor, heads: int) -> SubspaceHeads:
        """Divide the principal axes with variance evenly, the leading ones to the first head.

        Raises:
            TooManyHeadsError: there are fewer such axes than heads.
        """
        x = patterns_KD.double()
        mean_D = x.mean(0)
        _, s, vt = torch.linalg.svd(x - mean_D, full_matrices=False)
        rank = int((s > _RANK_TOLERANCE * s[0]).sum()) if s[0] > _RANK_TOLERANCE else 0
        if heads > rank:
            raise TooManyHeadsError(f"the memory spans {rank} axes, fewer than {heads} heads")
        parts = torch.arange(rank).tensor_split(heads)
        variance = s[:rank].pow(2)
        return cls(
            mean_D.to(patterns_KD),
            tuple(vt[part].T.contiguous().to(patterns_KD) for part in parts),
            tuple(float(variance[part].sum() / variance.sum()) for part in parts),
        )

    def split(self, x_ND: Tensor) -> list[Tensor]:
        """Coordinates (N, d_h) of states in each head: W_h^T (x - mean)."""
        return [(x_ND - self.mean_D) @ basis for basis in self.bases_Dd]

    def join(self, parts_Nd: list[Tensor]) -> Tensor:
        """States (N, D) from the coordinates of every head: sum_h W_h z_h + mean, eq. 32."""
        joined = self.mean_D.expand(len(parts_Nd[0]), -1).clone()
        for basis, part in zip(self.bases_Dd, parts_Nd, strict=True):
            joined += part @ basis.T
        return joined


def find_leading_axes(patterns_KD: Tensor, count: int = 10) -> Tensor:
    """The leading principal axes (D, A), along which chains are watched."""
    _, axes_DA = truncated_svd(patterns_KD - patterns_KD.mean(0), count)
    return torch.from_numpy(np.ascontiguousarray(axes_DA)).to(patterns_KD)
