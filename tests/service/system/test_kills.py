"""A server that is killed under writes to graphs, transactions, memories and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kill_rounds import KINDS, run_rounds


def test_two_kills_lose_nothing(tmp_path: Path) -> None:
    counts = run_rounds(tmp_path, rounds=2, seed=7)
    assert counts.total() > len(KINDS)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    counts = run_rounds(tmp_path, rounds=50, seed=1)
    assert min(counts.values()) > 50
