"""Fixtures for all tests: servers, checkpoints, Redis. See `tests/support/`."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoints import Sample, make_sample, save_checkpoints

pytest_plugins = ["tests.support.server"]

# Each client of httpx would read the certificates of the system again, for 30 ms.
ssl.create_default_context = functools.cache(ssl.create_default_context)

_LONG = (
    "tests/training/",
    "tests/service/system/",
    "tests/docs/test_site.py",
    "tests/docker/",
    "tests/service/endpoints/test_schemathesis.py",
    "tests/service/endpoints/jobs/",
    "tests/service/endpoints/page/",
    "tests/service/endpoints/transactions/",
    "tests/service/endpoints/alerts/",
    "tests/service/engine/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that at the end both processes have work."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    return make_sample


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of `save_checkpoints`."""
    folder = tmp_path_factory.mktemp("checkpoints")
    save_checkpoints(folder)
    return folder
