"""A server with a graph of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live_transactions import GRAPH, SETTINGS
from tests.support.server import Server
from training.datasets.payments import simulate_payments


@pytest.fixture(scope="module")
def server(start, wait, answers) -> Server:
    one = start(**SETTINGS, max_alert_streams=2)
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        assert client.put("/graphs/g", json=GRAPH).status_code in (200, 201)
        yield client


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    frame = simulate_payments(1000, fraud_share=0.05, seed=5)
    return frame.drop(columns=["is_fraud", "typology"]).to_dict("records")
