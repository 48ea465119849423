"""Small graphs of transactions, and rows for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.inputs.transactions import TransactionRecipe, Transactions
from service.storage.graphs import GraphLimits, NewTransactions, StreamSettings, TransactionGraph
from service.validation.arrays import pointer_builder

ROOM = GraphLimits(max_graphs=3, max_nodes=5000, max_edges=10)
AT = pointer_builder("transactions")
RECIPE = TransactionRecipe(
    time="when",
    source="source",
    target="target",
    amount="amount",
    categories={"kind": ("k0",)},
    shared=("device",),
    numbers=("fee",),
    medians={"amount": 1.0, "fee": 0.0},
    with_missing=("amount",),
    calendar=False,
    windows=(5.0, 20.0),
    accounts_pay_and_are_paid=True,
)
SETTINGS = StreamSettings("model", RECIPE, None, 2 * RECIPE.reach)
SETTINGS_WITH_WEBHOOK = replace(SETTINGS, webhook="https://a.b/c")


def stream() -> TransactionGraph:
    """Return an empty graph that sends its alerts to a webhook."""
    return TransactionGraph(SETTINGS_WITH_WEBHOOK, None, -np.inf, 0)


def make_rows(count: int, seed: int = 0) -> NewTransactions:
    rng = np.random.default_rng(seed)

    def names(prefix: str, many: int) -> np.ndarray:
        return np.array([f"{prefix}{i}" for i in rng.integers(many, size=count)], object)

    amount = rng.exponential(10, count)
    amount[rng.random(count) < 0.1] = np.nan
    device = names("d", 5)
    device[::7] = ""
    rows = Transactions(
        np.sort(rng.random(count) * count),
        *(names("a", 20), names("a", 20), amount),
        {"kind": names("k", 3), "device": device},
        {"fee": rng.random(count)},
    )
    return NewTransactions([f"t{i}" for i in range(count)], rows, rows.time)
