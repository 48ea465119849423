"""Alerts of stored graphs: what is to be scored, what was raised, what was delivered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, final
from weakref import WeakSet

import orjson

from service.errors import Problem
from service.storage.graphs.base import (
    AccountScore,
    ChangedNodes,
    ChangeKey,
    GraphLog,
    PendingScore,
    ScoredNodes,
    SharedWork,
    WatchedGraph,
    Webhook,
)
from service.storage.graphs.metadata import GraphKey, GraphMetadata
from service.storage.graphs.transaction_graph import TransactionGraph
from service.storage.graphs.writer import GroupCommitWriter
from service.validation.ids import NodeId

T = TypeVar("T")


@dataclass(frozen=True)
class AddedTransactions:
    """What `GraphStore.add_transactions` did.

    Attributes:
        graph: has all the transactions, whatever comes later.
        new: ids of those that were not stored before, in order of time.
        pending: the new ones, and what an earlier request stored of the same rows and did not
            score.
    """

    head: GraphMetadata
    graph: TransactionGraph
    new: list[NodeId]
    pending: list[PendingScore]


@final
class AlertSignals:
    """Events of one event loop; those of `watch` end with those who hold them.

    Attributes:
        changed: set when this server has changed a watched graph.
    """

    def __init__(self) -> None:
        self._watchers = defaultdict[GraphKey, WeakSet[asyncio.Event]](WeakSet)
        self.changed = asyncio.Event()

    def watch(self, place: GraphKey) -> asyncio.Event:
        event = asyncio.Event()
        self._watchers[place].add(event)
        return event

    def notify(self, place: GraphKey) -> None:
        for event in self._watchers.get(place, ()):
            event.set()

    def notify_change(self, head: GraphMetadata) -> None:
        if head.watch is not None:
            self.changed.set()


@final
class AlertStore:
    """Alerts by the id of their graph, of one API key, `owner`; `list_all_...` are of all keys."""

    def __init__(
        self, log: GraphLog, writer: GroupCommitWriter, signals: AlertSignals, owner: str
    ) -> None:
        self._log, self._writer, self._signals, self._owner = log, writer, signals, owner

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(work))

    async def record(self, pending: PendingScore, alerts: list[bytes]) -> bool:
        """Store the alerts of transactions that are scored now, once; return whether this call did
        it."""
        done = await self._run(lambda: self._log.record_alerts(pending, alerts))
        if done and alerts:
            self._signals.notify(pending.place)
        return done

    async def record_accounts(
        self, pending: PendingScore, scores: list[AccountScore]
    ) -> int | None:
        """Store the scores of the accounts of transactions, once, and the alerts of accounts that
        cross the threshold; see `GraphLog.record_accounts`."""
        raised = await self._run(lambda: self._log.record_accounts(pending, scores))
        if raised:
            self._signals.notify(pending.place)
        return raised

    def record_none(self, pending: PendingScore, done: Callable[[], None]) -> None:
        """Store, at some time, that transactions raised no alert, and then call `done` in another
        thread, if this call did it. Until then, or if it fails, they are scored once more."""

        def finish(future: Future[bool]) -> None:
            if future.exception() is None and future.result():
                done()

        with suppress(Problem):  # the queue is full
            work = self._writer.submit(lambda: self._log.record_alerts(pending, []))
            work.add_done_callback(finish)

    async def read(self, id: str, tag: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return the next alerts of the graph with this tag, each with its number."""
        place = GraphKey(self._owner, id)
        return await self._run(lambda: self._read_valid(place, tag, after, limit))

    def _read_valid(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Read alerts, in the writer thread, without those that no server wrote."""
        alerts = list[tuple[int, bytes]]()
        while size := limit - len(alerts):
            page = self._log.read_alerts(place, tag, after, size)
            for number, alert in page:
                after = number
                if _is_object(alert):
                    alerts.append((number, alert))
                else:
                    key = f"{place.owner}/{place.id} alert {tag}.{number}"
                    self._log.report_damaged(key, "no server wrote it")
            if len(page) < size:
                break
        return alerts

    def watch(self, id: str) -> asyncio.Event:
        """Return an event that is set when this server records alerts of the graph; other servers
        do not set it."""
        return self._signals.watch(GraphKey(self._owner, id))

    async def list_all_pending(self) -> list[PendingScore]:
        """Return the transactions of all owners that are stored and may not be scored yet."""
        return await self._run(self._log.list_all_pending)

    async def list_all_webhooks(self) -> list[Webhook]:
        """Return the webhooks of all owners that may have alerts to deliver."""
        return await self._run(self._log.list_all_webhooks)

    async def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        """Whether this server may do the work for so long: no other one does. A claim that this
        server has is renewed."""
        return await self._run(lambda: self._log.claim(place, work, seconds))

    async def mark_delivered(self, webhook: Webhook, number: int) -> None:
        """Store that the alert of this number was delivered, and end the claim."""
        await self._run(lambda: self._log.mark_delivered(webhook, number))

    @property
    def changed(self) -> asyncio.Event:
        """Set when this server has changed a watched graph, of any owner; other servers do not set
        it."""
        return self._signals.changed

    async def list_changed_graphs(self) -> list[WatchedGraph]:
        """Return the watched graphs of all owners that have nodes to be scored."""
        return await self._run(self._log.list_changed_graphs)

    async def read_changed(
        self, graph: WatchedGraph, known: Collection[ChangeKey] = ()
    ) -> list[ChangedNodes]:
        """Return what revisions changed and is to be scored, in order, without those that are
        `known`."""
        return await self._run(lambda: self._log.read_changed(graph, -1, known))

    async def find_scored_revision(self, id: str, head: GraphMetadata) -> int:
        """Return the last revision up to which everything of a watched graph is scored."""
        graph = WatchedGraph(GraphKey(self._owner, id), head.tag)
        changes = await self.read_changed(graph)
        return max(changes[0].revision - 1, 0) if changes else head.revision

    async def record_scores(self, scored: ScoredNodes) -> int | None:
        """Store the alerts of nodes that are above the threshold and were not before; return how
        many, None if the graph is gone or another server scores it now."""
        raised = await self._run(lambda: self._log.record_scores(scored))
        if raised:
            self._signals.notify(scored.graph.place)
        return raised


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False
