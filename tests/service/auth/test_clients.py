"""Who a client is where limits are divided."""

from __future__ import annotations

import pytest

from service.auth.clients import identify_client, identify_network
from service.auth.keys import ANONYMOUS, ApiKey


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_addresses(address: str, network: str) -> None:
    assert identify_network((address, 1234)) == network


def test_a_key_is_its_name_wherever_it_comes_from() -> None:
    key = ApiKey(name="team", sha256=("0" * 64,), routes="*", models="*")
    assert identify_client({"user": key, "client": ("192.0.2.7", 1)}) == "team"
    assert identify_client({"user": ANONYMOUS, "client": ("192.0.2.7", 1)}) == "192.0.2.7"
    assert identify_client({"client": None}) == identify_network(None) == ""
