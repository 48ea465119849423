"""Fixtures for all tests: servers, checkpoints, Redis. See `tests/support/server.py`."""

pytest_plugins = ["tests.support.server"]
