"""Fixtures for all tests: servers, checkpoints, Redis. See `tests/support/`."""

pytest_plugins = ["tests.support.checkpoints", "tests.support.server"]
