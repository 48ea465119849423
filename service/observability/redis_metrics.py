"""Metrics of what happens to the shared Redis."""

from __future__ import annotations

from typing import Literal, final

from prometheus_client import CollectorRegistry, Counter

RedisEvent = Literal["failures", "changes", "damaged", "restored", "lost"]
_PARTS = ("cache", "limits", "jobs", "memories", "graphs", "restore")
_CHANGES = ("restarted", "replaced")
_EVENTS: tuple[tuple[RedisEvent, str, str], ...] = (
    ("failures", "part", "Failed operations on Redis, by part of the server."),
    (
        "changes",
        "change",
        "How often this server met a Redis that was restarted, or replaced by one without data or "
        "with those of another history.",
    ),
    ("damaged", "part", "Values in Redis that are not what a server wrote, by part."),
    (
        "restored",
        "part",
        "Graphs, memories and jobs that Redis had lost, or had in an older state, and that this "
        "server restored.",
    ),
    (
        "lost",
        "part",
        "Changes of graphs, memories and jobs that Redis had acknowledged to this server and lost, "
        "and that could not be restored.",
    ),
)


@final
class RedisMetrics:
    """Counters of events, by part of the server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters: dict[RedisEvent, Counter] = {
            event: Counter(f"basin_redis_{event}", what, [label], registry=registry)
            for event, label, what in _EVENTS
        }
        for event, counter in self._counters.items():  # from 0 on: the first one is an increase
            for label in _CHANGES if event == "changes" else _PARTS:
                counter.labels(label)

    def count(self, event: RedisEvent, label: str, number: int = 1) -> None:
        """Count an event; `label` is a part, or of `changes`: `restarted` or `replaced`."""
        self._counters[event].labels(label).inc(number)
