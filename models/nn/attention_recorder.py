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
"""Of a row: values (P, H) of its pairs of tokens, and the indices in the row of the query and of
the key (P,), sorted by the query."""


@dataclass(frozen=True)
class AttentionRecord:
    """The last weights of one attention of H heads, with `pairs` pairs in all rows.

    `weights` are p of the pairs of a row, which sum to 1 over those of one query; `cosines` are
    those of query and key where there is a `prior`. `kind` is attention, or the bottleneck of a
    workspace, where slots of its memory attend to tokens and only the p that pass are left.
    """

    kind: str
    heads: int
    num_pairs: int
    weights: Callable[[int], PairValues]
    prior: AttentionPrior | None
    cosines: Callable[[int], PairValues]


_active_records: ContextVar[list[AttentionRecord] | None] = ContextVar(
    "active_records", default=None
)


@contextmanager
def record_attention() -> Iterator[list[AttentionRecord]]:
    """Collect a record of each attention without energy that runs inside the context, in order.

    Attention that is part of an energy is not recorded: its weights follow from the state at rest
    (`models.interpret.reasons`).
    """
    records: list[AttentionRecord] = []
    token = _active_records.set(records)
    try:
        yield records
    finally:
        _active_records.reset(token)


def record(make_record: Callable[[], AttentionRecord]) -> None:
    """Add a record inside `record_attention`; otherwise do nothing, at no cost."""
    if (records := _active_records.get()) is not None:
        records.append(make_record())


def list_all_pairs(values_RHLK: Tensor, row: int) -> PairValues:
    """Every pair of a row: values (L K, H), and which query and which key."""
    values_HLK = values_RHLK[row if len(values_RHLK) > 1 else 0]
    i_P, j_P = values_HLK.new_ones(values_HLK.shape[1:]).nonzero().T
    return values_HLK.flatten(1).T, i_P, j_P
