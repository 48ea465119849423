"""How many connections one address may have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from service.errors import Problem


class Connection(Protocol):
    """An open connection; `network` is that of its peer, see `identify_network`."""

    @property
    def network(self) -> str: ...


def require_connection(connections: Collection[Connection], network: str, limit: int) -> None:
    """Refuse a connection from `network` that is one too many; `connections` include it.

    An address may have as many connections as it leaves free, as in `service.shares`. They are
    counted only once that can matter, when half of all are open.

    Raises:
        Problem: `too-many-connections`.
    """
    num_free = limit - len(connections)
    if num_free >= len(connections):
        return
    if num_free < 0:
        detail = (
            f"All {limit} connections (BASIN_MAX_CONNECTIONS) are in use. "
            "Close idle connections or retry later."
        )
        raise Problem("too-many-connections", detail, headers={"retry-after": "1"})
    num_own = sum(connection.network == network for connection in connections)
    if num_own > max(num_free, 1):
        detail = (
            f"This address has {num_own - 1} of {limit} connections (BASIN_MAX_CONNECTIONS), and "
            "may have as many as it leaves free. Close idle connections or retry later."
        )
        raise Problem("too-many-connections", detail, headers={"retry-after": "1"})
