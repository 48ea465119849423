"""All settings of the server, read from environment variables."""

from __future__ import annotations

import ipaddress
from typing import ClassVar, Self

from pydantic import model_validator

from service.settings.group import PREFIX, SettingsGroup
from service.settings.inference import (
    AlertSettings,
    GraphSettings,
    ImageSettings,
    MemorySettings,
    ModelSettings,
    MoleculeSettings,
    RequestSettings,
    decode_webhook_secret,
)
from service.settings.process import (
    AccessSettings,
    CacheSettings,
    LogSettings,
    NetworkSettings,
    QueueSettings,
)

__all__ = ["PREFIX", "Settings", "decode_webhook_secret", "is_loopback"]


class Settings(
    NetworkSettings,
    AccessSettings,
    ModelSettings,
    QueueSettings,
    RequestSettings,
    GraphSettings,
    AlertSettings,
    MoleculeSettings,
    ImageSettings,
    MemorySettings,
    CacheSettings,
    LogSettings,
):
    """Settings; `max_nodes` is read from `BASIN_MAX_NODES`, and so on."""

    title: ClassVar = "Settings"

    @classmethod
    def groups(cls) -> list[type[SettingsGroup]]:
        """Return the groups in the order in which they are read."""
        return [base for base in Settings.__bases__ if issubclass(base, SettingsGroup)]

    @model_validator(mode="after")
    def _check_jobs(self) -> Self:
        if not self.run_jobs and self.redis_url is None:
            raise ValueError("BASIN_RUN_JOBS=false needs BASIN_REDIS_URL, from which workers read")
        return self

    @model_validator(mode="after")
    def _require_keys_beyond_loopback(self) -> Self:
        hosts = [self.host] if self.admin_port is None else [self.host, self.admin_host]
        if self.keys is None and not self.open and not all(map(is_loopback, hosts)):
            raise ValueError(
                "BASIN_HOST or BASIN_ADMIN_HOST is not a loopback address. Set BASIN_KEYS, "
                "or BASIN_OPEN=true behind a proxy that authenticates clients"
            )
        return self


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
