"""Compares the memories in Redis with a server's copies, and writes what either lacks."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, final

import structlog

from models.memories import MemoryFileError
from service.storage.memories import unavailable, unknown_memory
from service.storage.memory_copies import MemoryCopies
from service.storage.memory_index import Version
from service.storage.memory_values import PART, MemoryValues, SharedMemories
from service.storage.redis_client import RedisClient, RedisUnavailableError

_PATIENCE_S = 1.0
_AGAIN_S = 5.0  # after which a transfer that failed is tried again
_LOST_S = 30.0  # in which another server may restore what Redis lacks: each looks every 10 s


class _Failure(NamedTuple):
    """A version that could not be copied, and when to try again."""

    version: Version | None
    again: float


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

    def __init__(
        self, link: RedisClient, values: MemoryValues, root: Path, drop: Callable[[Path], None]
    ) -> None:
        self._link, self._values, self._copies = link, values, MemoryCopies(root, drop)
        self._is_loaded = False
        self._unread = dict[str, _Failure]()  # not copied in their last version, so not served
        self._unsent = dict[str, float]()  # refused by Redis, and when to try again
        self._missing = dict[str, float]()  # last version neither in Redis nor here, and since when
        self._lock = threading.Lock()
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
            self._values.run_repairing(self._merge)
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

    def _load(self) -> None:
        if not self._is_loaded:
            self._copies.load()
            self._is_loaded = True

    def _restore(self) -> None:
        """Write what only this server has; called when Redis may have lost something."""
        with self._lock:
            self._load()
            self._missing.clear()  # other servers restore from now on too
            self._copies.check()
            self._values.run_repairing(self._values.delete_again, self._copies.index.deletions)
            self._values.run_repairing(self._merge, False)

    def _merge(self, download: bool = True) -> None:
        """Compare the copies with what Redis holds.

        Args:
            download: copy what is newer in Redis; else look instead for files in Redis that have
                lost their end.
        """
        copies, shared = self._copies, self._values.read()
        deletions = copies.index.deletions
        lost_deletions = {
            field: deletions[field]
            for field, version in shared.versions.items()
            if deletions.get(field, -1) >= version.revision
        }
        self._values.delete_again(lost_deletions)
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

    def _find_lacking(self, shared: SharedMemories) -> list[str]:
        """Return the copies of what Redis has lost; delete those of what was deleted."""
        absent = sorted(self._copies.fields - shared.versions.keys())
        deletions = self._values.read_deletions(absent)
        deleted, lacking = dict[str, int](), list[str]()
        for field in absent:
            if deletions.get(field, -1) >= self.get_revision(field):
                deleted[field] = deletions[field]
            elif field in self._copies.versions:
                lacking.append(field)
        self._delete_copies(deleted)
        return lacking

    def _find_shortened(self, fields: Iterable[str]) -> list[str]:
        """Return the copies whose file in Redis is missing or of another length."""
        sizes = self._copies.list_sizes(fields)
        shared = self._values.read_sizes(sizes)
        return [field for field in sizes if shared[field] != sizes[field]]

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
            self._unsent.pop(field, None)
            if not self._values.restore(field, self._copies.versions[field], raw, damaged):
                self._unsent[field] = time.monotonic() + _AGAIN_S

    def _note_missing(self, shared: SharedMemories) -> None:
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
        raw = self._values.read_file(field, version)
        if raw is not None:
            self._copy(field, raw, version)
            return
        entry = self._values.want(field, version)
        if entry is None:
            return  # the next call sees what it is now
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
