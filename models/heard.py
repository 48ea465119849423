"""What resonated with what, for whoever listens while a network runs (DAR section 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from models.resonance import Prior

TOP = 5
"""Pairs told of each head."""

Pairs = Callable[[int], tuple[Tensor, Tensor, Tensor]]
"""Of a row: cosines (P, H) of its pairs, and the places in the row of either end (P,)."""

_ears: ContextVar[dict[Prior, Pairs] | None] = ContextVar("ears", default=None)


@contextmanager
def listening() -> Iterator[dict[Prior, Pairs]]:
    """Within, each prior's pairs as they last were, in the order in which attentions came first.

    An energy is measured last where its rows come to rest, so there its pairs are of that state.
    """
    heard: dict[Prior, Pairs] = {}
    token = _ears.set(heard)
    try:
        yield heard
    finally:
        _ears.reset(token)


def tell(prior: Prior, pairs: Pairs) -> None:
    """Remember `pairs`, if anybody listens."""
    if (heard := _ears.get()) is not None:
        heard[prior] = pairs


def selectivity(prior: Prior, pairs: Pairs, row: int) -> list[dict[str, Any]]:
    """How selective each head is in a row: `crossing` = Pr[c > rho], the share of its pairs above
    vigilance, `mean` r, and its `TOP` pairs of the highest r."""
    c_PH, i_P, j_P = pairs(row)
    mine = prior.of_row(row)
    r_PH = mine.resonance(c_PH, lambda value: value)[0]
    told = []
    for head in range(c_PH.shape[1]):
        c, r = c_PH[:, head], r_PH[:, head]
        best = c.topk(min(TOP, len(c))).indices.tolist()
        told.append(
            {
                "head": head,
                "crossing": float((mine.margin(c) > 0).double().mean()) if len(c) else None,
                "mean": float(r.double().mean()) if len(c) else None,
                "pairs": [
                    {
                        "token": int(i_P[at]),
                        "seen": int(j_P[at]),
                        "cosine": float(c[at]),
                        "resonance": float(r[at]),
                    }
                    for at in best
                ],
            }
        )
    return told
