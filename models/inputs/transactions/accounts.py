"""Accounts of a table of transactions, each as of a row that it takes part in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, final

import numpy as np

from models.inputs.graph import Graph
from models.inputs.transactions.account_features import KINDS
from models.inputs.transactions.history import NeighborhoodTooLargeError, TransactionHistory
from models.inputs.transactions.recipe import TransactionRecipe
from models.inputs.transactions.rows import Transactions
from models.kernels import accounts as kernels
from models.kernels.transactions import NONE

# Keys and last rows of what the account of a row sent and received, by views of the series: that of
# the source is (sent, received by it), that of the target (sent by it, received).
_VIEWS = np.array([[0, 3], [4, 1]])
_BYTES_OF_AN_ACCOUNT = 100  # its entry in a dictionary or set


@final
class AccountHistory(TransactionHistory):
    """Transactions as they came, and their accounts.

    A target is the state of an account as of a row r that it takes part in: 2 r of the one who
    pays, 2 r + 1 of the one who is paid. It does not depend on later rows.
    """

    targets_per_row: ClassVar[int] = 2

    def build_graph(
        self, targets: np.ndarray, max_nodes: int = 2**31 - 1
    ) -> tuple[Graph, np.ndarray, np.ndarray]:
        """Return the neighbourhoods of states side by side as one graph of accounts and
        transactions; the transaction that each node is, -1 of accounts; and the nodes of the
        accounts.

        Raises:
            NeighborhoodTooLargeError: the graph would have more than `max_nodes` nodes.
        """
        states = np.asarray(targets, np.int64)
        recipe, r = self.recipe, self._rows
        nodes, bounds, edges = kernels.collect(
            *(states // 2, self._find_last_rows(states)),
            *(recipe.hops, recipe.neighbors, recipe.memory),
            *(r["time"][: len(self)], self._chain_of, r["before"], r["head"]),
            *(r["place"], r["linked"], recipe.max_nodes, max_nodes),
        )
        if len(nodes) > max_nodes:
            raise NeighborhoodTooLargeError(max_nodes)
        own, sizes = bounds[:-1], np.diff(bounds)
        is_account = nodes == NONE
        x = self._lay_out(np.repeat(states, sizes - 1), nodes[~is_account])
        x_NF = np.empty((len(nodes), x.shape[1]), np.float32)
        x_NF[~is_account], x_NF[own] = x, self.describe(states)
        return Graph(x_NF, edges), nodes, own

    def describe(self, targets: np.ndarray) -> np.ndarray:
        """Return the features of the nodes of accounts; those of transactions are 0."""
        states = np.asarray(targets, np.int64)
        recipe, r = self.recipe, self._rows
        own = np.empty((len(states), len(recipe.account_features)))
        kernels.describe(
            *(states // 2, self._find_last_rows(states), r["time"], r["amount"]),
            *(r["before"], r["after"], self._windows, own),
        )
        x = np.zeros((len(states), len(recipe.features)), np.float32)
        x[:, 0] = 1
        x[:, recipe.own_features] = own
        return x

    def describe_kinds(self, targets: np.ndarray) -> np.ndarray:
        """Return the features of accounts, and of the transactions as of which they are."""
        states = np.asarray(targets, np.int64)
        return np.concatenate([self.describe(states), self._lay_out(states, states // 2)])

    def list_columns(self, targets: np.ndarray) -> Iterator[np.ndarray]:
        x_NF = self.describe_kinds(targets)
        accounts, others = x_NF[: len(targets)], x_NF[len(targets) :]
        own, first = self.recipe.own_features, len(KINDS)
        for place, values in enumerate(x_NF.T):
            kind = accounts if place in own else others
            yield values if place < first else kind[:, place]

    def _lay_out(self, states: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the features of transactions that are each near an account, (n, F)."""
        x = np.zeros((len(rows), len(self.recipe.features)), np.float32)
        keys = self._rows["key"]
        x[:, 1:3] = keys[rows][:, :2] == self._take_views("key", states)
        transaction_features = self._rows["x"][rows]
        x[:, len(KINDS) : len(KINDS) + transaction_features.shape[1]] = transaction_features
        return x

    def _find_last_rows(self, states: np.ndarray) -> np.ndarray:
        """Return the last row that each account sent and received, up to its own; (n, 2)."""
        last = self._take_views("head", states)
        own = states // 2
        keys = self._rows["key"][own]
        takes_part = keys[:, :2] == self._take_views("key", states)
        return np.where(takes_part, own[:, None], last)

    def _take_views(self, name: str, states: np.ndarray) -> np.ndarray:
        rows, side = np.divmod(states, 2)
        return self._rows[name][rows[:, None], _VIEWS[side]]


def find_history_kind(recipe: TransactionRecipe) -> type[TransactionHistory]:
    """Return the kind of history whose targets are what the model scores."""
    return AccountHistory if recipe.scores == "accounts" else TransactionHistory


def find_last_states(
    rows: Transactions, order: np.ndarray, recipe: TransactionRecipe
) -> dict[str, int]:
    """Return the accounts that are scored, in order of their first row, and their states as of the
    last row of each.

    Args:
        order: (n,) the rows in order of time, as they are in the history.
    """
    states = dict[str, int]()
    for source, target in zip(rows.source, rows.target, strict=True):
        states.setdefault(source, NONE)
        states.setdefault(target, NONE)
    last = LastStates(recipe)
    last.append(rows.take(order))
    scored = ((account, last.find(account)) for account in states)
    return {account: state for account, state in scored if state is not None}


@final
class LastStates:
    """The state of each account as of its last row, while rows are added."""

    def __init__(self, recipe: TransactionRecipe) -> None:
        self._sides = recipe.account_sides
        self._states = dict[str, int]()
        self._scored = set[str]()
        self._num_rows = 0

    @property
    def nbytes(self) -> int:
        """Approximate memory; the names of accounts are those of the rows."""
        return _BYTES_OF_AN_ACCOUNT * (len(self._states) + len(self._scored))

    def append(self, rows: Transactions) -> None:
        """Add rows, in order of time."""
        ends = zip(rows.source, rows.target, strict=True)
        for place, (source, target) in enumerate(ends, self._num_rows):
            self._states[target] = 2 * place + 1
            self._states[source] = 2 * place
        for side in self._sides:
            self._scored.update(rows.source if side == "source" else rows.target)
        self._num_rows += len(rows)

    def find(self, account: str) -> int | None:
        """Return the state of an account; None if it is in no row, or the model does not score
        it."""
        return self._states.get(account) if account in self._scored else None


def list_states(
    rows: np.ndarray, ends: Transactions, recipe: TransactionRecipe
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the accounts that some rows touch on the sides that the model scores, each as of its
    row; who pays comes before who is paid, and one who pays itself comes once.

    Args:
        rows: (n,) places in the history.
        ends: the rows themselves.

    Returns:
        The states (T,), the place (T,) in `rows` of the row of each, and the accounts.
    """
    states, places, accounts = list[int](), list[int](), list[str]()
    for place, (row, source, target) in enumerate(
        zip(rows.tolist(), ends.source, ends.target, strict=True)
    ):
        touched = {"source": source, "target": target}
        for account in dict.fromkeys(touched[side] for side in recipe.account_sides):
            states.append(2 * row + int(account != source))
            places.append(place)
            accounts.append(account)
    return np.array(states, np.int64), np.array(places, np.int64), accounts
