"""Find damage in a write-ahead log of SQLite (https://www.sqlite.org/fileformat2.html#walformat)."""

from __future__ import annotations

import mmap
import struct
from functools import cache
from pathlib import Path

import numpy as np

_HEADER, _FRAME = 32, 24  # bytes of the log's header, and of that of a frame before its page
_MAGIC = 0x377F0682
_Sums = tuple[int, int]


def find_wal_damage(path: Path) -> str | None:
    """Return what is damaged of the log, or None.

    A frame that does not fit ends a log that a process or the power left in the middle of a commit:
    then no later commit follows. One that later commits follow was on the disk before these began,
    and so was changed afterwards. Damage to the last commit of a log cannot be told from a commit
    that was not finished.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        if path.stat().st_size <= _HEADER:
            return None
    except FileNotFoundError:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        return _find_damage(log)


def _find_damage(log: mmap.mmap) -> str | None:
    magic, _, page_bytes, _ = struct.unpack(">4I", log[:16])
    salts = log[16:24]
    if magic & ~1 != _MAGIC or not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
        return "it has no header of a log"
    order = ">u4" if magic & 1 else "<u4"
    sums = _add_checksum(log[:24], order, (0, 0))
    if sums != struct.unpack(">2I", log[24:32]):
        return "its header has another checksum"
    size = _FRAME + page_bytes
    starts = range(_HEADER, len(log) - size + 1, size)
    for number, start in enumerate(starts):
        frame = log[start : start + size]
        sums = _add_checksum(frame[:8] + frame[_FRAME:], order, sums)
        if frame[8:16] == salts and sums == struct.unpack(">2I", frame[16:24]):
            continue
        heads = (log[i : i + 16] for i in starts[number:])
        # Those with other salts are left from before the log began anew.
        is_commit = [head[4:8] != bytes(4) for head in heads if head[8:16] == salts]
        if True in is_commit[:-1]:
            return f"frame {number + 1} of {len(starts)} does not fit, and later commits follow it"
        return None
    return None


def _add_checksum(data: bytes, order: str, sums: _Sums) -> _Sums:
    """Go on with the checksum from `sums`.

    Over pairs (x, y) of 32-bit numbers it is s0 += x + s1, s1 += y + s0 modulo 2^32. With the
    Fibonacci numbers F and k pairs behind it, a pair adds F(2k+1) x + F(2k) y to s0 in the end, and
    F(2k+2) x + F(2k+1) y to s1.
    """
    x, y = np.frombuffer(data, order).astype(np.uint64).reshape(-1, 2).T
    numbers = _list_fibonacci(2 * len(x) + 2)
    low, mid, high = (numbers[i : i + 2 * len(x) : 2][::-1] for i in range(3))
    last = [int(number) for number in numbers[2 * len(x) - 1 : 2 * len(x) + 2]]
    first = int((mid * x).sum()) + int((low * y).sum()) + last[0] * sums[0] + last[1] * sums[1]
    second = int((high * x).sum()) + int((mid * y).sum()) + last[1] * sums[0] + last[2] * sums[1]
    return first & 0xFFFFFFFF, second & 0xFFFFFFFF


@cache
def _list_fibonacci(count: int) -> np.ndarray:
    """F(0) to F(count - 1) modulo 2^32; products of two numbers below it fit into uint64, whose
    overflow in a sum is a multiple of it."""
    numbers = [0, 1]
    while len(numbers) < count:
        numbers.append((numbers[-1] + numbers[-2]) & 0xFFFFFFFF)
    return np.array(numbers, np.uint64)
