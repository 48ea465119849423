"""The thread that writes: all that waits at a time, in one batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, final

import structlog

from service.database import StoreError
from service.errors import Problem
from service.graphs.journal import Journal

T = TypeVar("T")
_MOST = 256  # pieces of work in one batch


@final
class Keeper:
    """Does one thing after the other in a thread, and tells that it is done once it is sure to
    last. So a thousand changes a second take far fewer writes to the disk.

    Args:
        forget: called where a batch could not be written, so that nothing in it has happened.
    """

    def __init__(self, journal: Journal, forget: Callable[[], None]) -> None:
        self._journal, self._forget = journal, forget
        self._waiting = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]()
        self._thread: threading.Thread | None = None
        self._refused: str | None = ""  # why the journal is not open; None where it is

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what waits, and leave the journal."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """What `work` returns, once it lasts; a `Problem` that it raises is its alone."""
        future = Future[T]()
        self._waiting.put((work, future))
        return future

    def _run(self) -> None:
        self._open()
        over = False
        while not over:
            works = list[tuple[Callable[[], Any], Future[Any]]]()
            next_one = self._waiting.get()
            while next_one is not None:
                works.append(next_one)
                if len(works) == _MOST or self._waiting.empty():
                    break
                next_one = self._waiting.get()
            over = next_one is None
            self._do([each for each in works if each[1].set_running_or_notify_cancel()])
        self._journal.close()

    def _open(self) -> None:
        try:
            self._journal.open()
        except StoreError as error:
            if self._refused != str(error):
                structlog.get_logger().error("graph store refused", reason=str(error))
            self._refused = str(error)
        else:
            self._refused = None

    def _do(self, works: list[tuple[Callable[[], Any], Future[Any]]]) -> None:
        if self._refused is not None:
            self._open()
        done = list[tuple[Future[Any], Any]]()
        refused = list[tuple[Future[Any], Problem]]()
        try:
            with self._journal.batch():
                for work, future in works:
                    try:
                        done.append((future, work()))
                    except Problem as problem:
                        refused.append((future, problem))
                    except StoreError as error:
                        if not self._journal.shared:  # what was done before it is undone too
                            raise
                        refused.append((future, unavailable(str(error))))
        except Exception as error:
            self._forget()
            log = structlog.get_logger()
            log.error("graphs not written", reason=repr(error), exc_info=error)
            problem = unavailable("the log says why") if isinstance(error, StoreError) else error
            for _, future in works:
                future.set_exception(problem)
            return
        for future, result in done:
            future.set_result(result)
        for future, problem in refused:
            future.set_exception(problem)


def unavailable(detail: str) -> Problem:
    return Problem("graphs-unavailable", detail, headers={"retry-after": "1"})
