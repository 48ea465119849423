"""Stored memories that all servers share: in Redis, with a copy in files of each server."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from models.memories import MEMORY_FILE_SUFFIX
from service.errors import Problem
from service.storage.memories import ID, MemoryStore, unavailable, unknown_memory
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError

_INDEX = f"{PREFIX}memories"  # sha256 of each file, by owner and id
_BEGUN = f"{PREFIX}memories:begun"  # missing if Redis never had memories, or lost its data
_PATIENCE_S = 1.0
_AGAIN_S = 5.0  # after which a copy is tried again
_FILE = f"{PREFIX}memory:"
_UNLIMITED = 1 << 53  # the largest number that Lua counts exactly
_OWNER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # name of a key

# The limits are those of `MemoryStore._exceeded_limit`, and a refusal is a `StoreLimit`.
_PUT = """
local function owner_of(field)
  return string.match(field, '^(.*)/') or ''
end
local owner, own, own_bytes, bytes = owner_of(ARGV[1]), 0, #ARGV[3], #ARGV[3]
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name ~= ARGV[1] then
    local size = redis.call('STRLEN', ARGV[6] .. name)
    bytes = bytes + size
    if owner_of(name) == owner then own, own_bytes = own + 1, own_bytes + size end
  end
end
local free = tonumber(ARGV[5]) - bytes
if own >= tonumber(ARGV[4]) then return -1 end
if free < 0 then return -2 end
if owner ~= '' and own_bytes > free then return -3 end
redis.call('SET', ARGV[6] .. ARGV[1], ARGV[3])
redis.call('SET', KEYS[2], 1)
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""
_DELETE = """
redis.call('DEL', ARGV[2] .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
"""


class RedisMemoryStore(MemoryStore):
    """Stores memories in Redis; each server copies them to files before it reads them.

    While Redis is unavailable the copies can be read, but no memory can be stored.
    """

    def __init__(
        self, shipped: Path, own: Path, max_count: int, max_bytes: int, link: RedisClient
    ) -> None:
        # A separate folder: memories that a server stored without Redis are left alone.
        super().__init__(shipped, own.with_name(f"{own.name}-of-redis"), max_count, max_bytes)
        self._link, self._held = link, dict[str, str]()  # sha256 of the local copies, by field
        # sha256 of what could not be copied, and when to try again.
        self._failed = dict[str, tuple[str, float]]()
        self._following = threading.Lock()
        self._put_script = link.blocking_client.register_script(_PUT)
        self._delete_script = link.blocking_client.register_script(_DELETE)

    def prepare(self) -> None:
        super().prepare()
        for path in self._root.rglob(f"*{MEMORY_FILE_SUFFIX}") if self._root.is_dir() else ():
            with suppress(OSError):  # else it is read from Redis again
                self._held[self._field(path)] = hashlib.sha256(path.read_bytes()).hexdigest()

    def list_cards(self) -> Any:
        self._follow()
        return super().list_cards()

    def fingerprint(self) -> bytes:
        self._follow()
        return super().fingerprint()

    def open(self, name: str) -> Any:
        self._follow()
        try:
            return super().open(name)
        except Problem:
            if (
                ID.fullmatch(name)
                and self._field(self._own / f"{name}{MEMORY_FILE_SUFFIX}") in self._failed
            ):
                raise unavailable(
                    "This server cannot store a copy of the memory. The server log has the reason."
                ) from None
            raise

    def put(self, name: str, raw: bytes) -> bool:
        self.require_writable_id(name)
        field = self._field(self._own / f"{name}{MEMORY_FILE_SUFFIX}")
        digest = hashlib.sha256(raw).hexdigest()
        limits = (self._max_count, self._max_bytes)
        found = self._ask(self._put_script, field, digest, raw, *limits, _FILE)
        if found < 0:
            raise self.store_full_error(found)
        with self._following:
            self._copy(field, raw, digest)
        return found == 1

    def delete(self, name: str) -> None:
        self.require_writable_id(name)
        field = self._field(self._own / f"{name}{MEMORY_FILE_SUFFIX}")
        if not self._ask(self._delete_script, field, _FILE):
            raise unknown_memory()
        self._follow()

    def _mark(self, path: Path) -> object:
        """The same on every server."""
        with path.open("rb") as file:
            return self.read_card(file).sha256

    def _follow(self) -> None:
        """Copy what is new in Redis, and delete what is gone. If Redis has lost its data, as after
        a restart without persistence, upload the local copies instead."""
        if not self._following.acquire(timeout=_PATIENCE_S):
            return  # another thread is copying much, and the copies here are recent
        try:
            with self._link.guard("memories"):
                index, begun = self._index()
            if not begun and self._held:
                self._restore()
                return
            current = {_text(field): _text(digest) for field, digest in index.items()}
            for field, digest in current.items():
                if _is_field(field) and digest != self._held.get(field):
                    self._fetch(field, digest)
            for field in [field for field in self._held if field not in current]:
                self._remove(field)
            self._failed = {field: why for field, why in self._failed.items() if field in current}
        except RedisUnavailableError:
            return
        finally:
            self._following.release()

    def _index(self) -> tuple[dict[bytes, bytes], bool]:
        pipeline = self._link.sync_client.pipeline()
        pipeline.hgetall(_INDEX)
        pipeline.exists(_BEGUN)
        index, begun = pipeline.execute()
        return index, bool(begun)

    def _fetch(self, field: str, digest: str) -> None:
        failed, again = self._failed.get(field, ("", 0.0))
        if failed == digest and time.monotonic() < again:
            return
        with self._link.guard("memories"):
            raw = self._link.blocking_client.get(_FILE + field)
        # Otherwise it was replaced or deleted in between; the next call sees that.
        if isinstance(raw, bytes) and hashlib.sha256(raw).hexdigest() == digest:
            self._copy(field, raw, digest)

    def _copy(self, field: str, raw: bytes, digest: str) -> None:
        """Write a local copy. If the disk is full, delete the old copy and try again on a later
        read."""
        path = self._root / f"{field}{MEMORY_FILE_SUFFIX}"
        try:
            with self._writing:
                self._write(path, raw)
        except OSError as error:
            structlog.get_logger().error("memory not copied", reason=f"{path}: {error}")
            self._failed[field] = digest, time.monotonic() + _AGAIN_S
            self._remove(field)
        else:
            self._held[field] = digest
            self._failed.pop(field, None)

    def _remove(self, field: str) -> None:
        path = self._root / f"{field}{MEMORY_FILE_SUFFIX}"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            structlog.get_logger().error("memory not deleted", reason=f"{path}: {error}")
        self._drop(path)
        self._held.pop(field, None)

    def _restore(self) -> None:
        # What was stored once is stored again: limits may be lower now, and shares depend on the
        # order in which keys stored.
        limits = (_UNLIMITED, _UNLIMITED)
        for field in list(self._held):
            raw = (self._root / f"{field}{MEMORY_FILE_SUFFIX}").read_bytes()
            digest = hashlib.sha256(raw).hexdigest()
            with self._link.guard("memories"):
                self._put_script(keys=[_INDEX, _BEGUN], args=[field, digest, raw, *limits, _FILE])

    def _ask(self, script: Any, *args: Any) -> Any:
        try:
            with self._link.guard("memories"):
                return script(keys=[_INDEX, _BEGUN], args=args)
        except RedisUnavailableError:
            raise unavailable(
                "Redis is unavailable, so no memory can be stored or deleted. Retry after 1 s."
            ) from None

    def _field(self, path: Path) -> str:
        return str(path.relative_to(self._root)).removesuffix(MEMORY_FILE_SUFFIX)


def _is_field(field: str) -> bool:
    """Whether this is `id` or `owner/id`; nothing else may become a path."""
    owner, slash, name = field.rpartition("/")
    return bool(ID.fullmatch(name)) and (not slash or bool(_OWNER.fullmatch(owner)))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
