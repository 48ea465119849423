"""Log of stored graphs that all servers share, in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, final

from redis.client import Pipeline

from service.storage.graphs.base import (
    ChangeKey,
    GraphList,
    LogContents,
    RestoredGraph,
    WatchedGraph,
    WriteResult,
    check_limits,
)
from service.storage.graphs.metadata import (
    DamagedValueError,
    GraphKey,
    GraphLimits,
    GraphMetadata,
    is_graph_id,
)
from service.storage.graphs.redis_alerts import TRIES, RedisAlertLog, execute
from service.storage.graphs.redis_keys import (
    ENDED,
    PENDING,
    SHARED,
    WATCHED,
    WEBHOOKS,
    match_all,
    name_above,
    name_alerts,
    name_base,
    name_changed,
    name_field,
    name_heads,
    name_log,
    name_scored,
)
from service.storage.graphs.redis_rows import parse_heads
from service.storage.graphs.redis_scripts import LOOK
from service.storage.graphs.stored_graph import ToScore
from service.storage.redis_client import RedisUnavailableError
from service.storage.sqlite import StoreError

_MAX_ENDED = 100_000
_KEEP_ENDED_S = 7 * 86_400.0


@final
class RedisGraphLog(RedisAlertLog):
    """One hash of metadata per owner; one snapshot and one list of updates per graph.

    Concurrency is optimistic: WATCH the metadata, then MULTI; a writer that loses gets STALE.
    """

    _is_restoring = False

    def open(self) -> None: ...

    def close(self) -> None: ...

    def add_restore(
        self,
        restore: Callable[[], object],
        restore_refused: Callable[[], object],
        list_again: Callable[[GraphKey], object],
    ) -> None:
        def restore_or_wait() -> None:
            try:
                restore()
            except StoreError as error:  # Redis went away again
                raise RedisUnavailableError(str(error)) from error

        self._redis.add_restore(restore_or_wait, restore_refused)
        self._list_again = list_again

    @contextmanager
    def restoring(self) -> Iterator[None]:
        self._is_restoring = True
        try:
            with self._redis.allow_restore():
                yield
        finally:
            self._is_restoring = False

    def count(self, event: Literal["failures", "restored", "lost"], number: int = 1) -> None:
        self._redis.count(event, "graphs", number)

    def list_metadata(self, owner: str) -> GraphList:
        with self._guard():
            entries: Any = self._redis.blocking_client.hgetall(name_heads(owner))
            if not entries:
                self._require_history()
        heads, damaged = parse_heads(entries.items())
        for id in damaged:
            key = f"{owner}/{id.decode(errors='replace')}"
            self.report_damaged(key, "metadata that no server wrote")
        # Those of an earlier version have no digest yet.
        names = [id.decode() for id in damaged if is_graph_id(id.decode(errors="replace"))]
        return self.migrate_all(owner, GraphList(heads, names))

    def read_head(self, place: GraphKey) -> GraphMetadata | None:
        for _ in range(TRIES):
            with self._guard(place):
                raw: Any = self._redis.blocking_client.hget(name_heads(place.owner), place.id)
                if raw is None:
                    self._require_history()
                    return None
            head = self._parse_head(place, raw)
            if head.digest:
                return head
            self._migrate(place, head)
        raise StoreError("other servers keep changing this graph")

    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        for _ in range(TRIES):
            if (now := self.read_head(place)) is None:
                return None
            start = None
            if known is not None and known.tag == now.tag and now.since <= known.revision:
                if known.digest == now.digest:
                    return LogContents(now, None, [])
                start = known.revision - now.since
            contents = self._read_contents(place, start)
            if contents is None or not contents.metadata.has_base_of(now):
                continue  # it was changed meanwhile
            head = contents.metadata
            if start is None:
                damage = contents.find_damage(head.since, head.base_digest)
            else:
                assert known is not None
                damage = contents.find_damage(known.revision, known.digest)
            if not damage:
                return contents
            if start is None:
                self._mark_damaged(place, head)
                raise self.make_damage(place, damage)
            known = None  # perhaps it is this server that has another history
        raise StoreError("other servers keep changing this graph")

    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, GraphMetadata, GraphMetadata | None]:
        stored: GraphMetadata | None = None
        for _ in range(TRIES):
            with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
                heads, damaged, _ = self._look(pipeline, place, SHARED)
                before = heads.get(place.id)
                if stored is not None and before is not None and before.tag == head.tag:
                    # The connection broke after it was stored; others may have changed it since.
                    return WriteResult.DONE, stored, None
                stored = head.in_place_of(before)
                outcome = check_limits(heads, place, stored, room)
                if outcome is not WriteResult.DONE:
                    return outcome, stored, before
                is_damaged = place.id.encode() in damaged
                self._stage_forget(pipeline, place, before and before.tag, is_damaged)
                pipeline.set(name_base(place), base)
                self._stage_listing(pipeline, place, stored, webhook, None)
                if head.watch is not None:
                    self._stage_all(pipeline, place, stored)
                pipeline.hset(name_heads(place.owner), place.id, stored.to_bytes())
                if execute(pipeline):
                    return outcome, stored, before
        raise StoreError("other servers keep changing graphs")

    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        to_score: ToScore,
    ) -> WriteResult:
        graph = WatchedGraph(place, after.tag)
        types = {name_log(place): "list"}
        if to_score.pending:
            types[PENDING] = "hash"
        if to_score.touched is not None:
            types |= {name_changed(graph): "hash", name_above(graph): "set"}
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            heads, _, log_length = self._look(pipeline, place, types)
            now = heads.get(place.id)
            if now is None or now.is_damaged or now.digest != before.digest:
                return WriteResult.STALE
            if log_length != now.revision - now.since:
                self._mark_damaged(place, now)
                self.report_damaged("/".join(place), "the log has another length")
                return WriteResult.STALE
            outcome = check_limits(heads, place, after, room)
            if outcome is not WriteResult.DONE:
                return outcome
            pipeline.rpush(name_log(place), update)
            pipeline.hset(name_heads(place.owner), place.id, after.with_base_of(now).to_bytes())
            self._stage_to_score(pipeline, graph, ChangeKey(after.revision, after.digest), to_score)
            return outcome if execute(pipeline) else WriteResult.STALE

    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        for _ in range(TRIES):
            with (
                suppress(StoreError),
                self._guard(place),
                self._redis.blocking_client.pipeline() as pipeline,
            ):
                types = {name_log(place): "list"}
                now = self._look(pipeline, place, types)[0].get(place.id)
                if now is None or now.tag != head.tag or now.since >= head.since:
                    return False  # another has
                if now.is_damaged or now.revision < head.revision:
                    return False
                pipeline.set(name_base(place), base)
                pipeline.ltrim(name_log(place), head.since - now.since, -1)
                pipeline.hset(name_heads(place.owner), place.id, now.with_base_of(head).to_bytes())
                if execute(pipeline):
                    return True
                continue
            return False
        return False

    def restore(
        self, place: GraphKey, now: GraphMetadata | None, graph: RestoredGraph, is_damaged: bool
    ) -> bool:
        head, watched = graph.head, WatchedGraph(place, graph.head.tag)
        types = SHARED | {
            name_changed(watched): "hash",
            name_above(watched): "set",
            name_alerts(watched): "stream",
        }
        if graph.snapshot_file is None:
            types |= {name_log(place): "list"}
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            pipeline.watch(name_heads(place.owner))
            listed: Any = pipeline.hget(WEBHOOKS, name_field(place))
            heads, damaged, _ = self._look(pipeline, place, types)
            current = heads.get(place.id)
            if (current and current.digest) != (now and now.digest):
                return False
            if now is None and is_damaged != (place.id.encode() in damaged):
                return False
            if graph.snapshot_file is not None:
                if current is not None and current.tag != head.tag:
                    self._stage_forget(pipeline, place, current.tag, False)
                    listed = None
                pipeline.delete(name_log(place))
                pipeline.set(name_base(place), graph.snapshot_file)
            elif graph.changes:
                pipeline.rpush(name_log(place), *(change.update for change in graph.changes))
            pipeline.hset(name_heads(place.owner), place.id, head.to_bytes())
            for change in graph.changes:
                key = ChangeKey(change.revision, change.digest)
                self._stage_to_score(pipeline, watched, key, change.to_score)
            self._stage_listing(pipeline, place, head, graph.webhook, listed)
            if graph.has_lost_alerts:
                self._stage_lost_alerts(pipeline, place, head)
            return execute(pipeline)

    def delete(self, place: GraphKey, tag: str | None = None) -> str | None:
        tried: str | None = None  # tag of the graph that was to be deleted
        for _ in range(TRIES):
            with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
                heads, damaged, _ = self._look(pipeline, place, SHARED)
                before, is_damaged = heads.get(place.id), place.id.encode() in damaged
                is_gone = before is None or (tried and before.tag != tried)
                if tried is not None and is_gone and not is_damaged:
                    return tried  # the connection broke, or another server was first
                if before is None and not is_damaged:
                    self._require_history()
                    return None
                if tag is not None and (before is None or before.tag != tag):
                    return None
                pipeline.hdel(name_heads(place.owner), place.id)
                self._stage_forget(pipeline, place, before and before.tag, is_damaged)
                tried = "" if before is None else before.tag
                if execute(pipeline):
                    return tried
        raise StoreError("other servers keep changing graphs")

    def find_ended(self, tags: Sequence[str]) -> set[str]:
        if not tags:
            return set()
        with self._guard():
            times: Any = self._redis.blocking_client.zmscore(ENDED, list(tags))
        return {tag for tag, at in zip(tags, times, strict=True) if at is not None}

    def note_ended(self, tags: Sequence[str]) -> None:
        if tags:
            with self._guard():
                self._redis.blocking_client.zadd(ENDED, dict.fromkeys(tags, time.time()), nx=True)

    def _look(
        self, pipeline: Pipeline, place: GraphKey, types: dict[str, str]
    ) -> tuple[dict[str, GraphMetadata], list[bytes], int | None]:
        """Read the graphs of an owner, by id, and which are damaged; of a list that is the first of
        `types`, the length. Watch the graphs, so that the next EXEC fails if they change, and begin
        it. Check the types of keys that it will write: what fails within EXEC leaves the rest
        done."""
        heads = name_heads(place.owner)
        types = {heads: "hash", **types}
        pipeline.watch(heads)
        flat: Any = pipeline.eval(LOOK, len(types), *types, *types.values())
        pipeline.multi()
        length = flat.pop() if len(flat) % 2 else None
        return *parse_heads(zip(flat[::2], flat[1::2], strict=True)), length

    def _require_history(self) -> None:
        """Check, within `_guard`, that what is absent was deleted; not while that is found out."""
        if not self._is_restoring:
            self._redis.require_history()

    def _parse_head(self, place: GraphKey, raw: bytes) -> GraphMetadata:
        try:
            return GraphMetadata.from_bytes(raw)
        except DamagedValueError as error:
            raise self.make_damage(place, str(error)) from error

    def _read_contents(self, place: GraphKey, start: int | None) -> LogContents | None:
        """Read the metadata, the updates from `start` on, and without it all of them and the
        snapshot."""
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            pipeline.hget(name_heads(place.owner), place.id)
            pipeline.lrange(name_log(place), start or 0, -1)
            if start is None:
                pipeline.get(name_base(place))
            raw, updates, *bases = pipeline.execute()
        if raw is None:
            return None
        base = (bases[0] or b"") if start is None else None
        return LogContents(self._parse_head(place, raw), base, updates)

    def _mark_damaged(self, place: GraphKey, head: GraphMetadata) -> None:
        """Note, for a server that has the graph in memory, that it is to be restored."""
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            if self._look(pipeline, place, {})[0].get(place.id) == head:
                raw = replace(head, is_damaged=True).to_bytes()
                pipeline.hset(name_heads(place.owner), place.id, raw)
                execute(pipeline)

    def _migrate(self, place: GraphKey, head: GraphMetadata) -> None:
        """Give a graph of an earlier version, as it is now, the digest that all servers would."""
        contents = self._read_contents(place, None)
        if contents is None or contents.metadata != head:
            return  # it was changed meanwhile
        migrated = contents.migrate()
        if damage := migrated.find_damage(head.since, migrated.metadata.base_digest):
            raise self.make_damage(place, damage)
        with self._guard(place), self._redis.blocking_client.pipeline() as pipeline:
            if self._look(pipeline, place, {})[0].get(place.id) == head:
                raw = migrated.metadata.to_bytes()
                pipeline.hset(name_heads(place.owner), place.id, raw)
                execute(pipeline)

    def _stage_forget(
        self, pipeline: Pipeline, place: GraphKey, tag: str | None, is_damaged: bool
    ) -> None:
        """Add to what the pipeline will do that all of a graph but its metadata is deleted; keys of
        a damaged one are looked for, as its tag is not known."""
        client, field = self._redis.blocking_client, name_field(place)
        pipeline.delete(name_base(place), name_log(place))
        if is_damaged and (keys := list(client.scan_iter(match_all(place), 1000))):
            pipeline.delete(*keys)
        if tag is not None:
            graph, now = WatchedGraph(place, tag), time.time()
            pipeline.delete(
                name_alerts(graph), name_changed(graph), name_above(graph), name_scored(graph)
            )
            pipeline.zadd(ENDED, {tag: now})
            pipeline.zremrangebyscore(ENDED, "-inf", now - _KEEP_ENDED_S)
            pipeline.zremrangebyrank(ENDED, 0, -_MAX_ENDED - 1)
        pipeline.hdel(WATCHED, field)
        pipeline.hdel(WEBHOOKS, field)
        names: Any = client.hkeys(PENDING)
        if of_graph := [name for name in names if name.startswith(f"{field}:".encode())]:
            pipeline.hdel(PENDING, *of_graph)
