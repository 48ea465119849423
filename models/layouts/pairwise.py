"""Layouts in which tokens see each other: where a prior enters attention and its force, once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from models.layouts.base import Attention, Layout
from models.resonance import AttentionPrior, normalize, normalize_backward


class Pairwise(Layout):
    """Values of pairs, a token and one that it sees, lie as the layout likes best."""

    prior: AttentionPrior | None = None

    def resonating(self, prior: AttentionPrior | None) -> Self:
        if prior is None:
            return self
        layout = copy(self)
        layout.prior = prior
        return layout

    @property
    def kind(self) -> Hashable:
        prior = () if self.prior is None else (self.prior.rank,)
        return type(self), prior, self._weighs

    def part(self, first: int, last: int) -> Self:
        layout = self._part(first, last)
        layout.prior = None if self.prior is None else self.prior.slice_rows(first, last)
        return layout

    def joined(self, others: Sequence[Any]) -> Self:
        several = [self, *others]
        layout = self._joined(several)
        priors = [(each.prior, each.rows) for each in several if each.prior is not None]
        layout.prior = AttentionPrior.concat_rows(priors) if priors else None
        return layout

    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        # Mixed precision projects in half; logits, cosines and sums stay in beta's precision.
        q_NHY, k_NHY = q_NHY.to(beta_NH.dtype), k_NHY.to(beta_NH.dtype)
        with torch.autocast(q_NHY.device.type, enabled=False):
            if self.prior is None:
                return self._attend(q_NHY, k_NHY, beta_NH, None)[0]
            return self._resonate(self.prior, q_NHY, k_NHY, beta_NH)

    def _resonate(
        self, prior: AttentionPrior, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor
    ) -> Attention:
        q_hat, q_length = normalize(prior.project(q_NHY))
        k_hat, k_length = normalize(prior.project(k_NHY))
        cosines = self.products(q_hat, k_hat)
        bias, slope = self._priors(prior, cosines)
        (lse_NH, pk_NHY, ptq_NHY), p = self._attend(q_NHY, k_NHY, beta_NH, bias)
        # dr/dq = r'(c) dc/dq with dc/dq = (k^ - c q^)/|q| (DAR section 4), and so for k.
        pull, per_beta = p * slope, 1 / beta_NH[..., None]
        to_q = normalize_backward(self._read(pull, k_hat) * per_beta, q_hat, q_length)
        to_k = normalize_backward(self._write(pull, q_hat * per_beta), k_hat, k_length)
        return Attention(
            lse_NH,
            pk_NHY + prior.project_back(to_q, q_NHY),
            ptq_NHY + prior.project_back(to_k, k_NHY),
        )

    def cosines(self, q_NHY: Tensor, k_NHY: Tensor) -> Tensor:
        """Of all pairs as the prior sees them, arranged as `products` are."""
        assert self.prior is not None
        q_hat, k_hat = (normalize(self.prior.project(u))[0] for u in (q_NHY, k_NHY))
        return self.products(q_hat, k_hat)

    def weights(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Tensor:
        """p of all pairs, the prior and the layout's own weights and biases with it, arranged as
        `products` are."""
        bias = None
        if self.prior is not None:
            bias = self._priors(self.prior, self.cosines(q_NHY, k_NHY))[0]
        return self._attend(q_NHY, k_NHY, beta_NH, bias)[1]

    @property
    @abstractmethod
    def num_pairs(self) -> int:
        """How many there are of a token and one it sees."""

    @property
    @abstractmethod
    def _weighs(self) -> Hashable:
        """What else two layouts must have in common to be joined."""

    @abstractmethod
    def _part(self, first: int, last: int) -> Self:
        """Some rows, without the prior."""

    @abstractmethod
    def _joined(self, several: Sequence[Any]) -> Self:
        """The rows of several, without the priors."""

    @abstractmethod
    def products(self, q_NHY: Tensor, k_NHY: Tensor) -> Tensor:
        """q_i . k_j of all pairs of a token and one it sees, in the layout's own arrangement."""

    @abstractmethod
    def pairs(self, values: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of a row: values (P, H) of its pairs, arranged as `products` are, and the places in the
        row of the token and of the one it sees (P,)."""

    @abstractmethod
    def _attend(
        self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor, bias: Tensor | None
    ) -> tuple[Attention, Tensor]:
        """Attention with `bias` on the logits of pairs beside the layout's own, and p of each."""

    @abstractmethod
    def _priors(self, prior: AttentionPrior, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """lambda r and lambda dr/dc of each pair."""

    @abstractmethod
    def _read(self, weight: Tensor, k_NHY: Tensor) -> Tensor:
        """sum_j weight_ij k_j over those j that i sees."""

    @abstractmethod
    def _write(self, weight: Tensor, q_NHY: Tensor) -> Tensor:
        """sum_i weight_ij q_i over those i that see j."""


def joined(values: Sequence[Tensor | None]) -> Tensor | None:
    """One after the other, where there are any."""
    there = [value for value in values if value is not None]
    return torch.cat(there) if there else None
