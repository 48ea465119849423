"""Scores stored transactions whose request ended before they were scored."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import final

from service.context import AppContext
from service.endpoints.anomaly.infer import pack_if_large, results, score, workload_of
from service.endpoints.common.failures import FailurePauses
from service.endpoints.transactions.score import (
    build_inputs,
    find_outcomes,
    find_scorer,
    record_outcomes,
)
from service.errors import Problem
from service.storage.graphs import GraphKey, PendingScore
from service.validation.arrays import pointer_builder

_EVERY_S = 2.0
_GRACE_S = 5.0  # after its deadline a request may still be about to record its alerts
_Update = tuple[GraphKey, str, int, str]
_GONE = frozenset({"unknown_node", "expired"})  # can never be scored: the rows are gone


@final
class PendingScorer:
    """Scores what a killed or failed request has stored, so that no alert is lost.

    Where a request and this, or several servers, score the same transactions, the alerts are
    recorded once (`GraphLog.record_alerts`).
    """

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._failures = FailurePauses("transactions not scored")
        self._grace_s = context.settings.deadline_s + _GRACE_S
        self._seen: dict[_Update, float] | None = None  # when each was; none before the first look

    async def run(self) -> None:
        """Look for pending transactions until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                self._context.registry.require_ready()
                pending = await self._context.graphs.alerts.list_all_pending()
            except Problem:
                continue  # still loading, or the store has logged why
            overdue = self._list_overdue(pending)
            count = sum(len(each.node_ids) for each in overdue)
            self._context.metrics.pending_transactions.set(count)
            for each in overdue:
                if self._failures.is_paused(each.place):
                    continue
                try:
                    await self._score(each)
                except Exception as error:  # of these: others are still to be scored
                    self._failures.note_failure(each.place, each.place.id, error)
                else:
                    self._failures.note_success(each.place)

    def _list_overdue(self, pending: Sequence[PendingScore]) -> list[PendingScore]:
        """Return what no request will score any more.

        That is what this process has seen pending for longer than a request may take: the clocks of
        the servers that stored it may differ, or be set. What is found at the start is overdue
        already, unless servers share the log.
        """
        now = time.monotonic()
        is_left = self._seen is None and not self._context.graphs.is_shared
        seen = self._seen or {}
        first = -math.inf if is_left else now
        self._seen = {_update_of(each): seen.get(_update_of(each), first) for each in pending}
        return [each for each in pending if now - self._seen[_update_of(each)] >= self._grace_s]

    async def _score(self, pending: PendingScore) -> None:
        context, (owner, graph_id) = self._context, pending.place
        graphs = context.graphs.scoped_to(owner)
        try:
            graph = await graphs.get_transactions(graph_id)
            model = find_scorer(graph, context.registry.scoped(None))
            arguments = graph_id, graph, model, pending.node_ids, frozenset[str]()
            inputs, targets = await context.codec.run(
                owner,
                build_inputs,
                *(*arguments, context.settings, pointer_builder("transactions")),
            )
        except Problem as problem:
            if problem.kind == "unknown-graph" or _GONE & {each.code for each in problem.faults}:
                await graphs.alerts.record_accounts(pending, [])  # no score, of accounts or not
            raise
        outcome = await context.engine.run(
            lambda control: score(inputs, pack_if_large(inputs), control),
            workload_of(inputs),
            is_job=True,
            key=owner,
        )
        outcomes = find_outcomes(graph, inputs, targets, results(inputs, outcome.value))
        await record_outcomes(context, graphs, graph, pending, outcomes)


def _update_of(pending: PendingScore) -> _Update:
    return pending.place, pending.tag, pending.revision, pending.digest
