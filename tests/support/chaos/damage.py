"""Damage what Redis holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError

JOB = "basin:job:"  # and the id
JUNK = (b"", b"garbage", b"\xff\xfe\x00", b"{}", b"[]", b"5", b'{"features":5}', b"\x00" * 100)


def damage(
    client: Any, what: str, owner: str, name: str, jobs: Sequence[str], value: int
) -> str | None:
    """Overwrite a value; return its key, or None if there was none, or no room for another.

    Args:
        name: of the graph or memory.
        jobs: ids, of which the first that Redis has is damaged.
        value: chooses what is written.
    """
    junk = JUNK[value % len(JUNK)]
    try:
        if what in ("job hash", "job body"):
            return _damage_job(client, what, jobs, junk)
        return _overwrite(client, what, owner, name, junk, value)
    except OutOfMemoryError:
        return None


def _overwrite(
    client: Any, what: str, owner: str, name: str, junk: bytes, value: int
) -> str | None:
    graph, memory = f"basin:graph:{owner}/{name}", f"basin:memory:{owner}/{name}"
    match what:
        case "graph head":
            return _replace_field(client, f"basin:graphs:{owner}", name, junk)
        case "graph snapshot":
            return f"{graph}:base" if client.set(f"{graph}:base", junk, xx=True) else None
        case "graph log":
            return f"{graph}:log" if client.rpushx(f"{graph}:log", junk) else None
        case "graph log entry":
            if not client.llen(f"{graph}:log"):
                return None
            client.lset(f"{graph}:log", 0, junk)
            return f"{graph}:log"
        case "graph key type":
            if not client.exists(f"{graph}:base"):
                return None
            with client.pipeline(transaction=True) as both:  # neither, where there is no room
                both.delete(f"{graph}:base").rpush(f"{graph}:base", junk).execute()
            return f"{graph}:base"
        case "memory content":
            return memory if client.set(memory, junk, xx=True) else None
        case "memory index":
            return _replace_field(client, "basin:memories", f"{owner}/{name}", junk)
        case "job ghost":
            client.zadd("basin:jobs:waiting", {f"ghost-{value}": -value})
            return "basin:jobs:waiting"
        case "job foreign id":
            client.zadd("basin:jobs:waiting", {b"\xff\xfe": 0})
            client.zadd("basin:jobs:running", {b"\xfe": 0})
            return "basin:jobs:running"
        case "cached answers":
            keys = list(client.scan_iter("basin:answer:*"))
            for key in keys:
                client.set(key, junk, keepttl=True)
            return "basin:answer:*" if keys else None
        case "rate":
            values = ("inf", "nan", "x", "1e300", "-1e300", "99999999999")
            client.set("basin:rate:limited", values[value])
            return "basin:rate:limited"
        case _:
            raise ValueError(what)


def _replace_field(client: Any, key: str, field: str, junk: bytes) -> str | None:
    if not client.hexists(key, field):
        return None
    client.hset(key, field, junk)
    return key


def _damage_job(client: Any, what: str, jobs: Sequence[str], junk: bytes) -> str | None:
    for key in (JOB + id for id in jobs):
        if what == "job hash" and client.delete(key):
            return key
        if what == "job body" and _replace_field(client, key, "body", junk):
            return key
    return None
