"""Stored memories that all servers share: in Redis, with a copy in files of each server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.memories import MEMORY_FILE_SUFFIX, Memory, MemoryCard, MemoryFileError, load_memory
from service.storage.memories import ID, MemoryStore, unavailable, unknown_memory
from service.storage.memories_redis_scripts import LATER, PARSE
from service.storage.memory_copies import claim_folder
from service.storage.memory_index import KEEP_DELETIONS, KEEP_DELETIONS_MS, Version
from service.storage.memory_sync import MemorySync
from service.storage.memory_values import DELETIONS, FILE, INDEX, PART, WANTED, MemoryValues
from service.storage.redis_client import HISTORY, RedisClient, RedisUnavailableError
from service.storage.redis_server_id import RedisReplacedError

_REPLACED = -10  # answer of a script that met another history

# Redis does not undo what a script wrote, so every key is read before the first write. The limits
# are those of `MemoryStore._exceeded_limit`, and a refusal is a `StoreLimit`.
_PUT = (
    f"{PARSE}{LATER}"
    + """
local function owner_of(field)
  return string.match(field, '^(.*)/') or ''
end
if ARGV[7] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[7] then return -10 end
local _, latest = parse(redis.call('HGET', KEYS[1], ARGV[1]))
local deleted = parse_score(redis.call('ZSCORE', KEYS[2], ARGV[1]))
redis.call('SCARD', KEYS[4])
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
local revision = later_than(latest, deleted, tonumber(ARGV[8]))
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[4], ARGV[1])
local new = redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. revision)
return {new, tonumber(revision)}
"""
)
# Returns the revision of the deletion, or 0 if there is no such memory.
_DELETE = (
    f"{PARSE}{LATER}"
    + """
if ARGV[3] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[3] then return -10 end
local entry, known = redis.call('HGET', KEYS[1], ARGV[1]), tonumber(ARGV[4])
local deleted = parse_score(redis.call('ZSCORE', KEYS[2], ARGV[1]))
redis.call('SCARD', KEYS[4])
if not entry and known < 0 then return 0 end
-- Deleted since this server knew of it, as by the same command, whose reply was lost.
if not entry and deleted > known then return deleted end
local _, latest = parse(entry)
local revision = later_than(latest, deleted, known)
redis.call('DEL', ARGV[2] .. ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('ZADD', KEYS[2], revision, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. (revision - ARGV[5]))
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - ARGV[6])
return tonumber(revision)
"""
)


class RedisMemoryStore(MemoryStore):
    """Stores memories in Redis; each server copies them to files before it reads them.

    While Redis is unavailable the copies can be read, but no memory can be stored. `MemorySync`
    says what happens to the copies of what Redis lacks.
    """

    def __init__(
        self, shipped: Path, own: Path, max_count: int, max_bytes: int, link: RedisClient
    ) -> None:
        # A separate folder: memories that a server stored without Redis are left alone.
        copies = claim_folder(own.with_name(f"{own.name}-of-redis"))
        super().__init__(shipped, copies, max_count, max_bytes)
        self._link, self._values = link, MemoryValues(link)
        self._sync = MemorySync(link, self._values, self._root, self._drop)
        self._put_script = link.blocking_client.register_script(_PUT)
        self._delete_script = link.blocking_client.register_script(_DELETE)

    def prepare(self) -> None:
        super().prepare()
        self._sync.load()

    def follow(self) -> None:
        self._sync.follow()

    def list_cards(self) -> Any:
        self._sync.follow()
        return super().list_cards()

    def fingerprint(self) -> bytes:
        self._sync.follow()
        return super().fingerprint()

    def _open(self, name: str) -> Any:
        self._sync.follow()
        if ID.fullmatch(name) and not (self._shipped / f"{name}{MEMORY_FILE_SUFFIX}").is_file():
            self._sync.require_served(self._own_field(name))
        return super()._open(name)

    def _open_intact(self, name: str) -> Any:
        return self._try_twice(super()._open_intact, name)

    def _load(self, name: str) -> tuple[MemoryCard, Memory]:
        return self._try_twice(super()._load, name)

    def _try_twice(self, read: Callable[[str], Any], name: str) -> Any:
        try:
            return read(name)
        except MemoryFileError:
            self._sync.doubt(self._own_field(name))  # so that it is read from Redis again
        return read(name)

    def put(self, name: str, raw: bytes) -> bool:
        self.require_writable_id(name)
        field = self._own_field(name)
        digest = hashlib.sha256(raw).hexdigest()
        limits = (self._max_count, self._max_bytes)
        known = self._link.history, self._sync.get_last_revision(field)
        answer = self._ask(self._put_script, field, digest, raw, *limits, FILE, *known)
        if isinstance(answer, int):
            raise self.store_full_error(answer)
        is_new, revision = answer
        self._sync.copy(field, raw, Version(digest, revision))
        return is_new == 1

    def delete(self, name: str) -> None:
        self.require_writable_id(name)
        self._sync.follow()  # so that one that another server deleted is unknown here too
        field = self._own_field(name)
        known = self._link.history, self._sync.get_revision(field)
        bounds = KEEP_DELETIONS_MS, KEEP_DELETIONS
        revision = self._ask(self._delete_script, field, FILE, *known, *bounds)
        if not revision:
            raise unknown_memory()
        self._sync.delete_copy(field, revision)

    def _list_files(self, folder: Path) -> list[Path]:
        files = super()._list_files(folder)
        if folder == self._shipped:
            return files
        return [path for path in files if self._sync.is_served(self._field(path))]

    def _decode(self, path: Path, raw: bytes) -> tuple[MemoryCard, Memory]:
        if path.is_relative_to(self._root):
            self._sync.require_intact(self._field(path), raw)
        return load_memory(raw)

    def _mark(self, path: Path) -> object:
        """The same on every server."""
        with path.open("rb") as file:
            return self.read_card(file).sha256

    def _ask(self, script: Any, *args: Any) -> Any:
        def ask() -> Any:
            with self._link.guard(PART):
                answer = script([INDEX, DELETIONS, HISTORY, WANTED], args)
                if answer == _REPLACED:
                    raise RedisReplacedError("Redis has lost what it held")
            return answer

        try:
            return self._values.run_repairing(ask)
        except RedisUnavailableError:
            raise unavailable(
                "Redis is unavailable, so no memory can be stored or deleted. Retry after 1 s."
            ) from None

    def _own_field(self, name: str) -> str:
        return self._field(self._own / f"{name}{MEMORY_FILE_SUFFIX}")

    def _field(self, path: Path) -> str:
        return str(path.relative_to(self._root)).removesuffix(MEMORY_FILE_SUFFIX)
