"""Answers that any server gave before."""

from __future__ import annotations

import hashlib
from typing import final

import orjson

from service.payload import ResponsePayload
from service.storage.cache import LocalCache, ResponseCache
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError

_KEEP_S, _MOST_BYTES = 3600, 1 << 20  # what is larger is not moved in time


@final
class RedisCache(ResponseCache):
    """This process's own answers first, then those that all have in Redis, for an hour.

    What is in Redis is bounded by its `maxmemory`: these keys have an end, so with
    `volatile-lru` they go first. No request waits until its answer is there.

    Args:
        served: by what, beside the models: servers that would answer otherwise share nothing.
    """

    def __init__(self, link: RedisClient, own: LocalCache, served: bytes = b"") -> None:
        self._link, self._own, self._served = link, own, served

    @property
    def size_bytes(self) -> int:
        return self._own.size_bytes

    async def get(self, key: bytes) -> ResponsePayload | None:
        if (found := await self._own.get(key)) is not None:
            return found
        try:
            with self._link.guard("cache"):
                kept = await self._link.async_client.get(self._name(key))
        except RedisUnavailableError:
            return None
        if kept is None or (answer := _read(key, kept)) is None:
            return None
        await self._own.put(key, answer)
        return answer

    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        await self._own.put(key, answer)
        if answer.size_bytes <= _MOST_BYTES and self._link.is_available:
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
    """A JSON object with its length before it, then what is told and the file."""
    about = {
        "key": key.hex(),
        "type": answer.media_type,
        "told": len(answer.document),
        "phases": answer.phases,
        "headers": answer.headers,
    }
    head = orjson.dumps(about)
    return b"".join((len(head).to_bytes(4), head, answer.document, answer.file))


def _read(key: bytes, kept: bytes | str) -> ResponsePayload | None:
    """The answer of this key, or None where something else stands there."""
    assert isinstance(kept, bytes)
    try:
        start = 4 + int.from_bytes(kept[:4])
        about = orjson.loads(kept[4:start])
        if about["key"] != key.hex():  # whatever mixed them up: nobody gets what another asked for
            return None
        end = start + about["told"]
        told, phases = kept[start:end], tuple(map(str, about["phases"]))
        if len(told) != about["told"] or (told and told[:1] + told[-1:] != b"{}"):
            return None
        headers = tuple((str(name), str(value)) for name, value in about["headers"])
        return ResponsePayload(str(about["type"]), told, kept[end:], phases=phases, headers=headers)
    except (ValueError, KeyError, TypeError):
        return None
