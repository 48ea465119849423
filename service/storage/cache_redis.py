"""Response cache that all servers share, in Redis."""

from __future__ import annotations

import hashlib
import hmac
from typing import final

import orjson
from redis.exceptions import ResponseError

from service.payload import ResponsePayload
from service.storage.cache import LocalCache, ResponseCache
from service.storage.redis_client import (
    PREFIX,
    RedisClient,
    RedisUnavailableError,
    is_wrong_type,
)

_KEEP_S = 3600
_MAX_BYTES = 1 << 20  # larger payloads take longer to transfer than a request waits for Redis
_MAX_ENTRY_BYTES = _MAX_BYTES + (1 << 16)  # a longer one was not written here
_FORMAT = 2  # of entries; the first had no digest
_LENGTH_BYTES, _DIGEST_BYTES = 4, 32


class _DamagedEntryError(Exception):
    """The value is not what a server of this version wrote for this key."""


@final
class RedisCache(ResponseCache):
    """Looks in the cache of this process first, then in Redis, where entries stay for an hour.

    The size in Redis is bounded by its `maxmemory`: these keys expire, so with `volatile-lru` they
    are evicted first. No request waits for its payload to be written.

    An entry ends with a digest of its key and of all that is served from it. One that does not
    match, or is of another format, is deleted and reported, and the response is computed.

    Args:
        served: version and default settings; servers that differ in them share no entries.
    """

    def __init__(self, link: RedisClient, own: LocalCache, served: bytes = b"") -> None:
        self._link, self._own, self._served = link, own, served

    @property
    def size_bytes(self) -> int:
        return self._own.size_bytes

    async def get(self, key: bytes) -> ResponsePayload | None:
        if (payload := await self._own.get(key)) is not None:
            return payload
        try:
            answer = await self._fetch(self._hash(key))
        except RedisUnavailableError:
            return None
        if answer is not None:
            await self._own.put(key, answer)
        return answer

    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        await self._own.put(key, answer)
        if answer.size_bytes <= _MAX_BYTES and self._link.is_available:
            self._link.fire_and_forget(self._send(self._hash(key), answer))

    def _hash(self, key: bytes) -> bytes:
        return hashlib.sha256(self._served + key).digest()

    async def _fetch(self, key_hash: bytes) -> ResponsePayload | None:
        """Raises RedisUnavailableError."""
        name = _name(key_hash)
        with self._link.guard("cache"):
            try:
                # GET of a foreign value of half a gigabyte would take longer than the timeout.
                entry = await self._link.async_client.getrange(name, 0, _MAX_ENTRY_BYTES)
                assert isinstance(entry, bytes)
                return _read_entry(key_hash, entry) if entry else None  # empty where there is none
            except ResponseError as error:
                if not is_wrong_type(error):
                    raise
            except _DamagedEntryError:
                pass
            self._link.report_damaged("cache", key_hash.hex(), "it is not what a server wrote")
            await self._link.async_client.delete(name)
            return None

    async def _send(self, key_hash: bytes, answer: ResponsePayload) -> None:
        try:
            with self._link.guard("cache"):
                await self._link.async_client.set(
                    _name(key_hash), _write_entry(key_hash, answer), ex=_KEEP_S
                )
        except RedisUnavailableError:
            return


def _name(key_hash: bytes) -> bytes:
    return f"{PREFIX}answer:".encode() + key_hash


def _write_entry(key_hash: bytes, answer: ResponsePayload) -> bytes:
    """Serialize: length of the JSON head (4 bytes), head, document, file, digest (32 bytes)."""
    about = {
        "format": _FORMAT,
        "type": answer.media_type,
        "document_bytes": len(answer.document),
        "file_bytes": len(answer.file),
        "phases": answer.phases,
        "headers": answer.headers,
    }
    head = orjson.dumps(about)
    content = b"".join(
        (len(head).to_bytes(_LENGTH_BYTES), head, memoryview(answer.document), answer.file)
    )
    return content + _digest(key_hash, content)


def _read_entry(key_hash: bytes, entry: bytes) -> ResponsePayload:
    """Parse what `_write_entry` made.

    Raises:
        _DamagedEntryError: it is damaged, of another key or of another format.
    """
    view = memoryview(entry)
    content, digest = view[:-_DIGEST_BYTES], view[-_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(key_hash, content)):
        raise _DamagedEntryError
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    about = orjson.loads(content[_LENGTH_BYTES:start])
    if about.get("format") != _FORMAT:
        raise _DamagedEntryError
    end = start + about["document_bytes"]
    if len(content) != end + about["file_bytes"]:
        raise _DamagedEntryError
    return ResponsePayload(
        about["type"],
        bytes(content[start:end]),
        bytes(content[end:]),
        phases=tuple(about["phases"]),
        headers=tuple((name, value) for name, value in about["headers"]),
    )


def _digest(key_hash: bytes, content: bytes | memoryview) -> bytes:
    """An entry that is copied to another key does not match there."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=key_hash).digest()
