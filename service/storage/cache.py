"""Answers that were given before, for whoever asks the same again.

Every answer is a function of the request and of what it stands on, checkpoints or memories: noise
comes from seeds. So the key is the hash of both, and nothing has to be invalidated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import final

from service.payload import ResponsePayload

_OVERHEAD = 512  # bytes of an entry beside its answer
_SHARE = 4  # of the cache that one answer may take


class ResponseCache(ABC):
    """Answers by key, some of them, for some time."""

    @abstractmethod
    async def get(self, key: bytes) -> ResponsePayload | None:
        """The answer of this key, if it is held."""

    @abstractmethod
    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        """Hold an answer, if there is room for it."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What the answers take."""


@final
class LocalCache(ResponseCache):
    """In this process, in at most `max_bytes`; what was not asked for the longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max, self._held = max_bytes, 0
        self._answers: OrderedDict[bytes, ResponsePayload] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._held

    def can_store(self, answer: ResponsePayload) -> bool:
        """Is it small enough to be held?"""
        return _size(answer) * _SHARE <= self._max

    async def get(self, key: bytes) -> ResponsePayload | None:
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    async def put(self, key: bytes, answer: ResponsePayload) -> None:
        if not self.can_store(answer) or key in self._answers:
            return
        self._answers[key] = answer
        self._held += _size(answer)
        while self._held > self._max:
            _, dropped = self._answers.popitem(last=False)
            self._held -= _size(dropped)


def _size(answer: ResponsePayload) -> int:
    return _OVERHEAD + answer.size_bytes
