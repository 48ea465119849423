"""Give back what is free.

glibc keeps what many requests at once have taken, in pieces, in an arena for each thread: without
this a server is for good as large as in its worst moment. And what refers to itself is found by the
collector alone, which looks at old objects rarely, there being so many of the libraries'.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
from functools import cache
from itertools import count
from typing import NamedTuple

_TRIM_INTERVAL_S, _TRIMS_PER_COLLECTION = (
    5.0,
    6,
)  # memory goes back each time, garbage is looked for once in so many
_ARENAS, _ARENA_MAX = 2, -8  # the second is glibc's number for it


def limit_malloc_arenas() -> None:
    """All threads allocate from two arenas, which get filled again before others grow; to be called
    before there are threads. The interpreter lets one thread run at a time anyway."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_ARENA_MAX, _ARENAS)


class MallocStats(NamedTuple):
    """Bytes that malloc gave out, and bytes that it keeps between them. What Python's objects of up
    to 512 bytes take is not in it: they have pools of their own."""

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
