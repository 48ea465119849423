"""Give back what is free.

glibc keeps what many requests at once have taken, in pieces, in an arena for each thread: without
this a server is for good as large as in its worst moment.
"""

from __future__ import annotations

import asyncio
import ctypes
import platform

_EVERY_S = 30.0


async def keep_trimmed() -> None:
    """Return free memory to the system again and again, where this is Linux with glibc."""
    if platform.libc_ver()[0] != "glibc":
        return
    trim = ctypes.CDLL(None).malloc_trim
    while True:
        await asyncio.sleep(_EVERY_S)
        await asyncio.to_thread(trim, 0)
