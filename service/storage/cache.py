"""Cache of responses to equal requests.

A response is a function of the request and of the checkpoints or memories that it uses, since
noise comes from seeds. The key is the hash of both, so no entry ever has to be invalidated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import final

from service.payload import ResponsePayload

_OVERHEAD = 512  # bytes of an entry besides its payload
_SHARE = 4  # one payload may take a fourth of the cache


class ResponseCache(ABC):
    """Payloads by key; entries may be dropped at any time."""

    @abstractmethod
    async def get(self, key: bytes) -> ResponsePayload | None:
        """Return the payload of this key, if it is cached."""

    @abstractmethod
    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        """Store a payload, if it is small enough."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all payloads, overhead included."""


@final
class LocalCache(ResponseCache):
    """LRU cache in this process, of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max, self._size_bytes = max_bytes, 0
        self._answers: OrderedDict[bytes, ResponsePayload] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def can_store(self, answer: ResponsePayload) -> bool:
        """Whether the payload is small enough to be cached."""
        return _size(answer) * _SHARE <= self._max

    async def get(self, key: bytes) -> ResponsePayload | None:
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        if not self.can_store(answer) or key in self._answers:
            return
        self._answers[key] = answer
        self._size_bytes += _size(answer)
        while self._size_bytes > self._max:
            _, dropped = self._answers.popitem(last=False)
            self._size_bytes -= _size(dropped)


def _size(answer: ResponsePayload) -> int:
    return _OVERHEAD + answer.size_bytes
