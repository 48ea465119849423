"""Return free memory to the operating system.

glibc keeps freed memory, fragmented, in one arena per thread: without trimming a server stays as
large as at its peak. Reference cycles are freed only by a full collection, which Python runs
rarely because the libraries have many old objects.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
from functools import cache
from itertools import count
from typing import NamedTuple

_TRIM_INTERVAL_S = 5.0
_TRIMS_PER_COLLECTION = 6  # a full collection runs before every sixth trim
_ARENAS, _ARENA_MAX = 2, -8  # the second is glibc's number of M_ARENA_MAX


def limit_malloc_arenas() -> None:
    """Make all threads share two arenas, so that free memory is reused; call before threads start.

    This costs little, since the interpreter runs one thread at a time."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_ARENA_MAX, _ARENAS)


class MallocStats(NamedTuple):
    """Bytes that malloc has allocated, and bytes that are free in its arenas. Python objects of up
    to 512 bytes are not counted: they have separate pools."""

    in_use: int
    free: int


def malloc_stats() -> MallocStats | None:
    """What malloc holds now; none where it is not that of glibc 2.33 or later."""
    libc = _glibc()
    if libc is None or not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _MallInfo
    told = libc.mallinfo2()
    return MallocStats(told.uordblks + told.hblkhd, told.fordblks)


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def freeze_gc_heap() -> None:
    """The collector looks no more at what there is now: what was imported and loaded stays for
    good, or goes when nothing refers to it."""
    gc.collect()
    gc.freeze()


async def trim_periodically() -> None:
    """Return free memory to the system again and again, where this is Linux with glibc, and find
    garbage."""
    libc = _glibc()
    for turn in count(1):
        await asyncio.sleep(_TRIM_INTERVAL_S)
        if turn % _TRIMS_PER_COLLECTION == 0:
            gc.collect()  # on no thread would it keep others waiting less
        if libc is not None:
            await asyncio.to_thread(libc.malloc_trim, 0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
