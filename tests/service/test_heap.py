"""What is free is given back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Pieces too large for Python's own pools, of which the last one keeps those below it.
SCRIPT = """
import asyncio, psutil
from service import heap

heap._EVERY_S = 0.05
held = lambda: psutil.Process().memory_info().rss / 2**20

async def play():
    trimming = asyncio.create_task(heap.keep_trimmed())
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
