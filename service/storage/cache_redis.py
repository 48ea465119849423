"""Response cache that all servers share, in Redis."""

from __future__ import annotations

import hashlib
from typing import final

import orjson

from service.payload import ResponsePayload
from service.storage.cache import LocalCache, ResponseCache
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError

_KEEP_S = 3600
_MAX_BYTES = 1 << 20  # larger payloads take longer to transfer than a request waits for Redis


@final
class RedisCache(ResponseCache):
    """Looks in the cache of this process first, then in Redis, where entries stay for an hour.

    The size in Redis is bounded by its `maxmemory`: these keys expire, so with `volatile-lru` they
    are evicted first. No request waits for its payload to be written.

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
            with self._link.guard("cache"):
                stored = await self._link.async_client.get(self._name(key))
        except RedisUnavailableError:
            return None
        if stored is None or (answer := _read(key, stored)) is None:
            return None
        await self._own.put(key, answer)
        return answer

    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        await self._own.put(key, answer)
        if answer.size_bytes <= _MAX_BYTES and self._link.is_available:
            self._link.fire_and_forget(self._send(key, answer))

    async def _send(self, key: bytes, answer: ResponsePayload) -> None:
        try:
            with self._link.guard("cache"):
                await self._link.async_client.set(
                    self._name(key), _written(key, answer), ex=_KEEP_S, nx=True
                )
        except RedisUnavailableError:
            return

    def _name(self, key: bytes) -> bytes:
        return f"{PREFIX}answer:".encode() + hashlib.sha256(self._served + key).digest()


def _written(key: bytes, answer: ResponsePayload) -> bytes:
    """Serialize: length of the JSON head (4 bytes), head, document, file."""
    about = {
        "key": key.hex(),
        "type": answer.media_type,
        "told": len(answer.document),
        "phases": answer.phases,
        "headers": answer.headers,
    }
    head = orjson.dumps(about)
    return b"".join((len(head).to_bytes(4), head, answer.document, answer.file))


def _read(key: bytes, stored: bytes | str) -> ResponsePayload | None:
    """Parse what `_written` made; None if it is damaged or belongs to another key."""
    assert isinstance(stored, bytes)
    try:
        start = 4 + int.from_bytes(stored[:4])
        header = orjson.loads(stored[4:start])
        if header["key"] != key.hex():  # never return the payload of another request
            return None
        end = start + header["told"]
        document, phases = stored[start:end], tuple(map(str, header["phases"]))
        if len(document) != header["told"] or (document and document[:1] + document[-1:] != b"{}"):
            return None
        headers = tuple((str(name), str(value)) for name, value in header["headers"])
        media_type = str(header["type"])
        return ResponsePayload(media_type, document, stored[end:], phases=phases, headers=headers)
    except (ValueError, KeyError, TypeError):
        return None
