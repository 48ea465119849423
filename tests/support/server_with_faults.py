"""Basin, but each background task raises while the folder FAULTS has a file of its name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import service.app
from service.__main__ import main
from service.auth.key_store import ApiKeyStore
from service.endpoints.alerts.nodes import NodeWatcher
from service.endpoints.alerts.webhooks import WebhookSender
from service.endpoints.transactions.pending import PendingScorer
from service.engine.memory_budget import MemoryBudget
from service.jobs.runner import JobRunner
from service.storage.graphs.writer import GroupCommitWriter
from service.storage.redis_client import RedisClient

_FOLDER = Path(os.environ["FAULTS"])
_TASKS = {
    "memory": (service.app, "trim_periodically"),
    "keys": (ApiKeyStore, "watch"),
    "redis": (RedisClient, "watch"),
    "transactions": (PendingScorer, "run"),
    "nodes": (NodeWatcher, "_renew_claims"),
    "webhooks": (WebhookSender, "run"),
    "job store": (JobRunner, "_heartbeat_loop"),
    "jobs": (JobRunner, "_claim"),
}
_THREADS = {"compute": (MemoryBudget, "acquire"), "graphs": (GroupCommitWriter, "_do")}


def _fail_in_task(name: str, owner: Any, method: str) -> None:
    original = getattr(owner, method)

    async def run(*args: Any) -> None:
        work = asyncio.ensure_future(original(*args))
        try:
            while not work.done():
                _require_no_fault(name)
                await asyncio.wait({work}, timeout=0.02)
            work.result()
        finally:
            work.cancel()

    setattr(owner, method, run)


def _fail_in_thread(name: str, owner: Any, method: str) -> None:
    original: Callable[..., Any] = getattr(owner, method)

    def run(*args: Any) -> Any:
        _require_no_fault(name)
        return original(*args)

    setattr(owner, method, run)


def _require_no_fault(name: str) -> None:
    if (_FOLDER / name).exists():
        raise RuntimeError(f"injected into {name}")


for task, place in _TASKS.items():
    _fail_in_task(task, *place)
for thread, place in _THREADS.items():
    _fail_in_thread(thread, *place)

if __name__ == "__main__":
    main()
