"""`python -m service` in a process that is forked from one which has the imports.

They take four of the five seconds of a start. The forked process reads its settings, creates the
app and loads the models as any other does.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from service.observability.logs import writer
from tests.support.paths import REPO

_IMPORTED = ("service.app", "service.http.protocol", "models.onnx_backend.system", "uvicorn.main")
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload([*_IMPORTED])


def _serve(env: dict[str, str], log: Path, *arguments: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(REPO)
    with log.open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    sys.argv = ["service", *arguments]
    try:
        runpy.run_module("service", run_name="__main__", alter_sys=True)
    except SystemExit as end:  # multiprocessing ends a process without what `atexit` has
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        writer().flush()
        sys.exit(1 if isinstance(end.code, str) else end.code)


class ForkedProcess:
    """A server process, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, env: dict[str, str], log: Path, *arguments: str) -> None:
        log.touch()
        self._process = _fork.Process(target=_serve, args=(env, log, *arguments))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("service", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
