"""Training that looks at few neighbourhoods in the end, which takes longest of a small one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from training.tasks.anomaly import neighborhoods
from training.tasks.anomaly.transactions import export


@contextmanager
def few_references() -> Iterator[None]:
    """Choose the reach by 100 nodes, and compare energies with those of 300."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(neighborhoods, "_TRIED", 100)
        patched.setattr(neighborhoods, "_REFERENCES", 300)
        patched.setattr(export, "_REFERENCES", 300)
        yield
