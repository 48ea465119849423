"""Names of the features of accounts; `models.kernels.accounts` computes them."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = ("is_account", "sent_by_account", "received_by_account")
"""What a node is: the account that is scored, or a transaction, and on which side it has it."""
SIDES = ("sent", "received")
PER_WINDOW = ("count", "sum", "partners", "gap")


def list_features(windows: Iterable[str]) -> tuple[str, ...]:
    """Return the names, in order, of windows that are called so."""
    spans = list(windows)
    per_window = [f"{what}_{span}" for span in spans for what in PER_WINDOW]
    of_sides = [f"account_{side}_{name}" for side in SIDES for name in ("since", *per_window)]
    return (*of_sides, *(f"account_balance_{span}" for span in spans))
