"""An HTTP client that costs next to nothing: it shares the machine with what it measures."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def example() -> bytes:
    """`examples/tolokers.json`, asking for scores alone."""
    body = json.loads((Path(__file__).parents[1] / "examples" / "tolokers.json").read_text())
    return json.dumps({name: part for name, part in body.items() if name != "include"}).encode()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


class Connection:
    """One kept-alive connection; requests on it take turns."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, media_type: str, **headers: str) -> Reply:
        """As `ask`."""
        return await self.ask("POST", path, body, {"content-type": media_type} | headers)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """
        Raises:
            OSError: the connection broke.
        """
        start = time.perf_counter()
        if self._streams is None or self._streams[0].at_eof():  # idle for too long
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        own = {"host": "127.0.0.1", "content-length": str(len(body))} | dict(headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in head[1:] if line)
            told = {name.strip().lower(): value.strip() for name, _, value in pairs}
            if told.get("transfer-encoding") == "chunked":
                content = await _chunks(reader)
            else:
                content = await reader.readexactly(int(told.get("content-length", "0")))
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ConnectionError("the server closed the connection") from error
        if told.get("connection") == "close":
            self.close()
        seconds = time.perf_counter() - start
        return Reply(int(head[0].split(" ", 2)[1]), told, content, seconds)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Line:
    """A connection for one who waits: one send, and of the head no more is read than is needed."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """The answer, which has a content-length."""
        own = {"host": "127.0.0.1", "content-length": str(len(body))} | dict(headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in own.items())
        request = f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        start = time.perf_counter()
        self._socket.sendall(request)
        head, content, length = b"", b"", None
        while length is None or len(content) < length:
            if not (part := self._socket.recv(1 << 20)):
                raise ConnectionError("the server closed the connection")
            if length is not None:
                content += part
                continue
            head, ended, content = (head + part).partition(b"\r\n\r\n")
            if ended:
                told = _LENGTH.search(head)
                assert told
                length = int(told[1])
        seconds = time.perf_counter() - start
        first, *others = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in others)
        named = {name.lower(): value for name, _, value in pairs}
        return Reply(int(first.split(" ", 2)[1]), named, content, seconds)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)
