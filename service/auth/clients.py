"""Who a client is where limits are divided among clients: an API key, or an address without one."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from starlette.types import Scope

from service.auth.keys import ANONYMOUS, ApiKey

_IPV6_PREFIX = 64  # what one subscriber gets; each has 2^64 addresses of it to choose from


def identify_client(scope: Scope) -> str:
    """Return the name of the API key of a request; without one the network that it came from.

    A job without a key has no address, so all of them are one client, the empty name. No name of a
    key looks like an address.
    """
    caller: ApiKey = scope.get("user", ANONYMOUS)
    return caller.name or identify_network(scope.get("client"))


def identify_network(client: tuple[str, int] | None) -> str:
    """Return the address of the peer of a connection, of IPv6 its /64; empty if it has none.

    Headers such as X-Forwarded-For are not read: anyone can send them. Behind a proxy all clients
    without keys have its address.
    """
    return _network(client[0]) if client else ""


@lru_cache(maxsize=4096)
def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])  # without the zone
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed, _IPV6_PREFIX), strict=False))
