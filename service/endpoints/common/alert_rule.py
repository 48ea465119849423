"""From the probabilities of a request to alerts."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from models.manifest import Manifest, find_budget_threshold
from service.endpoints.common.schemas import Strict
from service.errors import FieldError
from service.validation.schema_errors import make_request_problem


class AlertRule(Strict):
    """Which of the targets get label 1, in place of the model's threshold; one of these rules."""

    budget: int | None = Field(
        None, ge=0, description="that many targets, or fewer where several are equal"
    )
    daily_budget: float | None = Field(
        None,
        gt=0,
        description="alerts of a day: from the probability on that this number of inputs reached "
        "in the model's validation part, on average",
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
                f"`decision` has {len(self.model_fields_set)} rules. Give one of budget, "
                "daily_budget, share, threshold and cost_ratio."
            )
        return self

    def for_model(self, manifest: Manifest) -> Self:
        """Return the rule with the threshold in place of a daily budget.

        Raises:
            Problem: the model has no distribution of a day.
        """
        if self.daily_budget is None:
            return self
        threshold = find_daily_threshold(manifest, self.daily_budget, "/decision/daily_budget")
        return type(self).model_validate({"threshold": threshold})

    def find_threshold(self, probability: np.ndarray) -> float:
        """Return the lowest probability with label 1; above 1 where no target gets it.

        Targets of equal probability all get label 1 or none of them, so that a budget holds.
        """
        if self.threshold is not None:
            return self.threshold
        if self.cost_ratio is not None:
            return self.cost_ratio
        assert self.daily_budget is None  # it is a threshold once there is a model
        count = self.budget if self.share is None else int(self.share * len(probability) + 1e-9)
        assert count is not None
        lowest = find_budget_threshold(probability, count)
        return float(np.nextafter(1, 2)) if lowest is None else lowest


def find_daily_threshold(manifest: Manifest, alerts: float, where: str) -> float:
    """Return the threshold that gave a number of alerts a day on the model's validation part.

    Args:
        where: pointer to the field that asks for it.

    Raises:
        Problem: the model has no distribution of a day.
    """
    daily = None if manifest.decision is None else manifest.decision.daily
    if daily is None:
        rule = (
            "The model does not say how many of its inputs have which probability in a day: it was "
            "not trained on transactions with timestamps, or by an earlier version. Use a "
            "threshold, or a budget or share of the targets."
        )
        raise make_request_problem([FieldError(where, "not_read", rule)])
    return daily.find_threshold(alerts)
