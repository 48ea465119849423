"""Attention energies: tokens pull together the keys and queries of those they see.

A layout with a prior adds lambda r to the logits beta k . q, so that it is part of the energy and
of its force (DAR section 4; `models.resonance`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from models.energies.base import LinearFeatureEnergy
from models.layouts import Layout
from models.resonance import normalize, normalize_backward


class AttentionEnergy(LinearFeatureEnergy):
    """Keys and queries of H heads of width Y from g, and the way back."""

    name = "attention"

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        scale = dim**-0.5
        self.query_HYD = nn.Parameter(torch.randn(heads, head_dim, dim) * scale)
        self.key_HYD = nn.Parameter(torch.randn(heads, head_dim, dim) * scale)

    @abstractmethod
    def attention_inputs(self, g_ND: Tensor) -> tuple[Tensor, Tensor]:
        """What stands on either side of the logits, (N, H, Y) each: of the token that sees, and of
        the one that is seen."""

    def head_energy(self, g_ND: Tensor, layout: Layout, beta_RH: Tensor) -> Tensor:
        """-lse / beta of each token and head, (N, H): what the energy is the sum of."""
        beta_NH = layout.of_tokens(beta_RH)
        return -layout.attend(*self.attention_inputs(g_ND), beta_NH).lse_NH / beta_NH

    def feature_directions(self) -> Tensor:
        """Those of all queries, then those of all keys: (2 H Y, D)."""
        return torch.cat([self.query_HYD, self.key_HYD]).flatten(0, 1)

    def _parted(self, u_NF: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, (N, H, Y) each."""
        both = u_NF.unflatten(1, (2, self.heads, self.head_dim))
        return both[:, 0], both[:, 1]

    def _token_energy(self, lse_NH: Tensor, beta_NH: Tensor) -> Tensor:
        return -(lse_NH / beta_NH).sum(-1)


@final
class DotProductAttention(AttentionEnergy):
    """E = - sum_h sum_C 1/beta_h log sum_{B seen by C} exp(beta_h K_hB . Q_hC).

    Energy Transformer eq. 3-4, restricted to neighbours as in eq. 20 by the layout; force as in
    eq. 17-18. beta may differ per head and per row. A token that sees none adds nothing.
    """

    def attention_inputs(self, g_ND: Tensor) -> tuple[Tensor, Tensor]:
        return self._parted(g_ND @ self.feature_directions().T)

    def potential(
        self, u_NF: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        beta_NH = layout.of_tokens(beta_RH)
        lse_NH, pk_NHY, ptq_NHY = layout.attend(*self._parted(u_NF), beta_NH)
        pull_NF = torch.cat([pk_NHY, ptq_NHY], 1).flatten(1) if with_force else None
        return {self.name: self._token_energy(lse_NH, beta_NH)}, pull_NF


@final
class VonMisesFisherAttention(AttentionEnergy):
    """E = - sum_h sum_C 1/beta log sum_{B seen by C} exp(beta Q_hB . K_hC), Q and K on the sphere.

    CDAT eq. 10-11: the negative log-likelihood of each key under a mixture of von Mises-Fisher
    distributions centred on the queries of the tokens it sees (theorem 4.1). The sum runs over
    queries, so query and key change places against Energy Transformer eq. 3. The force goes
    through the normalisation: d(u/|u|)/du = (I - u u^T/|u|^2)/|u|.

    The released code leaves the normalisation and B != C out; this follows the paper. Lengths
    below 1e-6 are taken as 1e-6, which keeps the map smooth at g = 0.
    """

    def attention_inputs(self, g_ND: Tensor) -> tuple[Tensor, Tensor]:
        q_NHY, k_NHY = self._parted(g_ND @ self.feature_directions().T)
        return normalize(k_NHY)[0], normalize(q_NHY)[0]

    def potential(
        self, u_NF: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        unit_NGY, length_NG1 = normalize(u_NF.unflatten(1, (2 * self.heads, self.head_dim)))
        q_hat, k_hat = unit_NGY.chunk(2, 1)
        beta_NH = layout.of_tokens(beta_RH)
        lse_NH, pq_NHY, ptk_NHY = layout.attend(k_hat, q_hat, beta_NH)
        pull_NF = None
        if with_force:
            pull_NGY = torch.cat([ptk_NHY, pq_NHY], 1)
            pull_NF = normalize_backward(pull_NGY, unit_NGY, length_NG1).flatten(1)
        return {self.name: self._token_energy(lse_NH, beta_NH)}, pull_NF
