"""From a table of transactions to what a network reads, by a recipe that stays with the weights."""

from models.inputs.transactions.history import TransactionHistory
from models.inputs.transactions.recipe import TransactionRecipe, fit_recipe
from models.inputs.transactions.rows import Transactions, parse_timestamp

__all__ = [
    "TransactionHistory",
    "TransactionRecipe",
    "Transactions",
    "fit_recipe",
    "parse_timestamp",
]
