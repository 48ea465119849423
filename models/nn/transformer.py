"""The parts of a vision transformer that are no energy: attention and feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from models.nn.attention_recorder import AttentionRecord, PairValues, list_all_pairs, record
from models.nn.dropout import Dropout
from models.resonance import AttentionPrior, Resonance, ResonanceParameter


@final
class MultiHeadAttention(nn.Module):
    """Multi-head attention of tokens to a context (Associative Transformer eq. 1-2), row by row."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        resonance: Resonance | None = None,
        learn_strength: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, heads * head_dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, dim)
        self.dropout = Dropout(dropout)
        self.resonant = ResonanceParameter(heads, resonance, learn_strength)

    def forward(
        self, x_RLD: Tensor, context_RKD: Tensor, resonances: Sequence[Resonance | None] = (None,)
    ) -> Tensor:
        """What each token reads, (R, L, D); `asked` is the resonance of each row, or of all."""
        key, value = self.key_value(context_RKD).chunk(2, -1)
        q_RHLY, k_RHKY, v_RHKY = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x_RLD), key, value)
        )
        prior = self.resonant(resonances, q_RHLY)
        bias = None if prior is None else prior.compute_bias(q_RHLY, k_RHKY)
        record(lambda: _attended(prior, q_RHLY, k_RHKY, bias))
        if x_RLD.device.type == "cpu":  # where its gradient in half takes five times as long
            q_RHLY, k_RHKY, v_RHKY = (part.to(x_RLD.dtype) for part in (q_RHLY, k_RHKY, v_RHKY))
        with torch.autocast("cpu", enabled=False):
            read_RHLY = scaled_dot_product_attention(q_RHLY, k_RHKY, v_RHKY, attn_mask=bias)
        return self.dropout(self.out(read_RHLY.transpose(1, 2).flatten(2)))


def _attended(
    prior: AttentionPrior | None, q_RHLY: Tensor, k_RHKY: Tensor, bias: Tensor | None
) -> AttentionRecord:
    logits_RHLK = q_RHLY @ k_RHKY.transpose(-1, -2) * q_RHLY.shape[-1] ** -0.5
    p_RHLK = (logits_RHLK if bias is None else logits_RHLK + bias).softmax(-1)

    def cosines(row: int) -> PairValues:
        assert prior is not None
        return list_all_pairs(prior.compute_cosines(q_RHLY, k_RHKY), row)

    rows, heads, length, seen = p_RHLK.shape
    weights = partial(list_all_pairs, p_RHLK)
    return AttentionRecord("attention", heads, rows * length * seen, weights, prior, cosines)


@final
class FeedForward(nn.Module):
    """An MLP for each token by itself."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden, dim),
            Dropout(dropout),
        )

    def forward(self, x_RLD: Tensor) -> Tensor:
        return self.mlp(x_RLD)
