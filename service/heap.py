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

_EVERY_S = 30.0


def spare_what_is_there() -> None:
    """The collector looks no more at what there is now: what was imported stays for good."""
    gc.collect()
    gc.freeze()


async def keep_trimmed() -> None:
    """Find garbage again and again; return free memory to the system, where this is Linux with
    glibc."""
    trim = ctypes.CDLL(None).malloc_trim if platform.libc_ver()[0] == "glibc" else None
    while True:
        await asyncio.sleep(_EVERY_S)
        gc.collect()  # on no thread would it keep others waiting less
        if trim is not None:
            await asyncio.to_thread(trim, 0)
