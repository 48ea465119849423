"""Records attention weights of modules that have no energy while a network runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from models.resonance import AttentionPrior

PairValues = tuple[Tensor, Tensor, Tensor]
"""Of a row: values (P, H) of its pairs, and the places in the row of the token that sees and of the
one that is seen (P,), by the first."""


@dataclass(frozen=True)
class AttentionRecord:
    """The last weights of one attention of H heads, with `pairs` pairs in all rows.

    `weights` are p of the pairs of a row, which sum to 1 over those a token sees; `cosines` are
    those of query and key where there is a `prior`. `kind` is attention, or the bottleneck of a
    workspace, where slots of its memory see tokens and only what passes is left of p.
    """

    kind: str
    heads: int
    num_pairs: int
    weights: Callable[[int], PairValues]
    prior: AttentionPrior | None
    cosines: Callable[[int], PairValues]


_ears: ContextVar[list[AttentionRecord] | None] = ContextVar("ears", default=None)


@contextmanager
def record_attention() -> Iterator[list[AttentionRecord]]:
    """Within, every attention that is no energy tells what it saw, in order.

    What has an energy needs no listener: the state at rest says it all
    (`models.interpret.reasons`).
    """
    heard: list[AttentionRecord] = []
    token = _ears.set(heard)
    try:
        yield heard
    finally:
        _ears.reset(token)


def record(attended: Callable[[], AttentionRecord]) -> None:
    """Remember it, if anybody listens."""
    if (heard := _ears.get()) is not None:
        heard.append(attended())


def list_all_pairs(values_RHLK: Tensor, row: int) -> PairValues:
    """Every pair of a row: values (L K, H), and which query and which key."""
    values_HLK = values_RHLK[row if len(values_RHLK) > 1 else 0]
    i_P, j_P = values_HLK.new_ones(values_HLK.shape[1:]).nonzero().T
    return values_HLK.flatten(1).T, i_P, j_P
