"""From the probabilities of a request to alerts."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from models.checkpoint import find_budget_threshold
from service.endpoints.common.schemas import Strict


class AlertRule(Strict):
    """Which of the targets get label 1, in place of the model's threshold; one of the four."""

    budget: int | None = Field(
        None, ge=0, description="that many targets, or fewer where several are equal"
    )
    share: float | None = Field(None, ge=0, le=1, description="that share of the targets at most")
    threshold: float | None = Field(None, ge=0, le=1, description="from that probability on")
    cost_ratio: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="where an alert pays: its cost / the cost of a missed fraud, so that label 1 "
        "begins at this probability",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(
                f"`decision` has {len(self.model_fields_set)} rules. Give one of budget, share, "
                "threshold and cost_ratio."
            )
        return self

    def find_threshold(self, probability: np.ndarray) -> float:
        """Return the lowest probability with label 1; above 1 where no target gets it.

        Targets of equal probability all get label 1 or none of them, so that a budget holds.
        """
        if self.threshold is not None:
            return self.threshold
        if self.cost_ratio is not None:
            return self.cost_ratio
        count = self.budget if self.share is None else int(self.share * len(probability) + 1e-9)
        assert count is not None
        lowest = find_budget_threshold(probability, count)
        return float(np.nextafter(1, 2)) if lowest is None else lowest
