"""From probabilities to alerts: rules that choose the threshold on validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.checkpoint import Decision
from training.tasks.anomaly.evaluate import find_best_threshold

Rule = Literal["macro_f1", "budget", "precision", "cost"]


@dataclass(frozen=True)
class DecisionRule:
    """How a threshold is chosen.

    - `macro_f1`: the best macro-F1 on the labelled part.
    - `budget`: the share `value` of all transactions, labelled or not, is above it.
    - `precision`: the lowest with a precision of `value` at least on the labelled part.
    - `cost`: from a probability of cost of an alert / cost of a missed fraud on, `value`, which is
      where the expected cost of either is equal (Elkan 2001, "The foundations of cost-sensitive
      learning", eq. 2, where an alert ends a fraud).
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
        count = max(1, round(value * len(population)))
        ranked = np.sort(population)[::-1]
        lower = ranked[count] if count < len(ranked) else 0.0
        # Rows of equal probability are all in or all out: out, where all would exceed the budget.
        if ranked[count - 1] == lower:
            above = ranked[ranked > lower]
            upper = above[-1] if len(above) else 1.0 + 1e-6  # above every probability
            return float((upper + lower) / 2)
        return float((ranked[count - 1] + lower) / 2)
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
    return float((ranked[last] + lower) / 2)
