"""What tokens see, which memories fired and the energy of each: the most telling of it as JSON, or
all of it as tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from models.base import Architecture, DynamicsParams, Output, StepControl
from models.interpret.reasons import (
    TOP_K,
    AttentionWeights,
    BatchReasons,
    MemoryActivations,
    RowReasons,
)
from models.nn.attention_recorder import record_attention
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained
from service.endpoints.common.include import TOKENS
from service.payload import require_response_bytes

_OF_TOKENS = frozenset({"attention", "memories", "components"})
_OF_ALL = _OF_TOKENS | {"resonance"}
_AT_REST = _OF_ALL | {"explanation"}
_OVERHEARD = frozenset({"attention", "resonance"})

Names = Callable[[int], dict[str, Any]]
"""What a token is called, beside its place."""


class ReasonCollector:
    """Finds the reasons of the rows that one request brings, batch by batch.

    Args:
        room: maximum bytes of all reasons as tensors; None for the most important ones as JSON.
        pairs: whether to include the pairs that resonate most, of each head.
        averaged: whether only the mean over all rows is returned, which is as large as one.
    """

    def __init__(
        self,
        include: Collection[str],
        control: StepControl,
        room: int | None = None,
        pairs: bool = True,
        averaged: bool = False,
    ) -> None:
        self._include, self._control, self._room = include, control, room
        self._pairs, self._averaged = pairs, averaged
        self._rest: BatchReasons | None = None
        self._as_trained = True
        self._size = 0

    def run(
        self, network: Architecture, params: Sequence[DynamicsParams], infer: Callable[[], Output]
    ) -> Output:
        """What `infer` infers of a batch, which from then on is the one at hand; the params of its
        rows differ in seeds at most."""
        records_attention = not _OVERHEARD.isdisjoint(self._include)
        with record_attention() if records_attention else nullcontext([]) as recorded:
            output = infer()
        needs_reasons = (
            not _AT_REST.isdisjoint(self._include) and self._control.stop_reason() is None
        )
        self._as_trained = as_trained(network, params[0])
        self._rest = BatchReasons(network, output, params, recorded) if needs_reasons else None
        return output

    def courses(self, output: Output) -> ConvergenceReports:
        """How the rows of the batch at hand moved, with what resonated."""
        resonance = None
        if self._rest is not None and "resonance" in self._include:
            resonance = [self._selectivity(row) for row in range(len(output.solutions[0].steps_R))]
        return ConvergenceReports(output.solutions, resonance, as_trained=self._as_trained)

    def _selectivity(self, row: int) -> list[dict[str, Any]]:
        """Selectivity of the heads in `row`; nothing if the request was cancelled."""
        assert self._rest is not None
        return (
            [] if self._control.stop_reason() else self._rest.compute_selectivity(row, self._pairs)
        )

    def fired(self, row: int, tokens: Sequence[int] = ()) -> list[MemoryActivations]:
        """The memories that fired in a row of the batch at hand, and at some of its tokens."""
        assert self._rest is not None
        return self._rest.explain_row(row, {"memories"}, np.array(tokens, np.int64)).memories

    def take(self, rows: int, tokens: Sequence[int] | None = None) -> Iterator[RowReasons]:
        """The reasons of each row of the batch at hand, none where none are asked for: of the first
        of `tokens`, or of the first there are; of all where there is room.

        Raises:
            Problem: all of it is more than there is room for.
        """
        kinds = _OF_TOKENS if self._room is None else _OF_ALL
        if self._rest is None or kinds.isdisjoint(self._include):
            return
        if self._room is not None:
            size = self._rest.estimate_bytes(self._include)
            self._size = size // rows if self._averaged else self._size + size
            remedy = "Include less, or send fewer inputs."
            require_response_bytes(self._size, self._room, "/include", remedy)
        for row in range(rows):
            if self._control.stop_reason() is not None:
                return  # the request was cancelled
            token_K = None
            if self._room is None:
                first = range(self._rest.count_tokens(row)) if tokens is None else tokens
                token_K = np.array(first[:TOKENS], np.int64)
            yield self._rest.explain_row(row, self._include, token_K)


def reasons_to_dict(
    reasons: RowReasons, names: Names = lambda token: {}, tiles: bool = False
) -> dict[str, Any]:
    """The most telling of one row, as an answer has it.

    Args:
        tiles: memories have images in the gallery of the model, one after the other.
    """
    document: dict[str, Any] = {"tokens": reasons.num_tokens, "told": len(reasons.token_K)}
    if reasons.attention:
        document["attention"] = [
            {"attention": index, "kind": weights.kind, "tokens": list(_seen(weights, names))}
            for index, weights in enumerate(reasons.attention)
        ]
    if reasons.memories:
        document["memories"] = [
            {
                "block": block,
                "top": _top(fired, block if tiles else None),
                "tokens": list(_fired(fired, reasons.token_K, names)),
            }
            for block, fired in enumerate(reasons.memories)
        ]
    if reasons.energies:
        document["components"] = [
            {
                "block": block,
                "tokens": [
                    {"token": token, **names(token)} | {part: of[at] for part, of in listed.items()}
                    for at, token in enumerate(reasons.token_K.tolist())
                ],
            }
            for block, parts in enumerate(reasons.energies)
            for listed in [{name: part.tolist() for name, part in parts.items()}]
        ]
    return document


def _seen(weights: AttentionWeights, names: Names) -> Iterator[dict[str, Any]]:
    """Of each token those that it sees most of, by the mean over the heads."""
    mean_P = weights.weight_PH.mean(1)
    order = np.lexsort((-mean_P, weights.query_P))
    token_P = weights.query_P[order]
    first_T = np.flatnonzero(np.r_[True, token_P[1:] != token_P[:-1]]) if len(order) else order
    for start, end in zip(first_T, [*first_T[1:], len(order)], strict=True):
        best = order[start : min(end, start + TOP_K)]
        token = int(token_P[start])
        yield {
            "token": token,
            **names(token),
            "seen": [
                {"token": other, **names(other), "weight": weight, "heads": heads}
                for other, weight, heads in zip(
                    weights.key_P[best].tolist(),
                    mean_P[best].tolist(),
                    weights.weight_PH[best].tolist(),
                    strict=True,
                )
                if weight > 0
            ],
        }


def _top(fired: MemoryActivations, block: int | None) -> list[dict[str, Any]]:
    """The memories with the largest mean share; `tile` is their place in the gallery."""
    best = _largest(fired.mean_share_M)
    tile = 0 if block is None else block * len(fired.mean_share_M)
    return [
        {"memory": int(m), "share": float(fired.mean_share_M[m])}
        | ({} if block is None else {"tile": tile + int(m)})
        for m in best
    ]


def _fired(fired: MemoryActivations, token_K: np.ndarray, names: Names) -> Iterator[dict[str, Any]]:
    for token, r_M, share_M in zip(token_K.tolist(), *fired[:2], strict=True):
        yield {
            "token": token,
            **names(token),
            "fired": [
                {"memory": int(m), "activation": float(r_M[m]), "share": float(share_M[m])}
                for m in _largest(share_M)
            ],
        }


def _largest(share_M: np.ndarray) -> np.ndarray:
    """The `TOP_K` largest that are above 0, the first of equals first."""
    best = np.argsort(-share_M, kind="stable")[:TOP_K]
    return best[share_M[best] > 0]


def reasons_to_tensors(rows: Sequence[RowReasons]) -> dict[str, np.ndarray]:
    """All of it, row after row: `ptr` counts tokens, `attention_0.ptr` pairs."""
    if not rows:
        return {}
    arrays = {"ptr": _ptr([row.num_tokens for row in rows])}
    for index, row_parts in enumerate(zip(*(row.attention for row in rows), strict=True)):
        name = f"attention_{index}"
        arrays[f"{name}.ptr"] = _ptr([len(weights.query_P) for weights in row_parts])
        pairs = [np.stack([weights.query_P, weights.key_P]) for weights in row_parts]
        arrays[f"{name}.pairs"] = np.concatenate(pairs, 1).astype(np.int32)
        arrays[f"{name}.weight"] = _joined([weights.weight_PH for weights in row_parts])
        r = [weights.resonance_PH for weights in row_parts if weights.resonance_PH is not None]
        if r:
            arrays[f"{name}.resonance"] = _joined(r)
    for block, row_parts in enumerate(zip(*(row.memories for row in rows), strict=True)):
        arrays[f"memories_{block}.activation"] = _joined([f.activation_KM for f in row_parts])
        arrays[f"memories_{block}.share"] = _joined([f.share_KM for f in row_parts])
    for block, row_parts in enumerate(zip(*(row.energies for row in rows), strict=True)):
        for name in row_parts[0]:
            arrays[f"components_{block}.{name}"] = _joined([parts[name] for parts in row_parts])
    return arrays


def _ptr(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate(parts), np.float32)
