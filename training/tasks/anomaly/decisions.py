"""From probabilities to alerts: rules that choose the threshold on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.manifest import DailyScores, Decision, find_budget_threshold
from training.tasks.anomaly.evaluate import find_best_threshold

Rule = Literal["macro_f1", "budget", "daily_budget", "precision", "cost"]
_DAILY_RANKS = 64


@dataclass(frozen=True)
class DecisionRule:
    """How a threshold is chosen.

    - `macro_f1`: the best macro-F1 on the labelled part.
    - `budget`: the share `value` of all targets, labelled or not, is above it.
    - `daily_budget`: `value` targets of a day, on average.
    - `precision`: the lowest with a precision of `value` at least on the labelled part.
    - `cost`: the probability `value`, cost of an alert / cost of a missed fraud, where an alert and
      none cost the same on average (Elkan 2001, "The foundations of cost-sensitive learning",
      eq. 2, if a fraud that raised an alert costs no more than the alert).
    """

    rule: Rule = "macro_f1"
    value: float | None = None


@dataclass(frozen=True)
class Population:
    """All targets of the time to choose by, labelled or not, or some drawn at random.

    Attributes:
        probabilities: (m,) of those drawn.
        daily: how many there are a day, drawn or not; None where times are no timestamps.
    """

    probabilities: np.ndarray
    daily: float | None = None
    unit: str = "transactions"


def choose_threshold(
    rule: DecisionRule, probabilities: np.ndarray, labels: np.ndarray, population: Population
) -> Decision:
    """Choose the threshold by `rule`.

    Args:
        probabilities, labels: (n,) of the labelled targets to choose by.

    Raises:
        ValueError: no threshold satisfies the rule.
    """
    threshold = _find_threshold(rule, probabilities, labels, population)
    alerts = probabilities >= threshold
    loss = None
    if rule.rule == "cost" and rule.value is not None:
        loss = 1000 * float((alerts * rule.value + (~alerts & (labels == 1))).mean())
    return Decision(
        rule=rule.rule,
        value=rule.value,
        threshold=threshold,
        alert_share=float((population.probabilities >= threshold).mean()),
        precision=float(labels[alerts].mean()) if alerts.any() else None,
        recall=float(alerts[labels == 1].mean()),
        loss=loss,
        daily=None if population.daily is None else _summarize_day(population),
    )


def _find_threshold(
    rule: DecisionRule, probabilities: np.ndarray, labels: np.ndarray, population: Population
) -> float:
    value = rule.value
    if rule.rule == "macro_f1":
        return find_best_threshold(probabilities, labels)
    if value is None or not (value > 0 and (value < 1 or rule.rule == "daily_budget")):
        raise ValueError(f"The rule {rule.rule!r} cannot have the value {value}.")
    if rule.rule == "cost":
        return value
    if rule.rule == "budget":
        return _find_share_threshold(value, "--budget", population)
    if rule.rule == "daily_budget":
        if population.daily is None:
            raise ValueError("--daily-budget needs timestamps; times are numbers. Use --budget.")
        share = min(value / population.daily, 1.0)
        return _find_share_threshold(share, "--daily-budget", population)
    order = np.argsort(-probabilities, kind="stable")
    ranked, hits = probabilities[order], labels[order] == 1
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    possible = precision >= value
    possible[:-1] &= ranked[:-1] != ranked[1:]  # a threshold cannot part equal probabilities
    if not possible.any():
        raise ValueError(
            f"No threshold has a precision of {value:g} on the validation part; the highest is "
            f"{precision.max():.3f}. Choose a lower --precision-goal."
        )
    last = int(np.flatnonzero(possible)[-1])
    lower = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    return _find_midpoint(float(ranked[last]), float(lower))


def _find_share_threshold(share: float, option: str, population: Population) -> float:
    probabilities = population.probabilities
    count = int(share * len(probabilities) + 1e-9)
    lowest = find_budget_threshold(probabilities, count)
    if lowest is None:
        raise ValueError(
            f"A budget of {share:g} of the {len(probabilities)} {population.unit} of the validation"
            f" part is {count}, and more have the highest probability. Choose a larger {option}."
        )
    below = probabilities[probabilities < lowest]
    return _find_midpoint(lowest, float(below.max()) if len(below) else 0.0)


def _summarize_day(population: Population) -> DailyScores:
    """The probability at places of a day, in geometric steps from the first to the last."""
    assert population.daily is not None
    ranked = np.sort(population.probabilities)[::-1]
    count, daily = len(ranked), population.daily
    places = np.geomspace(1, count, _DAILY_RANKS).round().astype(int)
    # Equal inputs all alert or none: the last of them says how many that are, and the one before
    # the first, with which probability none of them does.
    last = np.searchsorted(-ranked, -ranked[places - 1], side="right")
    before = np.searchsorted(-ranked, -ranked[places - 1], side="left")
    places = np.unique(np.concatenate([last, before[before > 0]]))
    return DailyScores(
        inputs=daily,
        ranks=tuple((places * daily / count).tolist()),
        probabilities=tuple(ranked[places - 1].tolist()),
    )


def _find_midpoint(upper: float, lower: float) -> float:
    """A threshold between two probabilities; the upper one where nothing is between them."""
    middle = (upper + lower) / 2
    return middle if middle > lower else upper
