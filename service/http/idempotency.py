"""`Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): one key, one request."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from service.auth.keys import get_caller
from service.errors import Problem

HEADER = "idempotency-key"
_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-\[\]-~]{1,255})')


def idempotency_key(request: Request) -> str | None:
    """Return the key of a request, if it has one: a structured-field string, or unquoted.

    The name of the API key is put before it, so that the keys of two clients never collide.

    Raises:
        Problem: a malformed key, or several.
    """
    sent = request.headers.getlist(HEADER)
    if not sent:
        return None
    match = _KEY.fullmatch(sent[0].strip())
    if len(sent) > 1 or match is None:
        rule = (
            "Idempotency-Key must appear once, as a quoted string of 1 to 255 printable characters."
        )
        raise Problem("bad-request", rule)
    owner = get_caller(request.scope).name
    return f"{owner}\n{match[1] or match[2]}" if owner else match[1] or match[2]


class IdempotencyKeys:
    """Keys of synchronous requests, each for `keep_s`; beyond `max_keys` the oldest of the API key
    that has most is dropped.

    No responses are stored: a repeated request is computed again, or comes from the cache, with
    the same result, since requests change nothing. (The job store has the keys of jobs.)
    """

    def __init__(self, keep_s: float, max_keys: int = 10_000) -> None:
        self._keep_s, self._max_keys = keep_s, max_keys
        # By API key: fingerprints, and when they expire, the oldest first.
        self._used: dict[str, OrderedDict[str, tuple[bytes, float]]] = {}
        self._busy: set[str] = set()

    @contextmanager
    def reserve(self, key: str, fingerprint: bytes) -> Iterator[None]:
        """Mark the key as used by a request that runs while the context lasts.

        Args:
            key: from `idempotency_key`, with the name of the API key before it.

        Raises:
            Problem: `key-reused` if the key was sent with a request of another fingerprint,
                `key-in-use` if such a request is still running.
        """
        self._drop_old()
        used = self._used.setdefault(key.rpartition("\n")[0], OrderedDict())
        first, _ = used.get(key, (fingerprint, 0.0))
        if first != fingerprint:
            raise Problem(
                "key-reused",
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "request.",
            )
        if key in self._busy:
            detail = "A request with this Idempotency-Key is still running. Retry after 1 s."
            raise Problem("key-in-use", detail, headers={"retry-after": "1"})
        used.setdefault(key, (fingerprint, time.monotonic() + self._keep_s))
        self._busy.add(key)
        try:
            yield
        finally:
            self._busy.remove(key)

    def _drop_old(self) -> None:
        now = time.monotonic()
        for owner, used in list(self._used.items()):
            while used and next(iter(used.values()))[1] <= now:
                used.popitem(last=False)
            if not used:
                del self._used[owner]
        while sum(map(len, self._used.values())) >= self._max_keys:
            max(self._used.values(), key=len).popitem(last=False)
