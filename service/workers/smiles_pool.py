"""Parse SMILES in separate processes, so that one that hangs or crashes RDKit can be killed."""

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
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, final

from models.inputs.molecules import (
    Molecule,
    MoleculeError,
    MoleculeErrorCode,
    MoleculeLimits,
    check_smiles_text,
)
from service.errors import Problem
from service.shares import FairSemaphore, Shares
from service.workers.smiles_frames import FRAME_PREFIX, encode_frame, unpack_molecule

ParseResult = Molecule | MoleculeError
WorkerReply = ParseResult | str
"""Reply of a process: a molecule, an error, or a drawing (SVG)."""

TRANSIENT_CODES = frozenset(("timeout", "parser_crashed", "not_reached"))
"""Error codes that may not occur again when the request is repeated."""

_ROOT = Path(__file__).resolve().parents[2]
WORKER_COMMAND: Sequence[str] = (sys.executable, "-m", "service.workers.smiles_worker")
_MAX_PART_SMILES, _MAX_PART_CHARACTERS = 128, 16_384
"""Maximum SMILES, and characters, of one part: they fit into the buffer of a pipe, so that writing
never blocks. After each part a process serves another call."""
_CHARACTERS_PER_EFFECT = 8  # characters of an effect that is sent


class WorkerDiedError(Exception):
    """The process gave no reply; `code` says why."""

    def __init__(self, code: MoleculeErrorCode) -> None:
        self.code: MoleculeErrorCode = code


class _Call:
    """The SMILES of one call, with the replies so far and the SMILES that wait; for drawings
    `effects` has one number per atom of each."""

    def __init__(
        self,
        smiles: Sequence[str],
        limits: MoleculeLimits,
        end: float,
        effects: Sequence[Sequence[float]] | None = None,
    ) -> None:
        self.end, self.effects = end, effects
        self.replies: list[WorkerReply | None] = [None] * len(smiles)
        self.waiting: deque[tuple[int, str]] = deque()
        for index, text in enumerate(smiles):
            try:
                self.waiting.append((index, check_smiles_text(text, limits)))
            except MoleculeError as error:
                self.replies[index] = error

    def next_part(self) -> list[tuple[int, str]]:
        """Return the next part: indices and SMILES."""
        size, found = 0, []
        for index, text in islice(self.waiting, _MAX_PART_SMILES):
            size += len(text) + (
                _CHARACTERS_PER_EFFECT * len(self.effects[index]) if self.effects else 0
            )
            if size > _MAX_PART_CHARACTERS and found:
                break
            found.append((index, text))
        return found

    def add_reply(self, answer: WorkerReply) -> None:
        """Store the reply to the first SMILES that waits."""
        index, _ = self.waiting.popleft()
        self.replies[index] = answer

    @property
    def is_done(self) -> bool:
        return not self.waiting or time.monotonic() >= self.end

    def results(self) -> list[Any]:
        return [answer or MoleculeError("not_reached") for answer in self.replies]


@final
class SmilesParserPool:
    """Parses SMILES in `num_workers` processes, each started on first use. Thread-safe.

    If a molecule takes longer than `seconds`, its process is killed and its error is `timeout`; if
    it crashes the process, `parser_crashed`. The molecules after it go to a new process.
    `batch_seconds` limits a whole call, including the wait for a process; molecules that are left
    then get `not_reached`.

    Calls take turns: after a part, a killed process or `seconds` of slow molecules, the process
    serves the API key that has fewest turns now, and of its calls the one that has waited longest.
    So no call blocks the others, and no key those of another.
    """

    def __init__(
        self,
        limits: MoleculeLimits | None = None,
        *,
        num_workers: int = 1,
        max_calls: int = 16,
        seconds: float = 2.0,
        batch_seconds: float = 30.0,
        start_seconds: float = 30.0,
        command: Sequence[str] | None = None,
    ) -> None:
        self.limits = limits or MoleculeLimits()
        if self.limits.max_characters > _MAX_PART_CHARACTERS or self.limits.max_atoms > 65_535:
            raise ValueError(
                f"limits may be at most {_MAX_PART_CHARACTERS} characters and 65535 atoms"
            )
        self.seconds, self.batch_seconds = seconds, batch_seconds
        self._closed = False
        self._calls, self._turns = Shares(max_calls), FairSemaphore(num_workers)
        self._children = [
            _WorkerProcess(command or WORKER_COMMAND, start_seconds) for _ in range(num_workers)
        ]
        # As many threads as processes, and as turns.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="molecules")
        # LIFO, because the process used last is running and its caches are warm.
        self._idle: queue.LifoQueue[_WorkerProcess] = queue.LifoQueue()
        for child in reversed(self._children):
            self._idle.put(child)

    def start(self) -> None:
        """Start every process and parse one SMILES in each, so that no request waits for it."""
        workers = [self._idle.get() for _ in self._children]
        for child in workers:
            try:
                child.send(self._request(["C"]))
                child.receive(time.monotonic() + self.batch_seconds)
            except WorkerDiedError:  # the first request tries again, and reports the error
                child.release()
            finally:
                self._idle.put(child)

    async def parse_async(self, smiles: Sequence[str], key: str = "") -> list[ParseResult]:
        """Run `parse` in threads; when cancelled, it ends after the current turn.

        Args:
            key: name of the API key that asks.

        Raises:
            Problem: `max_calls` calls are running, or as many of this key as it may have. Each also
                holds a place in the queue for compute, and molecules that hang must leave places
                for other requests.
        """
        if not self._calls.may_take(key):
            detail = (
                f"The queue for molecules is full: {self._calls.used} of {self._calls.total} "
                "requests are being parsed or wait, of which one API key may have as many as it "
                "leaves free. Retry after 1 s."
            )
            raise Problem("queue-full", detail, headers={"retry-after": "1"})
        with self._calls.hold(key):
            return await self._run_call(self._call(smiles), key)

    async def draw_async(
        self,
        smiles: Sequence[str],
        effects: Sequence[Sequence[float]],
        max_characters: int,
        key: str = "",
    ) -> list[str | None]:
        """Draw each SMILES as an SVG of at most `max_characters`, with its atoms colored by
        `effects`; None for those that fail or take too long."""
        call = self._call(smiles, list(map(scale_effects, effects)))
        answers = await self._run_call(call, key)
        return [
            svg if isinstance(svg, str) and len(svg) <= max_characters else None for svg in answers
        ]

    async def _run_call(self, call: _Call, key: str) -> list[Any]:
        loop = asyncio.get_running_loop()
        while not call.is_done and not self._closed:
            async with self._turns.reserve(key):
                await loop.run_in_executor(self._threads, self._run_turn, call)
        return call.results()

    def parse(self, smiles: Sequence[str]) -> list[ParseResult]:
        """Return a molecule or an error for each SMILES, in order.

        Raises:
            RuntimeError: after `close`.
        """
        call = self._call(smiles)
        while not call.is_done and not self._closed:
            self._run_turn(call)
        return call.results()

    def _call(
        self, smiles: Sequence[str], effects: Sequence[Sequence[float]] | None = None
    ) -> _Call:
        if self._closed:
            raise RuntimeError("the parser is closed")
        return _Call(smiles, self.limits, time.monotonic() + self.batch_seconds, effects)

    def _run_turn(self, call: _Call) -> None:
        """Read a part of `call`, or up to the first molecule that ends the process."""
        try:
            child = self._idle.get(timeout=max(call.end - time.monotonic(), 0))
        except queue.Empty:
            return
        try:
            if not (call.is_done or self._closed):
                self._run_part(child, call)
        except WorkerDiedError as error:
            child.release()
            call.add_reply(MoleculeError(error.code))
        except BaseException:  # a reply left in its pipes must not reach another call
            child.release()
            raise
        finally:
            self._idle.put(child)

    def _run_part(self, child: _WorkerProcess, call: _Call) -> None:
        part = call.next_part()
        effects = None if call.effects is None else [call.effects[index] for index, _ in part]
        child.send(self._request([text for _, text in part], effects))
        turn_end = time.monotonic() + self.seconds
        for _ in part:
            if (now := time.monotonic()) > turn_end:
                child.release()  # the rest of the part is sent again to another process
                return
            full = now + self.seconds
            try:
                call.add_reply(child.receive(min(full, call.end)))
            except WorkerDiedError as error:
                if error.code == "timeout" and full > call.end:
                    raise WorkerDiedError("not_reached") from None  # it had less than `seconds`
                raise

    def _request(
        self, smiles: list[str], effects: list[Sequence[float]] | None = None
    ) -> dict[str, Any]:
        rest = {"limits": asdict(self.limits), "alarm_s": 10 * self.seconds}
        return {"smiles": smiles, "effects": effects, **rest}

    def close(self) -> None:
        """Kill every process; running calls return `not_reached` for what is left."""
        self._closed = True
        for child in self._children:
            child.kill()
        for _ in self._children:  # each is returned once its call has noticed
            self._idle.get().release()
        self._threads.shutdown(cancel_futures=True)


def scale_effects(effects: Sequence[float]) -> list[float]:
    """Return effects as shares of the largest in size, with three digits: enough for a colour."""
    largest = max(map(abs, effects), default=0) or 1.0
    return [round(effect / largest, 3) for effect in effects]


class _WorkerProcess:
    """A process and its pipes; used and released by one thread at a time, killed by any."""

    def __init__(self, command: Sequence[str], start_seconds: float) -> None:
        self._command, self._start_seconds = tuple(command), start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, request: dict[str, Any]) -> None:
        """Send a request, and start the process if it is not running."""
        try:
            self.start()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(encode_frame(request))
        except OSError:
            raise WorkerDiedError("parser_crashed") from None

    def start(self) -> None:
        """Start the process if it is not running."""
        if self._process is not None and self._process.poll() is None:
            return
        self.release()
        # One thread per library in the child, which parses one molecule at a time.
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
        try:
            self._read_frame(time.monotonic() + self._start_seconds)
        except WorkerDiedError:  # not caused by a molecule
            raise WorkerDiedError("not_reached") from None

    def receive(self, deadline: float) -> WorkerReply:
        """Read the next reply of the process."""
        header, body = self._read_frame(deadline)
        if "error" in header:
            return MoleculeError(header["error"])
        if "svg" in header:
            return body.decode()
        return unpack_molecule(header, body)

    def _read_frame(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        lengths = FRAME_PREFIX.unpack(self._read_bytes(FRAME_PREFIX.size, deadline))
        raw = self._read_bytes(sum(lengths), deadline)
        return json.loads(raw[: lengths[0]]), raw[lengths[0] :]

    def _read_bytes(self, count: int, deadline: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            raise WorkerDiedError("parser_crashed")
        if len(self._buffer) < count:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while len(self._buffer) < count:
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        raise WorkerDiedError("timeout")
                    if not (read := os.read(process.stdout.fileno(), 1 << 16)):
                        raise WorkerDiedError("parser_crashed")
                    self._buffer += read
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def kill(self) -> None:
        """Kill the process; a reader sees the end of the pipe."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def release(self) -> None:
        """Kill the process, and close its pipes."""
        self.kill()
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
