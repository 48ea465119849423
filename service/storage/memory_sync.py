"""Compares the memories in Redis with a server's copies, and writes what either lacks."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, final

import structlog
from redis.exceptions import ResponseError

from models.memories import MemoryFileError, read_card
from service.storage.memories import unavailable, unknown_memory
from service.storage.memories_redis_scripts import DELETE_AGAIN, REPAIR, RESTORE, WANT
from service.storage.memory_copies import MemoryCopies, is_field
from service.storage.memory_index import Version, parse_score
from service.storage.redis_client import (
    PREFIX,
    RedisClient,
    RedisUnavailableError,
    is_wrong_type,
)

INDEX = f"{PREFIX}memories"  # the `Version` of each file, by field: `id` or `owner/id`
DELETIONS = f"{PREFIX}memories:deleted"  # sorted set of fields by the revision of their deletion
WANTED = f"{PREFIX}memories:wanted"  # fields whose file a server with a good copy is to restore
FILE = f"{PREFIX}memory:"
PART = "memories"
_TYPES = {INDEX: "hash", DELETIONS: "zset", WANTED: "set"}
_KEYS = [INDEX, DELETIONS, WANTED]
_PATIENCE_S = 1.0
_AGAIN_S = 5.0  # after which a transfer that failed is tried again
_LOST_S = 30.0  # in which another server may restore what Redis lacks: each looks every 10 s


class _Failure(NamedTuple):
    """A version that could not be copied, and when to try again."""

    version: Version | None
    again: float


class _Shared(NamedTuple):
    """What Redis holds: versions and damaged entries by field, and what is wanted."""

    versions: dict[str, Version]
    damaged: dict[str, bytes]
    wanted: set[str]


@final
class MemorySync:
    """Keeps the copies of this server and Redis alike.

    A memory that Redis lacks was deleted if Redis or this server has a deletion of it in the same
    or a later revision; its copy is then deleted. Otherwise Redis has lost it, and it is restored
    from the copy, as is one that Redis has in an earlier revision. A script in Redis decides what
    is written to restore, and the later revision wins; so servers may restore side by side, in any
    order. Thread-safe.

    Args:
        root: folder of the copies.
        drop: called with the path of a copy that was replaced or deleted.
    """

    def __init__(self, link: RedisClient, root: Path, drop: Callable[[Path], None]) -> None:
        self._link, self._copies = link, MemoryCopies(root, drop)
        self._is_loaded = False
        self._unread = dict[str, _Failure]()  # not copied in their last version, so not served
        self._unsent = dict[str, float]()  # refused by Redis, and when to try again
        self._missing = dict[str, float]()  # last version neither in Redis nor here, and since when
        self._lock = threading.Lock()
        register = link.blocking_client.register_script
        self._restore_script, self._delete_again_script = register(RESTORE), register(DELETE_AGAIN)
        self._want_script, self._repair_script = register(WANT), register(REPAIR)
        link.add_restore(self._restore)

    def load(self) -> None:
        """Read the copies, once."""
        with self._lock:
            self._load()

    def follow(self) -> None:
        """Copy what is newer in Redis, restore what only this server has, and delete the copies of
        what was deleted. Without Redis, only check the copies."""
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return  # another thread is copying much, and the copies here are recent
        try:
            self._load()
            self._copies.index.touch()
            self._copies.check()
            self.run_repairing(self._merge)
        except RedisUnavailableError:
            return
        finally:
            self._lock.release()

    def is_served(self, field: str) -> bool:
        """Whether this server has a copy of the last version that it knows."""
        return field in self._copies.versions and field not in self._unread

    def require_served(self, field: str) -> None:
        """
        Raises:
            Problem: there is no such memory, or no copy of its last version here.
        """
        if self.is_served(field):
            return
        if field in self._unread or self._copies.index.get_revision(field) >= 0:
            raise unavailable(
                "This server has no copy of the memory now. The server log has the reason."
            )
        raise unknown_memory()

    def require_intact(self, field: str, raw: bytes) -> None:
        """
        Raises:
            MemoryFileError: this is not the content of the copy.
        """
        version = self._copies.versions.get(field)
        if version is None or hashlib.sha256(raw).hexdigest() != version.sha256:
            raise MemoryFileError("the copy was altered or replaced")

    def doubt(self, field: str) -> None:
        """Compare this copy with its digest on the next call of `follow`."""
        self._copies.doubt(field)

    def get_revision(self, field: str) -> int:
        """Return the last revision of a memory that this server knows, or -1."""
        version = self._copies.versions.get(field)
        known = self._copies.index.get_revision(field)
        return known if version is None else max(known, version.revision)

    def get_last_revision(self, field: str) -> int:
        """Return the last revision of a memory or of its deletion that this server knows, or -1."""
        return max(self.get_revision(field), self._copies.index.deletions.get(field, -1))

    def copy(self, field: str, raw: bytes, version: Version) -> None:
        """Write a copy of what is in Redis."""
        with self._lock:
            self._copy(field, raw, version)

    def delete_copy(self, field: str, revision: int) -> None:
        """Delete the copy of a memory that was deleted."""
        with self._lock:
            self._delete_copies({field: revision})

    def run_repairing(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call a function, and once more if keys of Redis had a wrong type. These are deleted
        before; what they held is restored from copies.

        Raises:
            RedisUnavailableError: Redis is unavailable, or refused a command.
        """
        try:
            return act(*args)
        except RedisUnavailableError as error:
            if not is_wrong_type(error):
                raise
        self._repair([(key.encode(), kind) for key, kind in _TYPES.items()])
        with self._link.guard(PART):
            fields: Any = self._link.sync_client.hkeys(INDEX)
        self._repair([(FILE.encode() + field, "string") for field in fields])
        return act(*args)

    def _load(self) -> None:
        if not self._is_loaded:
            self._copies.load()
            self._is_loaded = True

    def _restore(self) -> None:
        """Write what only this server has; called when Redis may have lost something."""
        with self._lock:
            self._load()
            self._copies.check()
            self.run_repairing(self._delete_again, self._copies.index.deletions)
            self.run_repairing(self._merge, False)

    def _merge(self, download: bool = True) -> None:
        """Compare the copies with what Redis holds.

        Args:
            download: copy what is newer in Redis; else look instead for files in Redis that have
                lost their end.
        """
        copies, shared = self._copies, self._read_shared()
        deletions = copies.index.deletions
        lost_deletions = {
            field: deletions[field]
            for field, version in shared.versions.items()
            if deletions.get(field, -1) >= version.revision
        }
        self._delete_again(lost_deletions)
        newer, lacking = dict[str, Version](), self._find_lacking(shared)
        self._note_missing(shared)
        for field in shared.versions.keys() - lost_deletions.keys():
            version, copy = shared.versions[field], copies.versions.get(field)
            if copy is None or copy.revision < version.revision:
                if field not in self._missing:  # else the last version may come yet
                    newer[field] = version
            elif copy.revision > version.revision or field in shared.wanted:
                lacking.append(field)
            elif copy != version:
                newer[field] = version  # Redis decides between two of one revision
        if not download:
            lacking += self._find_shortened(shared.versions.keys() - newer.keys())
        self._upload(dict.fromkeys(lacking))  # each once
        for field in self._unread.keys() - newer.keys():
            del self._unread[field]
        for field in shared.damaged.keys() - copies.versions.keys():
            self._unread[field] = _Failure(None, 0.0)
        if download:
            self._download(newer)

    def _read_shared(self) -> _Shared:
        with self._link.guard(PART):
            # No transaction: a Redis that is full refuses even to read in one.
            pipeline = self._link.sync_client.pipeline(transaction=False)
            pipeline.hgetall(INDEX)
            pipeline.smembers(WANTED)
            index, wanted = pipeline.execute()
        shared = _Shared({}, {}, {_text(field) for field in wanted})
        for raw_field, entry in index.items():
            field, version = _text(raw_field), Version.from_entry(entry)
            if not is_field(field):
                self._link.report_damaged(PART, f"{INDEX} {field}", "this is no id")
            elif version is None:
                self._link.report_damaged(PART, f"{INDEX} {field}", "this is no version")
                shared.damaged[field] = entry
            else:
                shared.versions[field] = version
        return shared

    def _find_lacking(self, shared: _Shared) -> list[str]:
        """Return the copies of what Redis has lost; delete those of what was deleted."""
        absent = sorted(self._copies.fields - shared.versions.keys())
        if not absent:
            return []
        with self._link.guard(PART):
            scores: Any = self._link.sync_client.zmscore(DELETIONS, absent)
        deleted, lacking = dict[str, int](), list[str]()
        for field, score in zip(absent, scores, strict=True):
            revision = parse_score(score)
            if score is not None and revision < 0:
                self._link.report_damaged(PART, f"{DELETIONS} {field}", "this is no revision")
            if revision >= self.get_revision(field):
                deleted[field] = revision
            elif field in self._copies.versions:
                lacking.append(field)
        self._delete_copies(deleted)
        return lacking

    def _find_shortened(self, fields: Iterable[str]) -> list[str]:
        """Return the copies whose file in Redis is missing or of another length."""
        sizes = self._copies.list_sizes(fields)
        with self._link.guard(PART):
            pipeline = self._link.sync_client.pipeline(transaction=False)
            for field in sizes:
                pipeline.strlen(FILE + field)
            lengths = pipeline.execute()
        return [
            field for field, length in zip(sizes, lengths, strict=True) if length != sizes[field]
        ]

    def _upload(self, fields: Iterable[str], damaged: bytes = b"") -> None:
        """Restore memories from the copies, unless Redis has them in a later revision.

        Args:
            damaged: an entry that is replaced in any case.
        """
        for field in fields:
            if time.monotonic() < self._unsent.get(field, 0.0):
                continue
            raw = self._copies.read(field)
            if raw is None:
                continue  # the next call copies it from Redis, or counts it as lost
            args = [field, self._copies.versions[field].to_entry(), raw, FILE, damaged]
            self._unsent.pop(field, None)
            if not self._is_accepted(self._restore_script, args, "memories restored"):
                self._unsent[field] = time.monotonic() + _AGAIN_S

    def _delete_again(self, deletions: dict[str, int]) -> None:
        """Delete what Redis has in a revision before its deletion."""
        if deletions:
            pairs = [part for field, revision in deletions.items() for part in (field, revision)]
            event = "deletions of memories repeated"
            self._is_accepted(self._delete_again_script, [FILE, *pairs], event)

    def _is_accepted(self, script: Any, args: list[Any], event: str) -> bool:
        """Run a script that restores memories or deletions; count and log them, or return False if
        Redis is full."""
        try:
            with self._link.guard(PART):
                number = script(_KEYS, args)
        except RedisUnavailableError as error:
            if not isinstance(error.__cause__, ResponseError) or is_wrong_type(error):
                raise
            return False
        if number:
            self._link.count("restored", PART, number)
            structlog.get_logger().warning(event, number=number)
        return True

    def _note_missing(self, shared: _Shared) -> None:
        """Note since when neither Redis nor this server has the last version that was known of a
        memory; count as lost what no other server has restored for some time."""
        copies, now, missing = self._copies, time.monotonic(), dict[str, float]()
        for field in copies.index.fields - shared.damaged.keys():
            versions = shared.versions.get(field), copies.versions.get(field)
            present = max((version.revision for version in versions if version), default=-1)
            if copies.index.get_revision(field) <= present:
                continue
            since = self._missing.get(field, now)
            if now - since < _LOST_S:
                missing[field] = since
                continue
            structlog.get_logger().error("memory lost", id=field)
            self._link.count("lost", PART, 1)
            copies.forget(field)
        self._missing = missing

    def _download(self, newer: dict[str, Version]) -> None:
        now = time.monotonic()
        for field, failure in self._unread.items():
            if field in newer and failure.version == newer[field] and now < failure.again:
                del newer[field]
        self._copies.expect(newer)
        for field, version in newer.items():
            copy = self._copies.versions.get(field)
            if copy is not None and copy.sha256 == version.sha256:
                self._copies.versions[field] = version
            else:
                self._fetch(field, version)

    def _fetch(self, field: str, version: Version) -> None:
        raw: Any = None
        try:
            with self._link.guard(PART):
                raw = self._link.blocking_client.get(FILE + field)
        except RedisUnavailableError as error:
            if not is_wrong_type(error):
                raise
        if isinstance(raw, bytes) and _is_memory(raw, version):
            self._copy(field, raw, version)
            return
        with self._link.guard(PART):
            entry: Any = self._link.sync_client.hget(INDEX, field)
            if entry is None or Version.from_entry(entry) != version:
                return  # it was replaced or deleted in between; the next call sees that
            self._want_script([INDEX, WANTED], [field, entry])
        self._link.report_damaged(PART, FILE + field, "it is missing, or its digest is wrong")
        self._unread[field] = _Failure(version, time.monotonic() + _AGAIN_S)
        copy = self._copies.versions.get(field)
        if copy is not None and copy.revision == version.revision:  # so the entry is damaged
            self._upload([field], entry)

    def _copy(self, field: str, raw: bytes, version: Version) -> None:
        """Write a copy; if the disk is full, try again on a later read."""
        copy, deleted = (
            self._copies.versions.get(field),
            self._copies.index.deletions.get(field, -1),
        )
        if deleted > version.revision or (copy is not None and copy.revision > version.revision):
            return  # another thread has copied a later version meanwhile
        self._copies.expect({field: version})
        if self._copies.write(field, version, raw):
            self._unread.pop(field, None)
        else:
            self._unread[field] = _Failure(version, time.monotonic() + _AGAIN_S)

    def _delete_copies(self, deleted: dict[str, int]) -> None:
        """Delete copies, but those in a revision after the deletion."""
        self._copies.delete(
            {
                field: revision
                for field, revision in deleted.items()
                if revision >= self.get_revision(field)
            }
        )

    def _repair(self, keys: list[tuple[bytes, str]]) -> None:
        """Delete the keys that have another type than this."""
        if keys:
            with self._link.guard(PART):
                names, kinds = [key for key, _ in keys], [kind for _, kind in keys]
                damaged: Any = self._repair_script(names, kinds)
            for i in damaged:
                key, kind = keys[i - 1]
                self._link.report_damaged(PART, _text(key), f"it is no {kind}")


def _is_memory(raw: bytes, version: Version) -> bool:
    """Whether this is the file of a memory in this version."""
    try:
        read_card(raw)
    except MemoryFileError:
        return False
    return hashlib.sha256(raw).hexdigest() == version.sha256


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
