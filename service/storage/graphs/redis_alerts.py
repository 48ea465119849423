"""What of stored graphs in Redis is to be scored, which alerts they raised, which were sent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError, WatchError

from service.storage.graphs.base import (
    KEPT_ALERTS,
    AccountScore,
    ChangedNodes,
    ChangeKey,
    GraphLog,
    PendingScore,
    RefusedError,
    ScoredNodes,
    SharedWork,
    WatchedGraph,
    Webhook,
)
from service.storage.graphs.metadata import DamagedValueError, GraphKey, GraphMetadata
from service.storage.graphs.redis_keys import (
    PENDING,
    SHARED,
    WATCHED,
    WEBHOOKS,
    find_type,
    match_all,
    name_above,
    name_alerts,
    name_change,
    name_changed,
    name_claim,
    name_field,
    name_heads,
    name_pending,
    name_scored,
    parse_field,
    prefix_pending,
)
from service.storage.graphs.redis_rows import (
    PENDING_ROWS,
    WATCHED_ROWS,
    WEBHOOK_ROWS,
    name_pending_row,
    name_row,
)
from service.storage.graphs.redis_scripts import (
    ADD,
    CLAIM,
    DELIVERED,
    RECORD,
    RECORD_ACCOUNTS,
    SKIP_NUMBERS,
)
from service.storage.graphs.stored_graph import ToScore
from service.storage.redis_client import (
    HISTORY,
    PREFIX,
    RedisClient,
    RedisUnavailableError,
    is_wrong_type,
)
from service.storage.redis_server_id import RedisReplacedError
from service.storage.sqlite import StoreError
from service.validation.ids import NodeId

TRIES = 64
_MAX = 2**64 - 1  # of the second part of an id in a stream
T = TypeVar("T")


_NODE_IDS = TypeAdapter(list[NodeId] | None)


class RedisAlertLog(GraphLog):
    """The part of `RedisGraphLog` that is about alerts.

    Values that no server wrote are set aside as `basin:damaged:...`, reported and left out.
    """

    is_shared = True

    def __init__(self, link: RedisClient) -> None:
        self._redis = link
        self._token = secrets.token_hex(8)  # of its claims
        self._list_again: Callable[[GraphKey], object] = lambda place: None

    def list_all_pending(self) -> list[PendingScore]:
        rows = self._list_rows(PENDING, PENDING_ROWS, name_pending_row)
        pending = [PendingScore(GraphKey(row.owner, row.id), *row[2:]) for row in rows]
        return sorted(pending, key=lambda each: each.at)

    def record_alerts(self, pending: PendingScore, alerts: list[bytes]) -> bool:
        graph = WatchedGraph(pending.place, pending.tag)
        keys = [PENDING, name_alerts(graph), name_heads(graph.place.owner)]
        field = name_pending(graph, pending.revision, pending.digest)
        arguments = [field, graph.place.id, graph.tag, KEPT_ALERTS, *alerts]
        with self._guard(pending.place):
            client = self._redis.blocking_client
            return bool(client.eval(RECORD, len(keys), *keys, *arguments))

    def record_accounts(self, pending: PendingScore, scores: Sequence[AccountScore]) -> int | None:
        graph = WatchedGraph(pending.place, pending.tag)
        # Members of the set are as in `record_scores`.
        entries = [
            (orjson.dumps(account).decode(), alert and alert.decode()) for account, alert in scores
        ]
        heads = name_heads(graph.place.owner)
        keys = [PENDING, name_alerts(graph), heads, name_above(graph), name_scored(graph)]
        arguments = [
            prefix_pending(graph),
            name_change(pending.revision, pending.digest),
            graph.place.id,
            graph.tag,
            KEPT_ALERTS,
            orjson.dumps(entries),
        ]
        with self._guard(pending.place):
            client = self._redis.blocking_client
            count: Any = client.eval(RECORD_ACCOUNTS, len(keys), *keys, *arguments)
        return None if count < 0 else count

    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        key = name_alerts(WatchedGraph(place, tag))
        with self._guard(place):
            # Servers write `number-0`; after any other entry of that number is the next one.
            entries: Any = self._redis.blocking_client.xrange(key, f"({after}-{_MAX}", "+", limit)
        return [(int(id.partition(b"-")[0]), fields.get(b"alert", b"")) for id, fields in entries]

    def list_all_webhooks(self) -> list[Webhook]:
        rows = self._list_rows(WEBHOOKS, WEBHOOK_ROWS, name_row)
        return [Webhook(GraphKey(row.owner, row.id), *row[2:]) for row in rows]

    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        with self._guard(place):
            arguments = [name_claim(place, work), self._token, int(1e3 * seconds)]
            return bool(self._redis.blocking_client.eval(CLAIM, 1, *arguments))

    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        place = webhook.place
        after = orjson.dumps([*place, webhook.tag, webhook.url, number])
        with self._guard(place):
            keys = [WEBHOOKS, name_claim(place, "delivering")]
            arguments = [name_field(place), webhook.tag, after, self._token]
            self._redis.blocking_client.eval(DELIVERED, len(keys), *keys, *arguments)

    def list_changed_graphs(self) -> list[WatchedGraph]:
        rows = self._list_rows(WATCHED, WATCHED_ROWS, name_row)
        graphs = [WatchedGraph(GraphKey(row.owner, row.id), row.tag) for row in rows]
        with self._guard(), self._redis.blocking_client.pipeline(transaction=False) as pipeline:
            for graph in graphs:
                pipeline.exists(name_changed(graph))
            have_changed = pipeline.execute()
        return [graph for graph, is_changed in zip(graphs, have_changed, strict=True) if is_changed]

    def read_changed(
        self, graph: WatchedGraph, after: int, known: Collection[ChangeKey] = ()
    ) -> list[ChangedNodes]:
        with self._guard(graph.place):
            return self._read_changed(self._redis.blocking_client, graph, after, known)

    def record_scores(self, scored: ScoredNodes) -> int | None:
        graph, place = scored.graph, scored.graph.place
        heads, claim = name_heads(place.owner), name_claim(place, "scoring")
        for _ in range(TRIES):
            with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
                pipeline.watch(heads, claim)
                raw: Any = pipeline.hget(heads, place.id)
                claimed_by = pipeline.get(claim)
                if claimed_by != self._token.encode() or not _has_tag(raw, graph.tag):
                    return None
                changes = self._read_changed(pipeline, graph, scored.revision)
                valid = scored.without(changes)
                above = {orjson.dumps(node_id): alert for node_id, alert in valid.above.items()}
                known: Any = pipeline.smismember(name_above(graph), list(above)) if above else ()
                alerts = [
                    alert for alert, known in zip(above.values(), known, strict=True) if not known
                ]
                pipeline.multi()
                if above:
                    pipeline.sadd(name_above(graph), *above)
                if valid.below:
                    pipeline.srem(name_above(graph), *map(orjson.dumps, valid.below))
                if valid.finished:
                    pipeline.hdel(
                        name_changed(graph), *(name_change(*key) for key in scored.finished)
                    )
                if alerts:
                    pipeline.eval(ADD, 1, name_alerts(graph), KEPT_ALERTS, *alerts)
                if execute(pipeline):
                    return len(alerts)
        raise StoreError("other servers keep changing graphs")

    def list_again(
        self, place: GraphKey, head: GraphMetadata, webhook: str | None, has_lost_alerts: bool
    ) -> None:
        if head.watch is None and head.model is None:
            return
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            listed: Any = self._redis.blocking_client.hget(WEBHOOKS, name_field(place))
            self._stage_listing(pipeline, place, head, webhook, listed)
            if has_lost_alerts:
                self._stage_lost_alerts(pipeline, place, head)
            pipeline.execute()

    def score_all(self, place: GraphKey, head: GraphMetadata) -> None:
        with self._guard(place):
            self._stage_all(self._redis.blocking_client, place, head, secrets.token_hex(4))

    def _stage_listing(
        self,
        pipeline: Pipeline,
        place: GraphKey,
        head: GraphMetadata,
        webhook: str | None,
        listed: bytes | None,
    ) -> None:
        """Add to what the pipeline will do that background work finds the graph; `listed` is its
        entry among the webhooks, which is left as it is if it is of this graph."""
        field, graph = name_field(place), [*place, head.tag]
        if head.watch is not None:
            pipeline.hset(WATCHED, field, orjson.dumps(graph))
        if webhook is not None and (listed is None or head.tag.encode() not in listed):
            pipeline.hset(WEBHOOKS, field, orjson.dumps([*graph, webhook, 0]))

    def _stage_lost_alerts(self, pipeline: Pipeline, place: GraphKey, head: GraphMetadata) -> None:
        """Add to what the pipeline will do that lost alerts are raised again, with new numbers."""
        if head.watch is not None:
            self._stage_all(pipeline, place, head, secrets.token_hex(4))
        if head.watch is not None or head.model is not None:
            alerts = name_alerts(WatchedGraph(place, head.tag))
            pipeline.eval(SKIP_NUMBERS, 1, alerts)

    def _stage_all(
        self, client: Redis | Pipeline, place: GraphKey, head: GraphMetadata, *mark: str
    ) -> None:
        """Store, or add to what the pipeline will do, that all nodes are to be scored. With a mark
        of its own the entry is new to a server that scores the same revision now."""
        key = name_changed(WatchedGraph(place, head.tag))
        name = ":".join((name_change(head.revision, head.digest), *mark))
        client.hset(key, name, orjson.dumps(None))

    def _read_changed(
        self,
        client: Redis | Pipeline,
        graph: WatchedGraph,
        after: int,
        known: Collection[ChangeKey] = (),
    ) -> list[ChangedNodes]:
        entries: Any = client.hgetall(name_changed(graph))
        changes = list[ChangedNodes]()
        for field, raw in entries.items():
            revision, _, digest = field.decode(errors="replace").partition(":")
            if not revision.isdecimal():
                key = f"{name_changed(graph)} {field!r}"
                self.report_damaged(key, "a revision that no server wrote")
                continue
            change = ChangeKey(int(revision), digest)
            if change.revision > after and change not in known:
                changes.append(ChangedNodes(change.revision, self._read_ids(graph, raw), digest))
        return sorted(changes, key=lambda each: each.revision)

    def _read_ids(self, graph: WatchedGraph, raw: bytes) -> list[NodeId] | None:
        try:
            return _NODE_IDS.validate_json(raw)
        except ValueError:
            self.report_damaged(
                name_changed(graph), "ids that no server wrote: all nodes are scored"
            )
            return None

    def _stage_to_score(
        self, pipeline: Pipeline, graph: WatchedGraph, key: ChangeKey, to_score: ToScore
    ) -> None:
        """Add what of a revision is to be scored to what the pipeline will do."""
        if to_score.pending:
            ids, now = list(to_score.pending), time.time()
            row = [*graph.place, graph.tag, key.revision, ids, now, key.digest]
            pipeline.hset(PENDING, name_pending(graph, *key), orjson.dumps(row))
        if (touched := to_score.touched) is not None:
            node_ids = orjson.dumps(touched.node_ids + touched.deleted)
            pipeline.hset(name_changed(graph), name_change(*key), node_ids)
            if touched.deleted:
                pipeline.srem(name_above(graph), *map(orjson.dumps, touched.deleted))

    def _list_rows(self, key: str, rows: TypeAdapter[T], name: Callable[[Any], str]) -> list[T]:
        """Return the values of a hash; those that are damaged, or stand in the field of another,
        are set aside."""
        with self._guard():
            entries: Any = self._redis.blocking_client.hgetall(key)
        valid = list[T]()
        for field, raw in entries.items():
            try:
                row = rows.validate_json(raw)
                if name(row).encode() != field:
                    raise ValueError("it is of another graph")
            except ValueError:
                self._set_field_aside(key, field, raw)
            else:
                valid.append(row)
        return valid

    def _set_field_aside(self, key: str, field: bytes, raw: bytes) -> None:
        self.report_damaged(f"{key} {field!r}", "a value that no server wrote")
        with self._guard(), self._redis.blocking_client.pipeline() as pipeline:
            pipeline.hset(_name_aside(key), field, raw)
            pipeline.hdel(key, field)
            pipeline.execute()
        if key != PENDING:
            self._list_again(parse_field(field.decode(errors="replace")))

    @contextmanager
    def _guard(self, place: GraphKey | None = None) -> Iterator[None]:
        """Run commands in this context, for one graph or for all.

        Raises:
            StoreError: Redis is unavailable, refused a command, or has a value of another type,
                which is set aside.
        """
        try:
            with self._redis.guard("graphs"):
                try:
                    yield
                except ResponseError as error:
                    if not is_wrong_type(error):
                        raise
                    if self._set_keys_aside(place):
                        raise RedisReplacedError("a key of all graphs had another type") from error
                    raise StoreError("a key of the graph had another type") from error
        except RedisUnavailableError as error:
            is_refused = isinstance(error.__cause__, ResponseError)
            raise (RefusedError if is_refused else StoreError)(str(error)) from error

    def _set_keys_aside(self, place: GraphKey | None) -> bool:
        """Set keys of other types than they should have aside, within `guard`; return whether one
        of them is of all graphs, so that what it had is to be restored."""
        client = self._redis.blocking_client
        types = dict(SHARED)
        if place is not None:
            types[name_heads(place.owner)] = "hash"
        shared = set(types)
        if place is not None:
            keys = [key.decode() for key in client.scan_iter(match_all(place), 1000)]
            types |= {key: find_type(key, place) for key in keys}
        wrong = [
            key
            for key, expected in types.items()
            if expected and client.type(key) not in (b"none", expected.encode())
        ]
        for key in wrong:
            self.report_damaged(key, "a value of another type")
            client.rename(key, _name_aside(key))
        if is_any_shared := not shared.isdisjoint(wrong):
            client.delete(HISTORY)  # all servers compare what they hold
        return is_any_shared

    def report_damaged(self, key: str, reason: str) -> None:
        self._redis.report_damaged("graphs", key, reason)


def execute(pipeline: Pipeline) -> bool:
    """Execute a transaction; return False if what it watches has changed, or the connection broke:
    then it may have been executed."""
    try:
        pipeline.execute()
    except WatchError:
        return False
    return True


def _has_tag(raw: bytes | None, tag: str) -> bool:
    try:
        return raw is not None and GraphMetadata.from_bytes(raw).tag == tag
    except DamagedValueError:
        return False


def _name_aside(key: str) -> str:
    return f"{PREFIX}damaged:{key.removeprefix(PREFIX)}"
