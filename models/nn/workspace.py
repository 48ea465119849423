"""The global workspace: patches compete to write into a low-rank memory.

Shape suffixes beside those of `models.layouts`: P pools of patches that compete with each other,
L patches of a pool, E their width, M slots of the memory, D width of a slot, A heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from models.nn.attention_recorder import AttentionRecord, PairValues, list_all_pairs, record
from models.resonance import Resonance, ResonanceParameter

_EPSILON = 1e-10


class WorkspaceUpdate(NamedTuple):
    """The memory after a pool has written into it, gamma^(t+1), and how uneven that was."""

    memory_PMD: Tensor
    balance: Tensor


@final
class Workspace(nn.Module):
    """Bottleneck attention of a memory gamma (M, D) to pools of patches Xi (Associative Transformer
    sections 4.1-4.2).

    Head i scores A_i = softmax(gamma W_i^Q (Xi W_i^K)^T / sqrt(Y)) over the patches of the pool, Y
    being the width of a head; of each slot's scores the k largest stay and the rest become 0. Then

        gamma_hat = LN(concat_i(top-k(A_i) Xi W_i^V) W^O)                           (eq. 3)
        gamma^(t+1) = alpha gamma + (1 - alpha) gamma_hat, over its norm            (eq. 4)

    where the norm is that of each feature over the slots, as eq. 4 sums over j = 1..M. In the
    released code the norm is that of each slot, the softmax comes after top-k, and gamma^(t+1) is
    cut off from the gradient, so that W^V and W^O never learn; this follows the paper.

    k is a share of the pool and 1 at least, so that there is a bottleneck in a pool of one image
    too, which is what is served. It is as narrow as that of a whole batch where the share of one
    image is a patch or more, and wider where it is less.

    Args:
        share: k over the patches of the pool; 1 leaves no bottleneck.
        decay: alpha of eq. 4.
    """

    memory_MD: Tensor

    def __init__(
        self,
        dim: int,
        slots: int,
        slot_dim: int,
        heads: int,
        share: float,
        decay: float,
        resonance: Resonance | None = None,
        learn_strength: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.share, self.decay = heads, share, decay
        self.query = nn.Linear(slot_dim, slot_dim, bias=False)
        self.key = nn.Linear(dim, slot_dim, bias=False)
        self.value = nn.Linear(dim, slot_dim, bias=False)
        self.out = nn.Linear(slot_dim, slot_dim, bias=False)
        # The larger the pool, the smaller what passes; the usual 1e-5 would be larger than that.
        self.norm = nn.LayerNorm(slot_dim, eps=1e-12)
        self.resonant = ResonanceParameter(heads, resonance, learn_strength)
        self.register_buffer("memory_MD", torch.empty(slots, slot_dim))
        self.reset_memory()

    def reset_memory(self) -> None:
        """A fresh memory: Gaussian, the best of the paper's table 3, over its norm."""
        self.memory_MD.copy_(_unit(torch.randn(self.memory_MD.shape)))

    def forward(
        self, x_PLE: Tensor, resonances: Sequence[Resonance | None] = (None,)
    ) -> WorkspaceUpdate:
        """What each pool makes of the memory, which itself stays as it is.

        `asked` is the resonance of each pool, or of all.
        """
        # Cloned, for `keep` writes into the buffer before the gradient has passed.
        memory_MD = self.memory_MD.clone()
        score_PAML = self.compute_attention(memory_MD, x_PLE, resonances)
        value_PALY = self._heads(self.value(x_PLE))
        read_PMD = (score_PAML @ value_PALY).transpose(1, 2).flatten(2)
        new_PMD = self.norm(self.out(read_PMD))
        mixed_PMD = self.decay * memory_MD + (1 - self.decay) * new_PMD
        return WorkspaceUpdate(_unit(mixed_PMD), compute_balance_loss(score_PAML))

    def compute_attention(
        self, memory_MD: Tensor, x_PLE: Tensor, asked: Sequence[Resonance | None] = (None,)
    ) -> Tensor:
        """top-k(A) (P, A, M, L)."""
        query_AMY = self._heads(self.query(memory_MD)[None])[0]
        key_PALY = self._heads(self.key(x_PLE))
        logits_PAML = query_AMY @ key_PALY.transpose(2, 3) * query_AMY.shape[-1] ** -0.5
        prior = self.resonant(asked, key_PALY)
        if prior is not None:
            logits_PAML = logits_PAML + prior.compute_bias(query_AMY[None], key_PALY)
        score_PAML = torch.softmax(logits_PAML, -1)
        k = self.bottleneck_size(x_PLE.shape[1])
        if k < x_PLE.shape[1]:
            top = score_PAML.topk(k, -1)
            score_PAML = torch.zeros_like(score_PAML).scatter(-1, top.indices, top.values)

        def cosines(row: int) -> PairValues:
            assert prior is not None
            return list_all_pairs(prior.compute_cosines(query_AMY[None], key_PALY), row)

        pools, heads, slots, patches = score_PAML.shape
        pairs, weights = pools * slots * patches, partial(list_all_pairs, score_PAML)
        record(lambda: AttentionRecord("bottleneck", heads, pairs, weights, prior, cosines))
        return score_PAML

    def bottleneck_size(self, patches: int) -> int:
        """k for a pool of this number of patches."""
        return min(patches, max(1, round(self.share * patches)))

    @torch.no_grad()
    def store_memory(self, memory_PMD: Tensor) -> None:
        """Remember gamma^(t+1); of several pools their mean, over its norm."""
        self.memory_MD.copy_(_unit(memory_PMD.mean(0)))

    def _heads(self, x_PLD: Tensor) -> Tensor:
        return x_PLD.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def compute_balance_loss(score_PAML: Tensor) -> Tensor:
    """The bottleneck attention balance loss, eq. 5-6: summed over heads, the mean over pools.

    Importance is the sum of a patch's scores over the slots, its load the number of slots that
    chose it; of each, the variance over the patches counts, over the squared mean. Loads have no
    gradient. "Chosen" means kept by top-k: before it every score is above 0.
    """
    importance_PAL = score_PAML.sum(2)
    load_PAL = (score_PAML > 0).to(score_PAML).sum(2)
    total_PA = sum(
        part.var(-1, correction=0) / (part.mean(-1).square() + _EPSILON)
        for part in (importance_PAL, load_PAL)
    )
    assert isinstance(total_PA, Tensor)
    return total_PA.sum(-1).mean()


def _unit(memory_PMD: Tensor) -> Tensor:
    return memory_PMD / memory_PMD.norm(dim=-2, keepdim=True).clamp(min=1e-12)
