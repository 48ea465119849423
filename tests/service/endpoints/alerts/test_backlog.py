"""In which order nodes wait, and when a change is finished."""

from __future__ import annotations

from itertools import islice

from service.endpoints.alerts.backlog import Backlog, NodeQueue
from service.validation.ids import NodeId


def test_a_node_waits_once_and_keeps_its_place() -> None:
    queue = NodeQueue()
    queue.add(["a", "b", "c"], [1])
    queue.add(["b", "d"], [2, 3])
    assert list(queue) == ["a", "b", "c", "d"]
    assert queue.list_finished(2) == []
    assert queue.list_finished(3) == [1]
    queue.remove(2)
    queue.add(["b"], [4])  # changed again after it was scored
    assert list(queue) == ["c", "d", "b"]
    assert [queue.list_finished(count) for count in range(4)] == [
        *([], [1], [1, 2, 3], [1, 2, 3, 4]),
    ]
    queue.remove(3)
    assert queue.is_empty
    queue.add([], [5])  # all that it touched is deleted
    assert not queue.is_empty
    assert queue.list_finished(0) == [5]
    queue.remove(0)
    assert queue.is_empty


def test_under_changes_without_end_each_node_is_scored() -> None:
    queue, scored = NodeQueue(), set[NodeId]()
    queue.add(range(100), [0])
    for revision in range(1, 40):
        queue.add(range(100), [revision])  # each changes everything
        part = list(islice(queue, 5))
        scored.update(part)
        queue.remove(len(part))
    assert scored == set(range(100))


def test_changes_take_turns_with_a_graph_that_was_stored() -> None:
    backlog = Backlog()
    assert backlog.take_turn() is None
    backlog.whole.add(range(5), [1])
    assert backlog.take_turn() is backlog.whole
    backlog.changes.add([3], [2])
    assert len(backlog) == 6
    turns = [backlog.take_turn() for _ in range(4)]
    assert turns == 2 * [backlog.changes, backlog.whole]
    backlog.changes.remove(1)
    assert [backlog.take_turn() for _ in range(2)] == 2 * [backlog.whole]
