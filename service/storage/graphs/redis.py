"""Log of stored graphs that all servers share, in Redis."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, final

import orjson
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import WatchError

from service.storage.graphs.base import (
    KEPT_ALERTS,
    AccountScore,
    ChangedNodes,
    GraphKey,
    GraphLimits,
    GraphLog,
    GraphMetadata,
    LogContents,
    PendingScore,
    ScoredNodes,
    SharedWork,
    TouchedNodes,
    WatchedGraph,
    Webhook,
    WriteResult,
    check_limits,
)
from service.storage.graphs.redis_scripts import (
    ADD,
    CLAIM,
    DELIVERED,
    RECORD,
    RECORD_ACCOUNTS,
)
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError
from service.storage.sqlite import StoreError
from service.validation.ids import NodeId

_TRIES = 64
_PENDING = f"{PREFIX}graphs-pending"
_WEBHOOKS = f"{PREFIX}graphs-webhooks"
_WATCHED = f"{PREFIX}graphs-watched"


@final
class RedisGraphLog(GraphLog):
    """One hash of metadata per owner; one snapshot and one list of updates per graph.

    Concurrency is optimistic: WATCH the metadata, then MULTI; a writer that loses gets STALE.
    """

    is_shared = True

    def __init__(self, link: RedisClient) -> None:
        self._redis = link
        self._token = secrets.token_hex(8)  # of its claims

    def open(self) -> None: ...

    def close(self) -> None: ...

    def list_metadata(self, owner: str) -> dict[str, GraphMetadata]:
        with self._asking():
            return _heads(self._redis.blocking_client.hgetall(_of(owner)))

    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, int]:
        for _ in range(_TRIES):
            with self._asking(), self._redis.blocking_client.pipeline() as pipeline:
                heads = _watched(pipeline, place.owner)
                before = heads.get(place.id)
                revision = 1 if before is None else before.revision + 1
                found = check_limits(heads, place, head, room)
                if found is not WriteResult.DONE:
                    return found, revision
                pipeline.set(_base(place), base)
                pipeline.delete(_log(place))
                if before is not None:
                    pipeline.delete(_alerts(place, before.tag))
                    self._unwatch(pipeline, WatchedGraph(place, before.tag))
                self._forget_pending(pipeline, place)
                pipeline.hdel(_WEBHOOKS, _field(place))
                if webhook is not None:
                    entry = orjson.dumps([*place, head.tag, webhook, 0])
                    pipeline.hset(_WEBHOOKS, _field(place), entry)
                if head.watch is not None:
                    graph = WatchedGraph(place, head.tag)
                    pipeline.hset(_WATCHED, _field(place), orjson.dumps([*place, head.tag]))
                    pipeline.hset(_changed(graph), str(revision), orjson.dumps(None))
                stored = replace(head, revision=revision, since=revision)
                pipeline.hset(_of(place.owner), place.id, stored.to_json())
                if _done(pipeline):
                    return found, revision
        raise StoreError("other servers keep changing graphs")

    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        pending: list[NodeId] | None = None,
        touched: TouchedNodes | None = None,
    ) -> WriteResult:
        with self._asking(), self._redis.blocking_client.pipeline() as pipeline:
            heads = _watched(pipeline, place.owner)
            now = heads.get(place.id)
            if now is None or (now.tag, now.revision) != (before.tag, before.revision):
                return WriteResult.STALE
            found = check_limits(heads, place, after, room)
            if found is not WriteResult.DONE:
                return found
            pipeline.rpush(_log(place), update)
            stored = replace(after, since=now.since)
            pipeline.hset(_of(place.owner), place.id, stored.to_json())
            if pending:
                values = [*place, after.tag, after.revision, pending, time.time()]
                field = _pending(place, after.tag, after.revision)
                pipeline.hset(_PENDING, field, orjson.dumps(values))
            if touched is not None:
                graph = WatchedGraph(place, after.tag)
                node_ids = orjson.dumps(touched.node_ids + touched.deleted)
                pipeline.hset(_changed(graph), str(after.revision), node_ids)
                if touched.deleted:
                    pipeline.srem(_above(graph), *map(orjson.dumps, touched.deleted))
            return found if _done(pipeline) else WriteResult.STALE

    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        for _ in range(_TRIES):
            with (
                suppress(StoreError),
                self._asking(),
                self._redis.blocking_client.pipeline() as pipeline,
            ):
                now = _watched(pipeline, place.owner).get(place.id)
                if now is None or now.tag != head.tag or now.since >= head.revision:
                    return False  # another has
                pipeline.set(_base(place), base)
                pipeline.ltrim(_log(place), head.revision - now.since, -1)
                stored = replace(now, since=head.revision)
                pipeline.hset(_of(place.owner), place.id, stored.to_json())
                if _done(pipeline):
                    return True
                continue
            return False
        return False

    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        with self._asking():
            for _ in range(_TRIES):
                text = self._redis.blocking_client.hget(_of(place.owner), place.id)
                if text is None:
                    return None
                now, start = GraphMetadata.from_json(text), None
                if known is not None and known.tag == now.tag and known.revision >= now.since:
                    if known.revision == now.revision:
                        return LogContents(now, None, [])
                    start = known.revision - now.since
                with self._redis.blocking_client.pipeline() as pipeline:
                    pipeline.hget(_of(place.owner), place.id)
                    pipeline.lrange(_log(place), start or 0, -1)
                    if start is None:
                        pipeline.get(_base(place))
                    text, updates, *bases = pipeline.execute()
                if text is None:
                    return None
                found = GraphMetadata.from_json(text)
                if (found.tag, found.since) == (now.tag, now.since):
                    return LogContents(found, bases[0] if bases else None, updates)
        raise StoreError("other servers keep changing this graph")

    def delete(self, place: GraphKey) -> bool:
        with self._asking(), self._redis.blocking_client.pipeline() as pipeline:
            heads = _heads(self._redis.blocking_client.hgetall(_of(place.owner)))
            pipeline.hdel(_of(place.owner), place.id)
            pipeline.delete(_base(place), _log(place))
            if (before := heads.get(place.id)) is not None:
                pipeline.delete(_alerts(place, before.tag))
                self._unwatch(pipeline, WatchedGraph(place, before.tag))
            self._forget_pending(pipeline, place)
            pipeline.hdel(_WEBHOOKS, _field(place))
            return bool(pipeline.execute()[0])

    def list_all_pending(self) -> list[PendingScore]:
        with self._asking():
            entries = map(orjson.loads, self._redis.blocking_client.hvals(_PENDING))
        pending = [PendingScore(GraphKey(owner, id), *rest) for owner, id, *rest in entries]
        return sorted(pending, key=lambda each: each.at)

    def record_alerts(self, pending: PendingScore, alerts: list[bytes]) -> bool:
        place, tag = pending.place, pending.tag
        with self._asking():
            keys = [_PENDING, _alerts(place, tag), _of(place.owner)]
            field = _pending(place, tag, pending.revision)
            arguments = [field, place.id, tag, KEPT_ALERTS, *alerts]
            client = self._redis.blocking_client
            return bool(client.eval(RECORD, len(keys), *keys, *arguments))

    def record_accounts(self, pending: PendingScore, scores: Sequence[AccountScore]) -> int | None:
        place, tag = pending.place, pending.tag
        graph = WatchedGraph(place, tag)
        # Members of the set are as in `record_scores`.
        entries = [
            (orjson.dumps(account).decode(), alert and alert.decode()) for account, alert in scores
        ]
        keys = [_PENDING, _alerts(place, tag), _of(place.owner), _above(graph), _scored(graph)]
        arguments = [
            _pending_prefix(place, tag),
            pending.revision,
            place.id,
            tag,
            KEPT_ALERTS,
            orjson.dumps(entries),
        ]
        with self._asking():
            client = self._redis.blocking_client
            count: Any = client.eval(RECORD_ACCOUNTS, len(keys), *keys, *arguments)
        return None if count < 0 else count

    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        with self._asking():
            entries: Any = self._redis.blocking_client.xrange(
                _alerts(place, tag), f"({after}-0", "+", limit
            )
        return [(int(id.partition(b"-")[0]), fields[b"alert"]) for id, fields in entries]

    def list_all_webhooks(self) -> list[Webhook]:
        with self._asking():
            entries = map(orjson.loads, self._redis.blocking_client.hvals(_WEBHOOKS))
        return [Webhook(GraphKey(owner, id), *rest) for owner, id, *rest in entries]

    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        with self._asking():
            arguments = [_claim(place, work), self._token, int(1e3 * seconds)]
            return bool(self._redis.blocking_client.eval(CLAIM, 1, *arguments))

    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        place = webhook.place
        after = orjson.dumps([*place, webhook.tag, webhook.url, number])
        with self._asking():
            keys = [_WEBHOOKS, _claim(place, "delivering")]
            arguments = [_field(place), webhook.tag, after, self._token]
            self._redis.blocking_client.eval(DELIVERED, len(keys), *keys, *arguments)

    def list_changed_graphs(self) -> list[WatchedGraph]:
        with self._asking(), self._redis.blocking_client.pipeline(transaction=False) as pipeline:
            entries = map(orjson.loads, self._redis.blocking_client.hvals(_WATCHED))
            graphs = [WatchedGraph(GraphKey(owner, id), tag) for owner, id, tag in entries]
            for graph in graphs:
                pipeline.exists(_changed(graph))
            have_changed = pipeline.execute()
        return [graph for graph, is_changed in zip(graphs, have_changed, strict=True) if is_changed]

    def read_changed(self, graph: WatchedGraph, after: int) -> list[ChangedNodes]:
        with self._asking():
            return _read_changed(self._redis.blocking_client, graph, after)

    def record_scores(self, scored: ScoredNodes) -> int | None:
        graph, place = scored.graph, scored.graph.place
        heads, claim = _of(place.owner), _claim(place, "scoring")
        for _ in range(_TRIES):
            with self._asking(), self._redis.blocking_client.pipeline() as pipeline:
                pipeline.watch(heads, claim)
                text, claimed_by = pipeline.hget(heads, place.id), pipeline.get(claim)
                if text is None or claimed_by != self._token.encode():
                    return None
                if GraphMetadata.from_json(text).tag != graph.tag:
                    return None
                valid = scored.without(_read_changed(pipeline, graph, scored.revision))
                above = {orjson.dumps(node_id): alert for node_id, alert in valid.above.items()}
                known: Any = pipeline.smismember(_above(graph), list(above)) if above else ()
                alerts = [
                    alert for alert, known in zip(above.values(), known, strict=True) if not known
                ]
                pipeline.multi()
                if above:
                    pipeline.sadd(_above(graph), *above)
                if valid.below:
                    pipeline.srem(_above(graph), *map(orjson.dumps, valid.below))
                if valid.finished:
                    pipeline.hdel(_changed(graph), *map(str, valid.finished))
                if alerts:
                    pipeline.eval(ADD, 1, _alerts(place, graph.tag), KEPT_ALERTS, *alerts)
                if _done(pipeline):
                    return len(alerts)
        raise StoreError("other servers keep changing graphs")

    def _unwatch(self, pipeline: Pipeline, graph: WatchedGraph) -> None:
        pipeline.hdel(_WATCHED, _field(graph.place))
        pipeline.delete(_changed(graph), _above(graph), _scored(graph))

    def _forget_pending(self, pipeline: Pipeline, place: GraphKey) -> None:
        names: Any = self._redis.blocking_client.hkeys(_PENDING)
        of_graph = [name for name in names if name.startswith(f"{_field(place)}:".encode())]
        if of_graph:
            pipeline.hdel(_PENDING, *of_graph)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            with self._redis.guard("graphs"):
                yield
        except RedisUnavailableError as error:
            raise StoreError(str(error)) from error


def _watched(pipeline: Pipeline, owner: str) -> dict[str, GraphMetadata]:
    """Read the metadata of an owner, and watch it: the next EXEC fails if it changes."""
    pipeline.watch(_of(owner))
    heads = _heads(pipeline.hgetall(_of(owner)))
    pipeline.multi()
    return heads


def _done(pipeline: Pipeline) -> bool:
    try:
        pipeline.execute()
    except WatchError:
        return False
    return True


def _heads(found: Any) -> dict[str, GraphMetadata]:
    return {id.decode(): GraphMetadata.from_json(head) for id, head in sorted(found.items())}


def _of(owner: str) -> str:
    return f"{PREFIX}graphs:{owner}"


def _base(place: GraphKey) -> str:
    return f"{PREFIX}graph:{place.owner}/{place.id}:base"


def _alerts(place: GraphKey, tag: str) -> str:
    return f"{PREFIX}graph:{place.owner}/{place.id}:alerts:{tag}"


def _field(place: GraphKey) -> str:
    return f"{place.owner}/{place.id}"


def _read_changed(client: Redis | Pipeline, graph: WatchedGraph, after: int) -> list[ChangedNodes]:
    entries: Any = client.hgetall(_changed(graph))
    changes = sorted((int(revision), node_ids) for revision, node_ids in entries.items())
    return [ChangedNodes(number, orjson.loads(ids)) for number, ids in changes if number > after]


def _changed(graph: WatchedGraph) -> str:
    return f"{PREFIX}graph:{_field(graph.place)}:changed:{graph.tag}"


def _above(graph: WatchedGraph) -> str:
    return f"{PREFIX}graph:{_field(graph.place)}:above:{graph.tag}"


def _scored(graph: WatchedGraph) -> str:
    return f"{PREFIX}graph:{_field(graph.place)}:scored:{graph.tag}"


def _claim(place: GraphKey, work: SharedWork) -> str:
    return f"{PREFIX}graph:{_field(place)}:{work}"


def _pending(place: GraphKey, tag: str, revision: int) -> str:
    return f"{_pending_prefix(place, tag)}{revision}"


def _pending_prefix(place: GraphKey, tag: str) -> str:
    return f"{_field(place)}:{tag}:"


def _log(place: GraphKey) -> str:
    return f"{PREFIX}graph:{place.owner}/{place.id}:log"
