"""From rows of transactions to features and graphs, by a recipe that is part of a checkpoint."""

from models.inputs.transactions.accounts import (
    LastStates,
    find_history_kind,
    find_last_states,
    list_states,
)
from models.inputs.transactions.history import (
    NeighborhoodTooLargeError,
    TransactionError,
    TransactionHistory,
)
from models.inputs.transactions.labels import KnownLabels
from models.inputs.transactions.recipe import TransactionRecipe, fit_recipe
from models.inputs.transactions.rolling import RollingHistory
from models.inputs.transactions.rows import Transactions, parse_timestamp

__all__ = [
    "KnownLabels",
    "LastStates",
    "NeighborhoodTooLargeError",
    "RollingHistory",
    "TransactionError",
    "TransactionHistory",
    "TransactionRecipe",
    "Transactions",
    "find_history_kind",
    "find_last_states",
    "fit_recipe",
    "list_states",
    "parse_timestamp",
]
