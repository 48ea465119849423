"""What is free is given back, and garbage is found."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import Sample
from tests.support.completion import body as completing
from tests.support.image_models import SCENE
from tests.support.image_models import text as base64_of
from tests.support.server import Server, Start, answers_with, gauge, wait_until

# Pieces too large for Python's own pools, of which the last one keeps those below it.
SCRIPT = """
import asyncio, psutil
from service.observability import malloc

malloc._TRIM_INTERVAL_S = 0.05
held = lambda: psutil.Process().memory_info().rss / 2**20

async def play():
    trimming = asyncio.create_task(malloc.trim_periodically())
    pieces = [bytes(1000) for _ in range(100_000)]
    last = bytes(1000)
    full = held()
    pieces.clear()
    await asyncio.sleep(0.5)
    print(full - held(), len(last))
    trimming.cancel()

asyncio.run(play())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is another's")
def test_free_memory_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 60


LOOPS = """
import asyncio, gc, weakref
from service.observability import malloc

malloc._TRIM_INTERVAL_S = 0.05
gc.disable()  # as good as: what is old is looked at once in hours

class Loop:
    def __init__(self):
        self.itself = self

async def play():
    malloc.freeze_gc_heap()
    trimming = asyncio.create_task(malloc.trim_periodically())
    loop = weakref.ref(Loop())
    await asyncio.sleep(0.5)
    print(loop() is None, gc.get_freeze_count())
    trimming.cancel()

asyncio.run(play())
"""


def test_garbage_is_found_without_a_look_at_what_was_imported() -> None:
    done = subprocess.run([sys.executable, "-c", LOOPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, spared = done.stdout.split()
    assert found == "True"
    assert int(spared) > 5_000


ARENAS = """
import ctypes, sys, threading
from service.observability import malloc

if sys.argv[1] == "few":
    malloc.limit_malloc_arenas()
libc = ctypes.CDLL(None)
kept = []
at_once = threading.Barrier(8)

def allocate():
    at_once.wait()
    kept.extend(bytes(2000) for _ in range(20_000))

threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is another's")
def test_threads_share_arenas() -> None:
    counts = {}
    for many in ("few", "many"):
        command = [sys.executable, "-c", ARENAS, many]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        counts[many] = done.stdout.count("<heap nr=")
    assert 1 <= counts["few"] <= 2 < counts["many"]


USED = """
from service.observability.malloc import malloc_stats

before = malloc_stats()
held = bytearray(50 << 20)
pieces = [bytes(1000) for _ in range(10_000)]
print(malloc_stats().in_use - before.in_use)
del held, pieces[::2]
print(malloc_stats().in_use - before.in_use, malloc_stats().free - before.free)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is another's")
def test_what_is_in_use_and_what_is_free() -> None:
    done = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True, check=True)
    all_of_it, half, free = map(int, done.stdout.split())
    assert 62_000_000 < all_of_it < 65_000_000
    assert 5_000_000 < half < 6_500_000
    assert 4_500_000 < free < 6_000_000


@pytest.fixture(scope="module")
def tidy(start: Start, checkpoints: Path) -> Server:
    """A server that looks for garbage all the time."""
    one = start(
        *("-m", "tests.support.server_collecting_garbage"),
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        default_completion_model="et-tile",
        default_picture_model="ait-glyph",
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one


def collected(server: Server) -> float:
    """Objects that there are no more, once all that is garbage now has been found."""
    looked = 'python_gc_collections_total{generation="2"}'
    before = gauge(server, looked)
    wait_until(lambda: gauge(server, looked) >= before + 2)
    found = 'python_gc_objects_collected_total{{generation="{}"}}'
    return sum(gauge(server, found.format(generation)) for generation in range(3))


def asked_of(path: str, sample: Callable[..., Sample]) -> dict[str, Any]:
    return {
        "/anomaly/score": sample(3, 1).arrays(),
        "/classify": {"smiles": ["CCO", "c1ccccc1N(=O)=O"], "include": ["attention"]},
        "/complete": completing(),
        "/images/classify": {"image": base64_of(SCENE)},
        "/sample": {"memory": "mnist-3", "steps": 20, "num_samples": 4},
    }[path]


ASKED = ("/anomaly/score", "/classify", "/complete", "/images/classify", "/sample")


@pytest.mark.parametrize("path", ASKED)
def test_requests_leave_no_garbage(path, tidy, sample):
    """What refers to itself stays until it is looked for, and tensors with it."""
    asked = asked_of(path, sample)
    with tidy.client() as client:
        for _ in range(10):  # whatever is made once
            assert client.post(path, json=asked).status_code == 200
        before = collected(tidy)
        requests = 25 if path == "/sample" else 200  # it takes longer than all others
        for _ in range(requests):
            assert client.post(path, json=asked).status_code == 200
        assert collected(tidy) - before < requests
