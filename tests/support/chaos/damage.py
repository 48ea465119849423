"""Damage what Redis holds."""

from __future__ import annotations

import random
from typing import Any

from redis.exceptions import OutOfMemoryError

JUNK = (b"", b"garbage", b"\xff\xfe\x00", b"{}", b"[]", b"5", b'{"features":5}', b"\x00" * 100)


def damage(client: Any, what: str, owner: str, name: str, value: int) -> bool:
    """Overwrite a value; return whether there was one, and room for another."""
    try:
        return _overwrite(client, what, owner, name, value)
    except OutOfMemoryError:
        return False


def _overwrite(client: Any, what: str, owner: str, name: str, value: int) -> bool:
    junk = JUNK[value % len(JUNK)]
    graph = f"basin:graph:{owner}/{name}"
    match what:
        case "graph head":
            if not client.hexists(f"basin:graphs:{owner}", name):
                return False
            client.hset(f"basin:graphs:{owner}", name, junk)
        case "graph snapshot":
            return bool(client.set(f"{graph}:base", junk, xx=True))
        case "graph log":
            return bool(client.rpushx(f"{graph}:log", junk))
        case "graph log entry":
            if not client.llen(f"{graph}:log"):
                return False
            client.lset(f"{graph}:log", 0, junk)
        case "graph key type":
            if not client.exists(f"{graph}:base"):
                return False
            client.delete(f"{graph}:base")
            client.rpush(f"{graph}:base", junk)
        case "memory content":
            return bool(client.set(f"basin:memory:{owner}/{name}", junk, xx=True))
        case "memory index":
            if not client.hexists("basin:memories", f"{owner}/{name}"):
                return False
            client.hset("basin:memories", f"{owner}/{name}", junk)
        case "job hash":
            if job := _choose(client, "basin:job:*", value):
                client.delete(job)
        case "job body":
            if job := _choose(client, "basin:job:*", value):
                client.hset(job, "body", junk)
        case "job ghost":
            client.zadd("basin:jobs:waiting", {f"ghost-{value}": -value})
        case "job foreign id":
            client.zadd("basin:jobs:waiting", {b"\xff\xfe": 0})
            client.zadd("basin:jobs:running", {b"\xfe": 0})
        case "cached answers":
            for key in client.scan_iter("basin:answer:*"):
                client.set(key, junk, keepttl=True)
        case "rate":
            client.set(
                "basin:rate:limited", ("inf", "nan", "x", "1e300", "-1e300", "99999999999")[value]
            )
        case _:
            raise ValueError(what)
    return True


def _choose(client: Any, pattern: str, seed: int) -> bytes | None:
    keys = sorted(client.scan_iter(pattern))
    return random.Random(seed).choice(keys) if keys else None
