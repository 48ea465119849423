"""Fixtures of the tests of HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server, answers_with, gauge, wait_until


@pytest.fixture(scope="module")
def strict(start, checkpoints, tmp_path_factory) -> Server:
    """A server with few connections and little patience."""
    one = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        head_timeout_s=1,
        body_timeout_s=1,
        max_connections=50,
        memory_store=tmp_path_factory.mktemp("memories"),
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one


@pytest.fixture
def stays_up(server: Server) -> Iterator[None]:
    """After a test the server lives, and has nothing to do."""
    yield
    wait_until(lambda: answers_with(server, "/health/live", 200))
    wait_until(lambda: gauge(server, "basin_queue_depth") == 0)
