"""Alerts of stored transactions: what is to be scored, what was raised, what was delivered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, final
from weakref import WeakSet

from service.errors import Problem
from service.storage.graphs.base import GraphKey, GraphLog, GraphMetadata, PendingScore, Webhook
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
    """Events of one event loop, which end with those who hold them."""

    def __init__(self) -> None:
        self._watchers = defaultdict[GraphKey, WeakSet[asyncio.Event]](WeakSet)

    def watch(self, place: GraphKey) -> asyncio.Event:
        event = asyncio.Event()
        self._watchers[place].add(event)
        return event

    def notify(self, place: GraphKey) -> None:
        for event in self._watchers.get(place, ()):
            event.set()


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
        return await self._run(lambda: self._log.read_alerts(place, tag, after, limit))

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

    async def claim_webhook(self, webhook: Webhook, seconds: float) -> bool:
        """Whether this server may deliver for so long: no other one does."""
        return await self._run(lambda: self._log.claim_webhook(webhook, seconds))

    async def mark_delivered(self, webhook: Webhook, number: int) -> None:
        """Store that the alert of this number was delivered, and end the claim."""
        await self._run(lambda: self._log.mark_delivered(webhook, number))
