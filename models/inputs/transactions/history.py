"""Transactions in order of time, with the features and links of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar, Self

import numpy as np

from models.inputs.graph import Graph
from models.inputs.transactions.labels import KnownLabels, LabelQueue
from models.inputs.transactions.recipe import TransactionRecipe
from models.inputs.transactions.rows import Transactions
from models.kernels import transactions as kernels

_MAX_TIME = 1e11  # of timestamps: milliseconds since 1970 are above it
_MAX_NUMBER = 1e15
_MAX_AMOUNT = 1e12  # up to which a sum of doubles keeps cents
_BYTES_OF_A_KEY = 200  # name and place of a series
_ROWS_AT_A_TIME = 1 << 18  # what is needed on the way is some GiB for a million


class TransactionError(ValueError):
    """A transaction cannot be added; `row` is its place among those given, `code` the kind."""

    def __init__(self, row: int, column: str, code: str, rule: str) -> None:
        super().__init__(f"row {row + 1}, column {column!r}: {rule}")
        self.row, self.column, self.code, self.rule = row, column, code, rule


class NeighborhoodTooLargeError(ValueError):
    """The neighbourhoods of the transactions asked for have more nodes than allowed, `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the neighbourhoods have more than {limit} nodes")
        self.limit = limit


class TransactionHistory:
    """Transactions as they came, each described by its own row and the ones before.

    A target, what is scored, is called by a number: here the place of a transaction.

    Transactions that are added later change neither the features `x_NF` nor the neighbourhoods of
    earlier ones.

    Attributes:
        targets_per_row: numbers of targets to a row, whose own are the next ones.
    """

    targets_per_row: ClassVar[int] = 1

    def __init__(self, recipe: TransactionRecipe) -> None:
        self.recipe = recipe
        # Kinds of series by place: what accounts sent and received, pairs, each shared column.
        views = [(0, 0), (1, 1), (2, 2)]  # of which chain, and which key of the row
        if recipe.accounts_pay_and_are_paid:
            views += [(1, 0), (0, 1)]
        self._member = np.array([0, 1, 2, *range(len(views), len(views) + len(recipe.shared))])
        views += [(3 + place, 3 + place) for place in range(len(recipe.shared))]
        self._views = views
        self._chain_of = np.array([chain for chain, _ in views])
        self._windows = np.array(recipe.windows)
        self._keys = dict[Hashable, int]()
        self._num_rows, self._num_own = 0, len(recipe.row_features)
        num_views, chains, spans = len(views), len(self._member), len(self._windows)
        self._rows = {
            "time": np.empty(0),
            "amount": np.empty(0),
            "key": np.empty((0, num_views), np.int32),
            "before": np.empty((0, chains), np.int32),
            "after": np.empty((0, chains), np.int32),
            "head": np.empty((0, num_views), np.int32),
            "x": np.empty((0, len(recipe.transaction_features)), np.float32),
            "place": np.empty(0, np.int32),  # scratch of `collect_neighborhoods`
            "linked": np.empty(0, np.int32),
            "known": np.empty(0, np.int8),
        }
        self._labels = LabelQueue()
        self._series = {
            "last": np.empty(0, np.int32),
            "first": np.empty(0, np.int32),
            "others": np.empty(0, np.int32),
            "tail": np.empty((0, spans), np.int32),
            "rows": np.empty((0, spans), np.int32),
            "present": np.empty((0, spans), np.int32),
            "total": np.empty((0, spans)),
            "frauds": np.empty(0, np.int32),
            "labelled": np.empty(0, np.int32),
        }

    @classmethod
    def from_rows(cls, recipe: TransactionRecipe, rows: Transactions) -> tuple[Self, np.ndarray]:
        """Return the history of rows in any order, and the place of each in it (n,). Rows of equal
        time keep their order.

        Raises:
            TransactionError: a value is missing or too large.
        """
        order = np.argsort(rows.time, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        history = cls(recipe)
        try:
            history.append(rows.take(order))
        except TransactionError as error:
            row = int(order[error.row])
            raise TransactionError(row, error.column, error.code, error.rule) from None
        return history, place

    def __len__(self) -> int:
        return self._num_rows

    @property
    def x_NF(self) -> np.ndarray:
        """Features of all transactions, float32 (N, F)."""
        return self._rows["x"][: self._num_rows]

    @property
    def times(self) -> np.ndarray:
        """Times of all transactions, float64 (N,), ascending."""
        return self._rows["time"][: self._num_rows]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays; keys by name come on top."""
        arrays = (*self._rows.values(), *self._series.values())
        keys = _BYTES_OF_A_KEY * len(self._keys)
        return sum(array.nbytes for array in arrays) + self._labels.nbytes + keys

    @property
    def last_time(self) -> float:
        """Time of the last transaction; minus infinity if there is none."""
        return float(self._rows["time"][self._num_rows - 1]) if self._num_rows else -np.inf

    def append(self, rows: Transactions) -> np.ndarray:
        """Add transactions in order of time, and return their places.

        Raises:
            TransactionError: one is earlier than the one before it, or a value is missing or too
                large; none is added.
        """
        self.require_valid(rows)
        self._require_order(rows)
        begin, end = self._num_rows, self._num_rows + len(rows)
        _grow(self._rows, end)
        if self.recipe.label is not None and rows.labels is not None:
            labelled = np.flatnonzero(rows.labels >= 0)
            known = rows.time[labelled] + self.recipe.known_after
            places = begin + labelled
            self._labels.add(KnownLabels(places, rows.labels[labelled], known, places + 1))
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows.take(slice(start, start + _ROWS_AT_A_TIME))
            self._append_part(part, begin + start)
        self._num_rows = end
        return np.arange(begin, end)

    def add_labels(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Add labels (n,), int8, of transactions that are here, at places `rows`; one that has a
        label takes the new one. They count for transactions that are appended later, once they are
        known: `known_after` later than their row, and not before the last row.
        """
        known = np.maximum(self.times[rows] + self.recipe.known_after, self.last_time)
        position = np.full(len(rows), self._num_rows, np.int64)
        self.add_known_labels(KnownLabels(np.asarray(rows, np.int64), labels, known, position))

    def add_known_labels(self, labels: KnownLabels) -> None:
        """Add labels that `list_labels` returned, before the rows that know them."""
        self._labels.add(labels)

    def list_labels(self) -> KnownLabels:
        """Return all labels that were added or appended, in that order."""
        return self._labels.list_all()

    def _append_part(self, rows: Transactions, begin: int) -> None:
        end = begin + len(rows)
        self._rows["key"][begin:end] = self._find_keys(rows)
        _grow(self._series, len(self._keys))
        r, s = self._rows, self._series
        r["time"][begin:end], r["amount"][begin:end] = rows.time, rows.amount
        own = self._num_own
        described = np.empty((end - begin, r["x"].shape[1] - own))
        due = self._labels.take_due(rows.time[-1])
        counted = kernels.update(
            *(begin, end, r["time"], r["amount"], r["key"]),
            *(self._chain_of, self._member, self._windows),
            *(s["last"], s["first"], s["others"], s["tail"]),
            *(s["rows"], s["present"], s["total"]),
            *(r["before"], r["after"], r["head"], described),
            *(self.recipe.label is not None, r["known"], s["frauds"], s["labelled"]),
            *(due.row, due.label, due.time, due.position),
        )
        self._labels.put_back(due.select(slice(counted, None)))
        r["x"][begin:end, :own] = self.recipe.describe_rows(rows)
        r["x"][begin:end, own:] = described

    def collect_neighborhoods(
        self, rows: np.ndarray, max_nodes: int = 2**31 - 1
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the earlier transactions linked with each of `rows`, see `kernels.collect`.

        Raises:
            NeighborhoodTooLargeError: they have more than `max_nodes` nodes.
        """
        recipe, r = self.recipe, self._rows
        collected = kernels.collect(
            np.asarray(rows, np.int64),
            recipe.hops,
            recipe.neighbors,
            recipe.memory,
            r["time"][: self._num_rows],
            self._chain_of,
            r["before"],
            r["head"],
            r["place"],
            r["linked"],
            recipe.max_nodes,
            max_nodes,
        )
        if len(collected[0]) > max_nodes:
            raise NeighborhoodTooLargeError(max_nodes)
        return collected

    def build_graph(
        self, targets: np.ndarray, max_nodes: int = 2**31 - 1
    ) -> tuple[Graph, np.ndarray, np.ndarray]:
        """Return the neighbourhoods of `targets` side by side, not joined, as one graph; the
        transaction (n,) that each of its nodes is; and the nodes of `targets` themselves.

        Raises:
            NeighborhoodTooLargeError: the graph would have more than `max_nodes` nodes.
        """
        nodes, bounds, edges = self.collect_neighborhoods(targets, max_nodes)
        return Graph(self._rows["x"][nodes], edges), nodes, bounds[:-1]

    def describe(self, targets: np.ndarray) -> np.ndarray:
        """Return the features of the nodes of `targets`, float32 (n, `recipe.features`)."""
        return self._rows["x"][targets]

    def describe_kinds(self, targets: np.ndarray) -> np.ndarray:
        """Return the features of nodes of each kind, as encoders are fitted to them, float32
        (m, `recipe.features`)."""
        return self.describe(targets)

    def list_columns(self, targets: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the values of each feature, of nodes of the kind that has it."""
        return (values[targets] for values in self.x_NF.T)

    def require_valid(self, rows: Transactions) -> None:
        """Check rows that are in order of time, whatever was added before.

        Raises:
            TransactionError: a value is missing or too large.
        """
        recipe = self.recipe
        max_time = _MAX_TIME if recipe.calendar else _MAX_NUMBER
        columns = {recipe.time: (rows.time, max_time), recipe.amount: (rows.amount, _MAX_AMOUNT)}
        columns |= {name: (values, _MAX_NUMBER) for name, values in rows.numbers.items()}
        for column, (values, limit) in columns.items():
            if column not in recipe.with_missing and (missing := np.isnan(values)).any():
                rule = "The value is missing, and training had no row without it. Fill it in."
                raise TransactionError(int(missing.argmax()), column, "missing", rule)
            if (large := np.abs(values) > limit).any():
                row = int(large.argmax())
                rule = f"The value {values[row]:g} is beyond {limit:g}. Check its unit."
                raise TransactionError(row, column, "out_of_range", rule)

    def _require_order(self, rows: Transactions) -> None:
        times = np.concatenate([[self.last_time], rows.time])
        if (late := times[1:] < times[:-1]).any():
            rule = "The time is earlier than that of the transaction before it. Send rows in order."
            raise TransactionError(int(late.argmax()), self.recipe.time, "out_of_order", rule)

    def _find_keys(self, rows: Transactions) -> np.ndarray:
        """Return the key of each view of each row, int32 (n, V); new ones are numbered on. A blank
        value of a shared column links nothing."""
        columns = [rows.source, rows.target, None]
        columns += [rows.categories[name] for name in self.recipe.shared]
        keys = np.empty((len(rows), len(self._views)), np.int32)
        known = self._keys
        for view, (chain, place) in enumerate(self._views):
            column = columns[place]
            names: list[Hashable]
            if column is None:  # the pair, by its keys: a number takes less memory than two names
                source, target = keys[:, :2].astype(np.int64).T
                names = ((source << 32) | target).tolist()
            else:
                names = [name and (chain, name) for name in column]
            keys[:, view] = [
                known.setdefault(name, len(known)) if name else kernels.NONE for name in names
            ]
        return keys


def _grow(arrays: dict[str, np.ndarray], size: int) -> None:
    """Make room for `size` entries in each array, twice as much as before at least.

    New entries say that there is nothing: -1 of a row, 0 of a count or sum. Zeros take no memory
    before they are written.
    """
    capacity = len(next(iter(arrays.values())))
    if size <= capacity:
        return
    wanted = max(size, 2 * capacity, 1024)
    for name, array in arrays.items():
        grown = np.zeros((wanted, *array.shape[1:]), array.dtype)
        if name in _WITH_NONE:
            grown[:] = kernels.NONE
        grown[:capacity] = array
        arrays[name] = grown


_WITH_NONE = ("last", "first", "tail", "place", "linked", "known")
