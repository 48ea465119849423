"""The values of stored memories in Redis: read, checked, and restored by scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, final

import structlog
from redis.exceptions import ResponseError

from models.memories import MemoryFileError, read_card
from service.storage.memories_redis_scripts import DELETE_AGAIN, REPAIR, RESTORE, WANT
from service.storage.memory_copies import is_field
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


class SharedMemories(NamedTuple):
    """What Redis holds: versions and damaged entries by field, and what is wanted."""

    versions: dict[str, Version]
    damaged: dict[str, bytes]
    wanted: set[str]


@final
class MemoryValues:
    """Memories as Redis holds them. What no server wrote is reported as damaged.

    All methods raise RedisUnavailableError if Redis is unavailable, or refuses a command.
    """

    def __init__(self, link: RedisClient) -> None:
        self._link = link
        register = link.blocking_client.register_script
        self._restore_script, self._delete_again_script = register(RESTORE), register(DELETE_AGAIN)
        self._want_script, self._repair_script = register(WANT), register(REPAIR)

    def read(self) -> SharedMemories:
        """Read all versions."""
        with self._link.guard(PART):
            # No transaction: a Redis that is full refuses even to read in one.
            pipeline = self._link.sync_client.pipeline(transaction=False)
            pipeline.hgetall(INDEX)
            pipeline.smembers(WANTED)
            index, wanted = pipeline.execute()
        shared = SharedMemories({}, {}, {_text(field) for field in wanted})
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

    def read_deletions(self, fields: list[str]) -> dict[str, int]:
        """Return the revisions of the deletions of those fields that were deleted."""
        if not fields:
            return {}
        with self._link.guard(PART):
            scores: Any = self._link.sync_client.zmscore(DELETIONS, fields)
        deleted = dict[str, int]()
        for field, score in zip(fields, scores, strict=True):
            revision = parse_score(score)
            if revision >= 0:
                deleted[field] = revision
            elif score is not None:
                self._link.report_damaged(PART, f"{DELETIONS} {field}", "this is no revision")
        return deleted

    def read_sizes(self, fields: Iterable[str]) -> dict[str, int]:
        """Return the sizes of files in bytes; 0 where there is none."""
        fields = list(fields)
        with self._link.guard(PART):
            pipeline = self._link.sync_client.pipeline(transaction=False)
            for field in fields:
                pipeline.strlen(FILE + field)
            return dict(zip(fields, pipeline.execute(), strict=True))

    def read_file(self, field: str, version: Version) -> bytes | None:
        """Return the file of a memory, or None if it is not that of this version."""
        try:
            with self._link.guard(PART):
                raw: Any = self._link.blocking_client.get(FILE + field)
        except RedisUnavailableError as error:
            if not is_wrong_type(error):
                raise
            return None
        return raw if isinstance(raw, bytes) and _is_memory(raw, version) else None

    def want(self, field: str, version: Version) -> bytes | None:
        """Ask servers with a good copy to restore the file of this version. Return its entry, or
        None if it was replaced or deleted meanwhile."""
        with self._link.guard(PART):
            entry: Any = self._link.sync_client.hget(INDEX, field)
            if entry is None or Version.from_entry(entry) != version:
                return None
            self._want_script([INDEX, WANTED], [field, entry])
        self._link.report_damaged(PART, FILE + field, "it is missing, or its digest is wrong")
        return entry

    def restore(self, field: str, version: Version, raw: bytes, damaged: bytes = b"") -> bool:
        """Write a memory, unless Redis has it in a later revision; False if Redis is full.

        Args:
            damaged: an entry that is replaced in any case.
        """
        args = [field, version.to_entry(), raw, FILE, damaged]
        return self._is_accepted(self._restore_script, args, "memories restored")

    def delete_again(self, deletions: dict[str, int]) -> None:
        """Delete what Redis has in a revision before its deletion."""
        if deletions:
            pairs = [part for field, revision in deletions.items() for part in (field, revision)]
            event = "deletions of memories repeated"
            self._is_accepted(self._delete_again_script, [FILE, *pairs], event)

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
