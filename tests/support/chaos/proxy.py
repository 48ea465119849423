"""What lies between a server and Redis: it can be cut, and stall."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

State = Literal["open", "cut", "stalled"]


class Proxy:
    """Forwards connections on `port` to the port of Redis.

    `cut` closes all connections and refuses new ones; `stalled` accepts what comes and passes
    nothing on until it is open again.
    """

    def __init__(self, target: int) -> None:
        self.target = target  # of connections to come
        self.state: State = "open"
        self._open = asyncio.Event()
        self._open.set()
        self._tasks = set[asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._forward, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def set(self, state: State) -> None:
        self._run(self._set(state))

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        await self._set("cut")
        await asyncio.sleep(0)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _set(self, state: State) -> None:
        self.state = state
        if state == "stalled":
            self._open.clear()
        else:
            self._open.set()
        if state == "cut":
            for task in self._tasks:
                task.cancel()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.state == "cut":
                return
            from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                ways = [self._pass(reader, to_redis), self._pass(from_redis, writer)]
                running = [asyncio.ensure_future(way) for way in ways]
                try:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in running:
                        way.cancel()
            finally:
                to_redis.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # Redis is not there, or the connection is cut
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
