"""What tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models.fused import system


@pytest.fixture(params=[1, 3], ids=["alone", "together"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """As many look at all there is, however little."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(system, "_MUCH", 0)
    yield request.param
    torch.set_num_threads(before)
