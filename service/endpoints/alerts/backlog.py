"""Nodes of a watched graph that wait to be scored."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import final

from service.storage.graphs import ChangeKey
from service.validation.ids import NodeId


@final
class NodeQueue:
    """Nodes to be scored, in the order in which they were added; one that waits already keeps its
    place, so that many changes cost one score, and the first nodes are not put off by them."""

    def __init__(self) -> None:
        self._waiting = OrderedDict[NodeId, None]()
        self._added = self._left = 0  # how many nodes came and went
        self._ends = deque[tuple[int, ChangeKey]]()  # `_left` at which one is finished

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether no node waits and no revision is unfinished."""
        return not self._ends

    @property
    def unfinished(self) -> set[ChangeKey]:
        """Revisions that are not finished."""
        return {key for _, key in self._ends}

    def add(self, node_ids: Iterable[NodeId], revisions: Sequence[ChangeKey]) -> None:
        """Add what depends on some revisions."""
        before = len(self._waiting)
        self._waiting.update(dict.fromkeys(node_ids))
        self._added += len(self._waiting) - before
        self._ends.extend((self._added, revision) for revision in revisions)

    def list_finished(self, count: int) -> list[ChangeKey]:
        """Return the revisions that are finished once the next `count` nodes are scored."""
        return [revision for end, revision in self._ends if end <= self._left + count]

    def remove(self, count: int) -> None:
        """Remove the next `count` nodes, which are scored."""
        for _ in range(count):
            self._waiting.popitem(last=False)
        self._left += count
        while self._ends and self._ends[0][0] <= self._left:
            self._ends.popleft()


@final
class Backlog:
    """What waits of one graph: all nodes since it was stored, and what depends on changes. They
    take turns, so that a change is scored soon even if a large graph was stored just now."""

    def __init__(self) -> None:
        self.whole, self.changes = NodeQueue(), NodeQueue()
        self._next = self.changes

    def __len__(self) -> int:
        return len(self.whole) + len(self.changes)

    @property
    def unfinished(self) -> set[ChangeKey]:
        """Revisions whose changes are in it."""
        return self.whole.unfinished | self.changes.unfinished

    def take_turn(self) -> NodeQueue | None:
        """Return the queue whose turn it is; None if nothing waits."""
        for _ in range(2):
            queue = self._next
            self._next = self.whole if queue is self.changes else self.changes
            if not queue.is_empty:
                return queue
        return None
