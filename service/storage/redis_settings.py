"""What the settings of Redis mean for what is stored there; docs/operations.md has the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

_READ = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "save")


async def check_redis_settings(client: Redis) -> list[str]:
    """Return a message for each setting by which stored graphs, jobs or memories may be lost.

    Cached responses expire, and rates and quotas begin anew: they need no setting.

    Raises:
        RedisError: Redis is unavailable.
    """
    try:
        info: Mapping[str, Any] = await client.info()
    except ResponseError:  # by an ACL
        info = {}
    try:
        settings = await client.config_get(*_READ)
    except ResponseError:  # managed services refuse it; INFO has some of them
        settings = {
            "appendonly": {0: "no", 1: "yes"}.get(info.get("aof_enabled", -1)),
            "maxmemory": info.get("maxmemory"),
            "maxmemory-policy": info.get("maxmemory_policy"),
        }
    known = {name: str(value) for name, value in settings.items() if value is not None}
    return [*_describe_settings(known), *_describe_role(info)]


def _describe_settings(settings: Mapping[Any, str]) -> list[str]:
    messages = list[str]()
    if settings.get("appendonly", "yes") != "yes":
        save = settings.get("save")
        messages.append(
            "Redis has `appendonly no`: when it restarts, graphs, jobs and memories are lost, "
            + ("all of them" if save == "" else "those accepted since its last snapshot")
            + (f" (`save {save}`)" if save else "")
            + ". Set `appendonly yes`."
        )
    elif settings.get("appendfsync") == "no":
        messages.append(
            "Redis has `appendfsync no`: graphs, jobs and memories that were accepted within half "
            "a minute or more before a power cut are lost. Set `everysec`, which loses about a "
            "second, or `always`, which loses none."
        )
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and not policy.startswith("volatile-"):
        messages.append(
            f"Redis has `maxmemory-policy {policy}`: when its memory is full it deletes graphs, "
            "jobs and memories that were accepted. Set `volatile-lru`, which deletes cached "
            "responses; `noeviction` and the other `volatile-` policies are allowed too."
        )
    if settings.get("maxmemory") == "0":
        messages.append(
            "Redis has `maxmemory 0`, no limit: when the memory of its machine is full, the system "
            "ends it. Set `maxmemory` to what it may use, less than its machine or container has."
        )
    if unknown := [name for name in _READ if name not in settings and name != "save"]:
        messages.append(
            f"Redis refuses CONFIG GET: {', '.join(unknown)} could not be checked. Needed are "
            "`appendonly yes`, `appendfsync everysec` or `always`, a `maxmemory`, and "
            "`maxmemory-policy volatile-lru` or `noeviction`: look at the settings of the service."
        )
    return messages


def _describe_role(info: Mapping[str, Any]) -> list[str]:
    messages = list[str]()
    if info.get("redis_mode") == "cluster":
        messages.append(
            "Redis is a Redis Cluster, and refuses commands on several keys. Use a single server."
        )
    if info.get("role") == "slave":
        messages.append(
            "Redis is a replica, and refuses writes. Set BASIN_REDIS_URL to the primary."
        )
    elif replicas := info.get("connected_slaves", 0):
        messages.append(
            f"Redis has {replicas} replicas: writes are acknowledged before a replica has them "
            "(WAIT is not used), so a failover may lose the last ones, whatever `appendfsync` is. "
            "To lose none, have this server restarted on its disk instead of replaced."
        )
    return messages
