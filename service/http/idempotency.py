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
    """The key of a request, if it has one: a string of structured fields, or without quotes.

    Before it stands whose it is, so that nobody meets the key of another.

    Raises:
        Problem: a key that is none, or several.
    """
    sent = request.headers.getlist(HEADER)
    if not sent:
        return None
    found = _KEY.fullmatch(sent[0].strip())
    if len(sent) > 1 or found is None:
        rule = (
            "Idempotency-Key must appear once, as a quoted string of 1 to 255 printable characters."
        )
        raise Problem("bad-request", rule)
    owner = get_caller(request.scope).name
    return f"{owner}\n{found[1] or found[2]}" if owner else found[1] or found[2]


class IdempotencyKeys:
    """Keys of requests that are answered at once, each for `keep_s`; at most `most`, the oldest go
    first.

    They keep no answers: a request that comes again is answered again, from the cache or anew, and
    the same, for it changes nothing. (The keys of jobs are with their jobs.)
    """

    def __init__(self, keep_s: float, most: int = 10_000) -> None:
        self._keep_s, self._most = keep_s, most
        self._owners: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._busy: set[str] = set()

    @contextmanager
    def reserve(self, key: str, fingerprint: bytes) -> Iterator[None]:
        """The key belongs to a request, which is being answered while the context lasts.

        Raises:
            Problem: `key-reused` where it belongs to a request of another fingerprint,
                `key-in-use` where that is being answered.
        """
        self._drop_old()
        owner, _ = self._owners.get(key, (fingerprint, 0.0))
        if owner != fingerprint:
            raise Problem(
                "key-reused",
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "request.",
            )
        if key in self._busy:
            detail = "A request with this Idempotency-Key is still running. Retry after 1 s."
            raise Problem("key-in-use", detail, headers={"retry-after": "1"})
        self._owners.setdefault(key, (fingerprint, time.monotonic() + self._keep_s))
        self._busy.add(key)
        try:
            yield
        finally:
            self._busy.remove(key)

    def _drop_old(self) -> None:
        while self._owners:
            key, (_, end) = next(iter(self._owners.items()))
            if len(self._owners) < self._most and end > time.monotonic():
                break
            del self._owners[key]
