"""Fixtures for all tests: servers, checkpoints, Redis. See `tests/support/`."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.support.checkpoints", "tests.support.server"]

_LONG = ("tests/training/", "tests/service/system/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that at the end both processes have work."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
