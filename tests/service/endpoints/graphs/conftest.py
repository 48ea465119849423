"""A server with room for three small graphs."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def server(start, checkpoints, wait, answers):
    one = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        max_stored_graphs=3,
        max_stored_nodes=200,
        max_stored_edges=500,
        cache_bytes=1 << 20,
    )
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client
        for graph in client.get("/graphs").json()["graphs"]:
            assert client.delete(f"/graphs/{graph['id']}").status_code == 204
