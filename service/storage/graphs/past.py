"""What a server remembers of the past of a graph in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import final

from service.storage.graphs.stored_graph import ToScore

MAX_DIGESTS = 65_536
_DIGEST_BYTES = 32
_CHANGE_BYTES = 4 << 20  # of updates that can be written again
_MAX_CHANGES = 16_384


@dataclass(frozen=True)
class PastChange:
    """An update that led to a revision, and what of it is to be scored."""

    revision: int
    digest: str
    update: bytes
    to_score: ToScore


@final
class GraphPast:
    """Digests of the last revisions, and the last updates as they were logged.

    By the digests a server sees whether what Redis has now is older than what it holds; with the
    updates it can write them again. They are bounded in number and bytes.
    """

    def __init__(self, revision: int, digest: str) -> None:
        self._first, self._digests = revision, bytearray(bytes.fromhex(digest))
        self._changes = deque[PastChange]()
        self._bytes = 0

    @property
    def first(self) -> int:
        """The first revision whose digest is remembered."""
        return self._first

    @property
    def revision(self) -> int:
        """The last one."""
        return self._first + len(self._digests) // _DIGEST_BYTES - 1

    @property
    def nbytes(self) -> int:
        return len(self._digests) + self._bytes

    def get(self, revision: int) -> str | None:
        """Return the digest of a revision; None if it is not remembered."""
        begin = _DIGEST_BYTES * (revision - self._first)
        if begin < 0 or begin >= len(self._digests):
            return None
        return self._digests[begin : begin + _DIGEST_BYTES].hex()

    def add(self, change: PastChange) -> None:
        """Add the next revision."""
        self._add_digest(change.digest)
        self._changes.append(change)
        self._bytes += len(change.update)
        while self._bytes > _CHANGE_BYTES or len(self._changes) > _MAX_CHANGES:
            self._bytes -= len(self._changes.popleft().update)

    def replace(self, revision: int, digest: str, replaces: str) -> GraphPast:
        """Return the past of a graph that took the place of this one, or of one with the digest
        `replaces`."""
        if not replaces or self.get(revision - 1) != replaces or revision - 1 != self.revision:
            return GraphPast.from_replaced(revision, digest, replaces)
        past = GraphPast(revision, digest)
        past._first, past._digests = self._first, bytearray(self._digests)
        past._add_digest(digest)
        return past

    @staticmethod
    def from_replaced(revision: int, digest: str, replaces: str) -> GraphPast:
        """Return the past of a graph that took the place of one with the digest `replaces`; blank
        if there was none."""
        if not replaces:
            return GraphPast(revision, digest)
        past = GraphPast(revision - 1, replaces)
        past._add_digest(digest)
        return past

    def list_changes(self, after: int = 0) -> list[PastChange]:
        """Return the remembered changes since a revision."""
        return [change for change in self._changes if change.revision > after]

    def find_common(self, other: GraphPast) -> int | None:
        """Return the last revision that is in both, None if they have none."""
        last = min(self.revision, other.revision)
        for revision in range(last, max(self._first, other._first) - 1, -1):
            if self.get(revision) == other.get(revision):
                return revision
        return None

    def _add_digest(self, digest: str) -> None:
        self._digests += bytes.fromhex(digest)
        if len(self._digests) > 2 * MAX_DIGESTS * _DIGEST_BYTES:  # seldom, as it copies
            del self._digests[: MAX_DIGESTS * _DIGEST_BYTES]
            self._first += MAX_DIGESTS
