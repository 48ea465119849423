"""A table of payments."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from training.datasets.payments import simulate_payments


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return simulate_payments(1000, fraud_share=0.05, seed=5).drop(columns=["is_fraud", "typology"])


@pytest.fixture(scope="module")
def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")
