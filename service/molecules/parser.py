"""SMILES to graphs behind a process boundary: whatever hangs or crashes is killed and answered."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from models.molecules import Code, Limits, Molecule, MoleculeError, check_text
from service.molecules.frames import PREFIX, frame, unpack

Parsed = Molecule | MoleculeError

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "service.molecules.child")
_REQUEST = 16_384
"""Characters sent at a time: within a pipe's buffer, so that writing never waits."""


class _GoneError(Exception):
    """The child did not answer; why."""

    def __init__(self, code: Code) -> None:
        self.code: Code = code


@final
class MoleculeParser:
    """Reads SMILES in `workers` processes, each started when it is first needed.

    A molecule that takes longer than `seconds` costs its process and is answered `timeout`; one
    that ends the process is answered `parser_crashed`. The molecules after it go to a new process.
    `batch_seconds` bounds a whole call, waiting for a free process included: what is left then is
    answered `timeout` too. Safe to call from many threads.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        workers: int = 1,
        seconds: float = 2.0,
        batch_seconds: float = 30.0,
        start_seconds: float = 30.0,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self.limits = limits or Limits()
        if self.limits.max_characters > _REQUEST or self.limits.max_atoms > 65_535:
            raise ValueError(f"at most {_REQUEST} characters and 65535 atoms")
        self.seconds, self.batch_seconds = seconds, batch_seconds
        self._closed = False
        self._children = [_Child(command, start_seconds) for _ in range(workers)]
        # The last one used is the first one taken: it is running, and its caches are warm.
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        for child in reversed(self._children):
            self._idle.put(child)

    async def parse_async(self, smiles: Sequence[str]) -> list[Parsed]:
        """`parse` in a thread: the event loop goes on."""
        return await asyncio.to_thread(self.parse, smiles)

    def parse(self, smiles: Sequence[str]) -> list[Parsed]:
        """A molecule or an error for each SMILES, in order.

        Raises:
            RuntimeError: after `close`.
        """
        if self._closed:
            raise RuntimeError("the parser is closed")
        answers: list[Parsed | None] = [None] * len(smiles)
        waiting: list[tuple[int, str]] = []
        for index, text in enumerate(smiles):
            try:
                waiting.append((index, check_text(text, self.limits)))
            except MoleculeError as error:
                answers[index] = error
        end = time.monotonic() + self.batch_seconds
        if waiting:
            try:
                child = self._idle.get(timeout=self.batch_seconds)
            except queue.Empty:
                child = None
            if child is not None:
                try:
                    self._read(child, waiting, answers, end)
                finally:
                    self._idle.put(child)
        return [answer or MoleculeError("timeout") for answer in answers]

    def _read(
        self, child: _Child, waiting: list[tuple[int, str]], answers: list[Any], end: float
    ) -> None:
        while waiting and not self._closed and time.monotonic() < end:
            part = _part(waiting)
            try:
                child.ask(
                    {
                        "smiles": [text for _, text in part],
                        "limits": asdict(self.limits),
                        "alarm_s": 10 * self.seconds,
                    }
                )
                for index, _ in part:
                    now = time.monotonic()
                    answers[index] = child.answer(min(now + self.seconds, end))
                    waiting.pop(0)
            except _GoneError as gone:
                child.free()
                index, _ = waiting.pop(0)
                answers[index] = MoleculeError(gone.code)

    def close(self) -> None:
        """End every process; a call under way answers `timeout` for what is left."""
        self._closed = True
        for child in self._children:
            child.kill()
        for _ in self._children:  # each comes back once its call has seen the end
            self._idle.get().free()


def _part(waiting: list[tuple[int, str]]) -> list[tuple[int, str]]:
    size, count = 0, 0
    for _, text in waiting:
        size += len(text)
        if size > _REQUEST and count:
            break
        count += 1
    return waiting[:count]


class _Child:
    """One process and its pipes: used and freed by one thread at a time, killed by any."""

    def __init__(self, command: Sequence[str], start_seconds: float) -> None:
        self._command, self._start_seconds = tuple(command), start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request, starting the process if there is none."""
        if self._process is None or self._process.poll() is not None:
            self.free()
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame(request))
        except OSError:
            raise _GoneError("parser_crashed") from None

    def _start(self) -> None:
        # One thread for each library in the child: it reads one molecule at a time.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        with self._lock:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=os.environ | threads | {"PYTHONPATH": path},
            )
        self._buffer.clear()
        self._frame(time.monotonic() + self._start_seconds)

    def answer(self, deadline: float) -> Parsed:
        """The next answer of the process."""
        header, body = self._frame(deadline)
        if "error" in header:
            return MoleculeError(header["error"])
        return unpack(header, body)

    def _frame(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        lengths = PREFIX.unpack(self._take(PREFIX.size, deadline))
        raw = self._take(sum(lengths), deadline)
        return json.loads(raw[: lengths[0]]), raw[lengths[0] :]

    def _take(self, count: int, deadline: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            raise _GoneError("parser_crashed")
        if len(self._buffer) < count:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while len(self._buffer) < count:
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        raise _GoneError("timeout")
                    if not (read := os.read(process.stdout.fileno(), 1 << 16)):
                        raise _GoneError("parser_crashed")
                    self._buffer += read
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def kill(self) -> None:
        """End the process, whatever it does; who reads from it sees the end of the pipe."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def free(self) -> None:
        """Kill, and give back what the process held."""
        self.kill()
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
