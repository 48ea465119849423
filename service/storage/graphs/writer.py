"""The thread that writes graphs, all waiting updates in one commit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, final

import structlog

from service.errors import Problem
from service.storage.graphs.base import GraphLog
from service.storage.sqlite import StoreError

T = TypeVar("T")
_Work = tuple[Callable[[], Any], Future[Any]]
_Outcome = tuple[Any, Exception | None]
_MAX_BATCH = 256  # functions in one batch
_MAX_WAITING = 1024


@final
class GroupCommitWriter:
    """Runs functions in order in one thread, and resolves their futures once they are durable.

    All functions that wait are one batch with one commit (group commit), so that a thousand updates
    per second need far fewer disk writes. With a log that other servers write too, each function
    commits by itself.

    Args:
        forget: called after a failed commit, to drop the state that the batch has changed.
    """

    def __init__(self, journal: GraphLog, forget: Callable[[], None]) -> None:
        self._journal, self._forget = journal, forget
        self._waiting = queue.SimpleQueue[_Work | None]()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._refused: str | None = ""  # why the log is not open; None if it is

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is queued, and close the log."""
        self._closed = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue `work`; the future has its result once that is durable, or the `Problem` it raised.

        Raises:
            Problem: the queue is full, or the server is shutting down.
        """
        if self._closed:
            raise unavailable("The server is shutting down. Retry after 1 s.")
        if self._waiting.qsize() >= _MAX_WAITING:
            detail = (
                f"The queue for changes of graphs is full: {_MAX_WAITING} changes wait. Retry "
                "after 1 s."
            )
            raise Problem("queue-full", detail, headers={"retry-after": "1"})
        return self._put(work)

    def run_next(self, work: Callable[[], T]) -> T | None:
        """Run `work` after what waits, however much that is, and wait for it; None if the thread
        has not started, or the server is shutting down."""
        return None if self._closed or self._thread is None else self._put(work).result()

    def _put(self, work: Callable[[], T]) -> Future[T]:
        future = Future[T]()
        self._waiting.put((work, future))
        return future

    def _run(self) -> None:
        self._open()
        over = False
        while not over:
            works = list[_Work]()
            next_one = self._waiting.get()
            while next_one is not None:
                works.append(next_one)
                if len(works) == _MAX_BATCH or self._waiting.empty():
                    break
                next_one = self._waiting.get()
            over = next_one is None
            self._do([each for each in works if each[1].set_running_or_notify_cancel()])
        self._journal.close()
        while not self._waiting.empty():  # queued after `close`
            if (work := self._waiting.get()) is not None:
                work[1].set_exception(unavailable("The server is shutting down. Retry after 1 s."))

    def _open(self) -> None:
        try:
            self._journal.open()
        except StoreError as error:
            if self._refused != str(error):
                structlog.get_logger().error("graph store refused", reason=str(error))
            self._refused = str(error)
        else:
            self._refused = None

    def _do(self, works: list[_Work]) -> None:
        if self._refused is not None:
            self._open()
        if self._refused is not None:
            for _, future in works:
                future.set_exception(
                    unavailable(
                        "The graph store cannot be read or written now. Retry after 1 s; the "
                        "server log has the reason."
                    )
                )
        elif self._journal.is_shared:
            for work, future in works:
                _resolve(future, self._outcome(work))
        elif works:
            self._do_together(works)

    def _do_together(self, works: list[_Work]) -> None:
        try:
            with self._journal.batch():
                outcomes = [self._outcome(work) for work, _ in works]
        except Exception as error:
            self._forget()
            if len(works) > 1 and not isinstance(error, StoreError):
                for work in works:  # nothing was written: find out which function fails
                    self._do_together([work])
                return
            outcomes = [_failed(error) for _ in works]
        for (_, future), outcome in zip(works, outcomes, strict=True):
            _resolve(future, outcome)

    def _outcome(self, work: Callable[[], Any]) -> _Outcome:
        """Run `work`.

        Raises:
            Exception: unexpected, so the whole batch must be rolled back.
        """
        try:
            return work(), None
        except Problem as problem:
            return None, problem
        except Exception as error:
            if not self._journal.is_shared:
                raise
            if not isinstance(error, StoreError):
                self._forget()
            return _failed(error)


def _resolve(future: Future[Any], outcome: _Outcome) -> None:
    result, error = outcome
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _failed(error: Exception) -> _Outcome:
    log, of_store = structlog.get_logger(), isinstance(error, StoreError)
    log.error("graphs not written", reason=repr(error), exc_info=None if of_store else error)
    return None, unavailable(
        "The graph store cannot be read or written now. Retry after 1 s; the server log has "
        "the reason."
    ) if of_store else error


def unavailable(detail: str) -> Problem:
    return Problem("graphs-unavailable", detail, headers={"retry-after": "1"})
