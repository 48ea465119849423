"""Threads that clients share."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from service.workers.fair_threads import FairThreads


def test_no_client_waits_for_all_that_another_has_queued() -> None:
    threads, gate, done = FairThreads(1, "test"), threading.Event(), list[str]()

    async def queue() -> None:
        run = partial(threads.run, "alice", done.append)
        tasks = [asyncio.ensure_future(threads.run("alice", gate.wait, 30))]
        tasks += [asyncio.ensure_future(run(f"alice {n}")) for n in range(20)]
        await asyncio.sleep(0)  # all of hers wait before his comes
        tasks.append(asyncio.ensure_future(threads.run("bob", done.append, "bob")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 30)

    asyncio.run(queue())
    threads.close()
    assert len(done) == 21
    assert done.index("bob") <= 1


def test_what_is_cancelled_while_it_waits_leaves_its_place() -> None:
    threads, gate, done = FairThreads(1, "test"), threading.Event(), list[str]()

    async def cancel() -> None:
        running = asyncio.ensure_future(threads.run("alice", gate.wait, 30))
        gone = asyncio.ensure_future(threads.run("alice", done.append, "gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await running
        await asyncio.wait_for(threads.run("alice", done.append, "next"), 30)

    asyncio.run(cancel())
    threads.close()
    assert done == ["next"]
