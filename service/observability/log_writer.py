"""Writes to stderr from a thread of its own, so that nothing waits for the reader of the log."""

from __future__ import annotations

import io
import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

_STDERR = 2
_MAX_BYTES = 4 << 20
_PAUSE_S = 0.01
"""Between writes. Under load the lines of this time are one write, and wake the thread once."""
_EXIT_S = 1.0
_POLL_S = 0.002


@final
class LogWriter:
    """A bounded queue of bytes in front of one thread that writes them to a file descriptor.

    What finds no room in the queue, or cannot be written, is dropped, and its lines are counted.
    Every method may be called from any thread, and from a finalizer within another method.

    Args:
        max_bytes: of what waits or is being written.
        on_drop: called with the number of lines that were dropped, once a write succeeds again.
    """

    def __init__(
        self,
        descriptor: int,
        max_bytes: int = _MAX_BYTES,
        on_drop: Callable[[int], object] = lambda count: None,
    ) -> None:
        self.descriptor = descriptor
        self._max_bytes, self._on_drop = max_bytes, on_drop
        self.dropped_count = 0
        self._reported_count = 0
        self._is_line_cut = False  # the last write failed within a line
        self._is_closed = False
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def put(self, data: bytes) -> None:
        """Queue `data`: whole lines."""
        if self._is_closed:
            if not self._size:
                self._write(data)
            return
        size, line_count = len(data), data.count(b"\n")
        with self._lock:  # within it no call, where a finalizer could put a line too
            if self._size + size > self._max_bytes:
                self.dropped_count += line_count
                return
            self._size += size
        self._waiting.put(data)

    def flush(self, seconds: float = _EXIT_S) -> bool:
        """Wait until all is written, for at most `seconds`; return whether it is."""
        end = time.monotonic() + seconds
        while self._size and time.monotonic() < end:
            time.sleep(_POLL_S)
        return not self._size

    def close(self) -> None:
        """Flush at the exit of the process. Later lines are written by the thread that logs them,
        unless the flush took too long: then there is no reader, and they are dropped."""
        self.flush()
        self._is_closed = True

    def _start(self) -> None:
        """Start the thread; after a fork, anew, since the parent writes what it has queued."""
        self._lock = threading.RLock()  # a finalizer may log while this thread is in `put`
        self._waiting = queue.SimpleQueue[bytes]()
        self._size = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def _run(self) -> None:
        while True:
            pieces = [self._waiting.get()]
            with suppress(queue.Empty):
                while True:
                    pieces.append(self._waiting.get_nowait())
            data = b"".join(pieces)
            size, is_written = len(data), self._write(data)
            with self._lock:
                self._size -= size
            if is_written and (count := self.dropped_count - self._reported_count):
                self._reported_count += count
                self._on_drop(count)
            time.sleep(_PAUSE_S)

    def _write(self, data: bytes) -> bool:
        """Write `data`, however long that takes; return whether that worked."""
        content = b"\n" + data if self._is_line_cut else data
        rest = memoryview(content)
        try:
            while rest:
                try:
                    rest = rest[os.write(self.descriptor, rest) :]
                except BlockingIOError:
                    select.select([], [self.descriptor], [])
        except OSError:  # closed, its reader has gone, or its disk is full
            line_count = min(bytes(rest).count(b"\n"), data.count(b"\n"))
            with self._lock:
                self.dropped_count += line_count
            if written := content[: len(content) - len(rest)]:
                self._is_line_cut = not written.endswith(b"\n")
            return False
        self._is_line_cut = False
        return True


@final
class _StderrFile(io.RawIOBase):
    """What `sys.stderr` writes to: the queue of a `LogWriter`."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self._writer.put(content)
        return len(content)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._writer.descriptor

    def isatty(self) -> bool:
        return os.isatty(self._writer.descriptor)


def open_stderr() -> int:
    """Return the descriptor of stderr, or one of the null device if this process has no stderr."""
    if sys.__stderr__ is not None:
        return _STDERR
    # A closed number must not become that of a file or connection, which C code would write to.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _STDERR:
        pass
    return descriptor


def replace_stderr(writer: LogWriter) -> None:
    """Make all that this process writes to stderr go through `writer`: warnings, tracebacks and
    what libraries print. What C code writes is dropped while a pipe is full."""
    _stop_blocking()
    file = io.BufferedWriter(_StderrFile(writer))
    sys.stderr = io.TextIOWrapper(
        file, encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _stop_blocking() -> None:
    """Make a write to a full pipe fail where it would wait.

    The pipe is opened again: a flag set on the descriptor as it is would hold for all processes
    that have inherited it.
    """
    with suppress(OSError):  # not Linux, or the pipe is that of another user
        if stat.S_ISFIFO(os.fstat(_STDERR).st_mode):
            pipe = os.open(f"/proc/self/fd/{_STDERR}", os.O_WRONLY | os.O_NONBLOCK)
            os.dup2(pipe, _STDERR)
            os.close(pipe)
