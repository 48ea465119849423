"""Log lines are written in order, and never waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.observability.log_writer import LogWriter
from tests.support.server import wait_until

_GUARDED = """
import os, sys, warnings, threading
import structlog
from service.observability import logs
logs.guard_stderr()
logs.configure("info", "json")
log = structlog.get_logger()
"""


def _run(script: str, **options) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", _GUARDED + script], timeout=60, **options)


def _read_now(descriptor: int) -> bytes:
    """Return what a pipe holds, without waiting for more."""
    os.set_blocking(descriptor, False)
    content = b""
    try:
        while part := os.read(descriptor, 1 << 16):
            content += part
    except BlockingIOError:
        pass
    os.set_blocking(descriptor, True)
    return content


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def _line(number: int) -> bytes:
    return b"line %06d of the log\n" % number


def _numbers(content: bytes) -> list[int]:
    return [int(line[5:11]) for line in content.splitlines()]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_lines_for_a_full_pipe_are_dropped_and_counted(pipe, is_blocking):
    reading, writing = pipe
    os.set_blocking(writing, is_blocking)
    reported = []
    writer = LogWriter(writing, max_bytes=1 << 18, on_drop=reported.append)
    count = 40_000
    for number in range(count):
        writer.put(_line(number))  # four times what the queue and the pipe hold
    assert not writer.flush(0.05)
    dropped = writer.dropped_count
    assert 0 < dropped < count
    content = _read_now(reading)
    while not writer.flush(0.05):
        content += _read_now(reading)
    content += _read_now(reading)
    numbers = _numbers(content)
    assert len(numbers) == count - dropped
    assert numbers == sorted(numbers)
    wait_until(lambda: reported == [dropped], 10)
    writer.put(_line(count))
    assert writer.flush(10)
    assert _numbers(_read_now(reading)) == [count]
    assert writer.dropped_count == dropped


def test_lines_that_cannot_be_written_are_counted():
    with Path("/dev/full").open("wb") as full:
        writer = LogWriter(full.fileno())
        for number in range(5):
            writer.put(_line(number))
        assert writer.flush(10)
    assert writer.dropped_count == 5


def test_a_line_begins_where_the_one_before_was_cut(tmp_path):
    """A disk that fills takes the beginning of a line, and has room again later."""
    script = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
writer = logs.writer()
print("a" * 19 + "\\n" + "b" * 19, file=sys.stderr)
assert writer.flush(10)
assert writer.dropped_count == 1, writer.dropped_count
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("c", file=sys.stderr)
"""
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        assert _run(script, stderr=stderr).returncode == 0
    lines = log.read_text().splitlines()
    assert lines[:3] == ["a" * 19, "b" * 10, "c"]
    assert '"event":"log lines dropped"' in lines[3]
    assert '"count":1' in lines[3]


def test_all_lines_before_an_exit_are_written_in_order():
    script = """
for number in range(5000):
    log.info("line", number=number)
warnings.warn("odd")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
sys.exit("no model")
"""
    outcome = _run(script, stderr=subprocess.PIPE)
    assert outcome.returncode == 1
    lines = outcome.stderr.decode().splitlines()
    for number in range(5000):
        assert lines[number].startswith(f'{{"number":{number},')
    rest = "\n".join(lines[5000:])
    assert rest.index("UserWarning: odd") < rest.index("ZeroDivisionError") < rest.index("no model")


@pytest.mark.parametrize("number", [1, 2])
def test_an_uncaught_exception_is_written(number):
    script = f"log.info('first')\nraise ValueError('spilt {number}')"
    outcome = _run(script, stderr=subprocess.PIPE)
    lines = outcome.stderr.decode().splitlines()
    assert '"event":"first"' in lines[0]
    assert lines[1].startswith("Traceback")
    assert lines[-1] == f"ValueError: spilt {number}"


_WAYS = {
    "log": 'log.info("x" * 100)',
    "library": 'logging.getLogger("uvicorn.error").info("x" * 100)',
    "last resort": 'bare.warning("x" * 100)',
    "print": 'print("x" * 100, file=sys.stderr)',
    "warning": 'warnings.warn("x" * 100)',
    "C": 'os.write(2, b"x" * 100)',
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_pipe_that_is_not_read_stops_no_work(pipe, way):
    _, writing = pipe
    script = f"""
import logging
from contextlib import suppress
warnings.simplefilter("always")
bare = logging.Logger("bare")  # without a handler: Python has one as a last resort
for _ in range(100_000):
    with suppress(BlockingIOError):  # as C code does, which checks no result
        {_WAYS[way]}
print("done")
"""
    outcome = _run(script, stderr=writing, stdout=subprocess.PIPE)
    assert (outcome.returncode, outcome.stdout) == (0, b"done\n")


def test_a_crash_is_not_kept_waiting(pipe):
    _, writing = pipe
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, bytes(1 << 12))
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    script = "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)"
    assert _run(script, stderr=writing).returncode == -11


def test_the_pipe_of_others_is_as_it_was(pipe):
    """A flag of a descriptor holds for all processes that have inherited it."""
    _, writing = pipe
    assert _run("log.info('one')", stderr=writing).returncode == 0
    assert os.get_blocking(writing)


def test_a_forked_process_writes_its_own_lines():
    script = """
log.info("before")
if (child := os.fork()) == 0:
    log.info("in the child")
    logs.writer().flush(10)
    os._exit(0)
os.waitpid(child, 0)
log.info("after")
"""
    outcome = _run(script, stderr=subprocess.PIPE)
    lines = outcome.stderr.decode().splitlines()
    assert sorted(line.split('"')[3] for line in lines) == ["after", "before", "in the child"]


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_without_stderr_its_number_is_no_other_file(closed, tmp_path):
    script = """
with open(sys.argv[1], "w") as file:
    assert file.fileno() > 2, file.fileno()
    log.info("lost")
    os.write(2, b"lost too")
    logs.writer().flush(10)
    file.write("done")
"""
    file = tmp_path / "file"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    command += [sys.executable, "-c", _GUARDED + script, str(file)]
    assert subprocess.run(command, timeout=60).returncode == 0
    assert file.read_text() == "done"


def test_a_line_may_be_put_while_another_is(pipe):
    """As a finalizer does, which runs in the middle of whatever its thread is doing."""
    reading, writing = pipe
    writer = LogWriter(writing)

    class Line(bytes):
        def count(self, *part) -> int:
            writer.put(b"inner\n")
            return super().count(*part)

    with writer._lock:
        writer.put(Line(b"outer\n"))
    assert writer.flush(10)
    assert _read_now(reading) == b"inner\nouter\n"
