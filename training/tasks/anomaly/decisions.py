"""From probabilities to alerts: rules that choose the threshold on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.checkpoint import Decision, find_budget_threshold
from training.tasks.anomaly.evaluate import find_best_threshold

Rule = Literal["macro_f1", "budget", "precision", "cost"]


@dataclass(frozen=True)
class DecisionRule:
    """How a threshold is chosen.

    - `macro_f1`: the best macro-F1 on the labelled part.
    - `budget`: the share `value` of all transactions, labelled or not, is above it.
    - `precision`: the lowest with a precision of `value` at least on the labelled part.
    - `cost`: the probability `value`, cost of an alert / cost of a missed fraud, where an alert and
      none cost the same on average (Elkan 2001, "The foundations of cost-sensitive learning",
      eq. 2, if a fraud that raised an alert costs no more than the alert).
    """

    rule: Rule = "macro_f1"
    value: float | None = None


def choose_threshold(
    rule: DecisionRule,
    probabilities: np.ndarray,
    labels: np.ndarray,
    population: np.ndarray,
) -> Decision:
    """Choose the threshold by `rule`.

    Args:
        probabilities, labels: (n,) of the labelled transactions to choose by.
        population: (m,) probabilities of all transactions of the same time, labelled or not.

    Raises:
        ValueError: no threshold satisfies the rule.
    """
    threshold = _find_threshold(rule, probabilities, labels, population)
    alerts = probabilities >= threshold
    return Decision(
        rule=rule.rule,
        value=rule.value,
        threshold=threshold,
        alert_share=float((population >= threshold).mean()),
        precision=float(labels[alerts].mean()) if alerts.any() else None,
        recall=float(alerts[labels == 1].mean()),
    )


def _find_threshold(
    rule: DecisionRule, probabilities: np.ndarray, labels: np.ndarray, population: np.ndarray
) -> float:
    value = rule.value
    if rule.rule == "macro_f1":
        return find_best_threshold(probabilities, labels)
    if value is None or not 0 < value < 1:
        raise ValueError(f"The rule {rule.rule!r} needs a value between 0 and 1, not {value}.")
    if rule.rule == "cost":
        return value
    if rule.rule == "budget":
        count = int(value * len(population) + 1e-9)
        lowest = find_budget_threshold(population, count)
        if lowest is None:
            raise ValueError(
                f"A budget of {value:g} of the {len(population)} transactions of the validation "
                f"part is {count}, and more have the highest probability. Choose a larger --budget."
            )
        below = population[population < lowest]
        return _find_midpoint(lowest, float(below.max()) if len(below) else 0.0)
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


def _find_midpoint(upper: float, lower: float) -> float:
    """A threshold between two probabilities; the upper one where nothing is between them."""
    middle = (upper + lower) / 2
    return middle if middle > lower else upper
