"""Wakes those who wait for alerts of a graph."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import final
from weakref import WeakSet

from service.storage.graphs.base import GraphKey


@final
class AlertSignals:
    """Events of one event loop, which end with those who hold them."""

    def __init__(self) -> None:
        self._watchers = defaultdict[GraphKey, WeakSet[asyncio.Event]](WeakSet)

    def watch(self, place: GraphKey) -> asyncio.Event:
        event = asyncio.Event()
        self._watchers[place].add(event)
        return event

    def notify(self, place: GraphKey) -> None:
        for event in self._watchers.get(place, ()):
            event.set()
