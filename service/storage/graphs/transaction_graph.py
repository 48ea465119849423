"""A graph of transactions in memory, which grows while neighbourhoods are taken from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import safetensors.numpy

from models.inputs.graph import Graph
from models.inputs.transactions import (
    KnownLabels,
    LastStates,
    NeighborhoodTooLargeError,
    TransactionError,
    find_history_kind,
    list_states,
)
from service.errors import pointer
from service.storage.graphs.digests import extend_digest
from service.storage.graphs.new_transactions import (
    Addition,
    Labelling,
    NewLabels,
    NewTransactions,
    StreamSettings,
    Targets,
    describe_rows,
    format_time,
    parse_update,
)
from service.storage.graphs.sent_rows import SentRows
from service.storage.graphs.stored_graph import StoredGraph, ToScore
from service.validation.arrays import (
    PointerFn,
    make_graph_problem_at,
    make_graph_problem_where,
    pointer_builder,
)
from service.validation.ids import NodeId

_FUTURE_S = 86_400.0
"""How far a timestamp may be ahead of the clock: all later rows would count as late."""
_MIN_EXPIRED = 1000
_UNKNOWN_ROW = "No transaction of the graph has this id. Send ids of its transactions."
_UNKNOWN_ACCOUNT = (
    "No account that the model scores has this id in the transactions of the graph. Send ids of "
    "their accounts."
)
_LABEL = "known_label."  # of its arrays in a file


@final
class TransactionGraph(StoredGraph):
    """Transactions in the order in which they count, each linked with earlier ones by the recipe.

    A transaction never changes but for its label, and neither its label nor one that comes later
    changes its features or its score. Those that are forgotten leave the scores of others as they
    were: `keep` is at least as long as the recipe reaches, and a transaction of which not all
    before it is kept is scored no more.
    """

    def __init__(
        self,
        settings: StreamSettings,
        rows: NewTransactions | None,
        forgotten: float,
        revision: int,
        labels: KnownLabels | None = None,
    ) -> None:
        """
        Args:
            labels: those that `rows` have, each known from some row on; else none is known.
        """
        recipe = settings.recipe
        self.schema, self.settings = settings.schema, settings
        self.revision, self.num_edges = revision, 0
        self._forgotten = forgotten  # rows up to this time are
        self._history = find_history_kind(recipe)(recipe)
        self._states = LastStates(recipe) if recipe.scores == "accounts" else None
        self._rows = dict[NodeId, int]()
        self._sent = SentRows(recipe)
        self._lock = threading.Lock()
        if rows is not None:
            if labels is not None:
                self._history.add_known_labels(labels)
            self._append(rows, are_labels_known=labels is not None)

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._rows

    @property
    def num_nodes(self) -> int:
        return len(self._sent)

    @property
    def nbytes(self) -> int:
        accounts = 0 if self._states is None else self._states.nbytes
        return self._history.nbytes + self._sent.nbytes + accounts

    @property
    def should_compact(self) -> bool:
        return self._count_expired() > max(_MIN_EXPIRED, self.num_nodes // 2)

    def _count_expired(self) -> int:
        cut = self._history.last_time - self.settings.keep
        return int(np.searchsorted(self._history.times, cut, side="right"))

    def compacted(self) -> TransactionGraph:
        expired = self._count_expired()
        forgotten = float(self._history.times[expired - 1]) if expired else self._forgotten
        rows = self._export(np.arange(expired, self.num_nodes))
        labels = self._history.list_labels().without_rows(expired)
        return TransactionGraph(self.settings, rows, forgotten, self.revision, labels)

    def plan(self, update: NewTransactions | NewLabels) -> Addition | Labelling | None:
        if isinstance(update, NewLabels):
            return self._plan_labels(update)
        return self._plan_rows(update)

    def _plan_labels(self, update: NewLabels) -> Labelling | None:
        """
        Raises:
            Problem: a transaction is not stored.
        """
        rows = np.array([self._rows.get(node_id, -1) for node_id in update.node_ids], np.int64)
        self._require_stored(rows, pointer_builder("labels", tail="id"), _UNKNOWN_ROW)
        differ = np.flatnonzero(self._sent.labels[rows] != update.labels)
        if not len(differ):
            return None
        ids = [update.node_ids[place] for place in differ.tolist()]
        changed = NewLabels(ids, update.labels[differ])
        return Labelling(changed, rows[differ], self.num_nodes)

    def _plan_rows(self, update: NewTransactions) -> Addition | None:
        """Rows with the id of a stored one must be equal to it, and change nothing. Rows that are
        late by up to the shortest window count as of the last row's time.

        Raises:
            Problem: a row is later than that or in the future, has a value that the model cannot
                read, or the id of another row.
        """
        known = np.array([node_id in self._rows for node_id in update.node_ids], bool)
        self._require_equal(update, np.flatnonzero(known))
        new = np.flatnonzero(~known)
        if not len(new):
            return None
        places = new[np.argsort(update.rows.time[new], kind="stable")]
        added = update.take(places)
        try:
            self._history.require_valid(added.rows)
        except TransactionError as error:
            at = pointer("transactions", int(places[error.row]), error.column)
            raise make_graph_problem_at(at, error.code, error.rule) from None
        counted = self._count_times(added.rows.time, places)
        added = replace(added, rows=replace(added.rows, time=counted))
        return Addition(added, self.num_nodes + len(new))

    def _count_times(self, times: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the times that count of new rows, which stand at `places` of the request."""
        recipe, last = self.settings.recipe, self._history.last_time

        def at(row: int) -> str:
            return pointer("transactions", int(places[row]), recipe.time)

        limit = self.settings.max_late
        if (late := last - times > limit).any():
            rule = (
                f"The newest transaction stored is of {format_time(last, recipe)}. One that is "
                f"earlier by more than {limit:g} (the shortest window) cannot be added, because "
                "later ones were scored without it. Leave it out, or store the graph anew with all "
                "rows in order."
            )
            raise make_graph_problem_where(late, at, "out_of_order", rule)
        if recipe.calendar and (ahead := times > time.time() + _FUTURE_S).any():
            rule = (
                "The time is more than a day ahead of the server's clock. Check its year, zone and "
                "unit."
            )
            raise make_graph_problem_where(ahead, at, "out_of_range", rule)
        return np.maximum(times, last)

    def _require_equal(self, update: NewTransactions, places: np.ndarray) -> None:
        if not len(places):
            return
        stored = self._export(np.array([self._rows[update.node_ids[i]] for i in places.tolist()]))
        sent = update.take(places)
        differ = sent.find_differences(stored)
        if sent.rows.labels is not None and stored.rows.labels is not None:
            other = (sent.rows.labels >= 0) & (sent.rows.labels != stored.rows.labels)
            if other.any():  # one that it had before is a repetition too
                other &= ~self._have_had(stored.node_ids, sent.rows.labels)
            if (other & ~differ).any():
                rule = (
                    "This transaction is stored with another label, or without one. Send its label "
                    "to POST /graphs/{id}/labels."
                )
                label = str(self.settings.recipe.label)

                def at_label(row: int) -> str:
                    return pointer("transactions", int(places[row]), label)

                raise make_graph_problem_where(other & ~differ, at_label, "conflict", rule)
        if differ.any():

            def at(row: int) -> str:
                return pointer("transactions", int(places[row]), "id")

            rule = (
                "Another transaction with this id is stored. A transaction cannot be changed: send "
                "the same values again, or another id."
            )
            raise make_graph_problem_where(differ, at, "conflict", rule)

    def _have_had(self, node_ids: list[NodeId], labels: np.ndarray) -> np.ndarray:
        """Mark the transactions (n,) that had this label at some time."""
        rows = [self._rows[node_id] for node_id in node_ids]
        known = self._history.list_labels()
        known = known.select(np.isin(known.row, rows))
        pairs = set(zip(known.row.tolist(), known.label.tolist(), strict=True))
        return np.array([pair in pairs for pair in zip(rows, labels.tolist(), strict=True)])

    def list_to_score(self, change: Addition | Labelling) -> ToScore:
        if isinstance(change, Addition) and change.update.is_scored:
            return ToScore(change.update.node_ids)
        return ToScore()

    def commit(self, change: Addition | Labelling, revision: int, digest: str = "") -> None:
        with self._lock:
            if isinstance(change, Labelling):
                self._sent.labels[change.rows] = change.update.labels
                self._history.add_labels(change.rows, change.update.labels)
            else:
                self._append(change.update)
            self.revision, self.digest = revision, digest

    def apply_logged(self, text: bytes) -> ToScore:
        update = parse_update(text)
        if isinstance(update, NewLabels):
            # Another server may have logged it that had not forgotten such a row yet.
            rows = np.array([self._rows.get(node_id, -1) for node_id in update.node_ids], np.int64)
            labels, here = update.labels[rows >= 0], rows[rows >= 0]
            change = Labelling(NewLabels(update.node_ids, labels), here, self.num_nodes)
        else:
            change = Addition(update, self.num_nodes + len(update.node_ids))
        self.commit(change, self.revision + 1, extend_digest(self.digest, text))
        return self.list_to_score(change)

    def find_row_targets(self, row_ids: Sequence[NodeId], at: PointerFn) -> Targets:
        """Return what is scored of some transactions: these, or the accounts that each touches.

        Args:
            at: pointer to one of `row_ids` in the request, for errors.

        Raises:
            Problem: one is not stored, or not all before it that counts is kept.
        """
        recipe = self.settings.recipe
        with self._lock:
            rows = np.array([self._rows.get(node_id, -1) for node_id in row_ids], np.int64)
            self._require_stored(rows, at, _UNKNOWN_ROW)
            self._require_whole(rows, at, "this one")
            if recipe.scores == "transactions":
                return self._make_targets(rows, row_ids, list(row_ids))
            states, places, accounts = list_states(rows, self._export(rows).rows, recipe)
            of_rows = [row_ids[place] for place in places.tolist()]
            return self._make_targets(states, accounts, of_rows)

    def find_targets(self, node_ids: Sequence[NodeId], at: PointerFn) -> Targets:
        """Return the targets of these ids: transactions, or accounts as of the last row of each.

        Args:
            at: pointer to one of `node_ids` in the request, for errors.

        Raises:
            Problem: one is not stored, or not all before it that counts is kept.
        """
        if self._states is None:
            return self.find_row_targets(node_ids, at)
        with self._lock:
            last = [self._states.find(str(account)) for account in node_ids]
            states = np.array([-1 if state is None else state for state in last], np.int64)
            rows = states // 2
            self._require_stored(rows, at, _UNKNOWN_ACCOUNT)
            self._require_whole(rows, at, "the last one of this account")
            row_ids = [self._sent.node_ids[row] for row in rows.tolist()]
            return self._make_targets(states, map(str, node_ids), row_ids)

    def _make_targets(
        self, numbers: np.ndarray, node_ids: Iterable[NodeId], row_ids: list[NodeId]
    ) -> Targets:
        return Targets(numbers, list(node_ids), row_ids, self.revision, self.digest)

    def build_neighborhoods(
        self, targets: Targets, max_nodes: int, at: PointerFn
    ) -> tuple[Graph, list[NodeId]]:
        """Return the neighbourhoods of `targets` side by side, `targets` first, and the id of each
        node.

        Args:
            at: pointer to the targets in the request, for errors.

        Raises:
            Problem: they have more than `max_nodes` nodes.
        """
        with self._lock:
            try:
                graph, nodes, own = self._history.build_graph(targets.numbers, max_nodes)
            except NeighborhoodTooLargeError:
                count, what = len(targets.numbers), self.settings.recipe.scores
                rule = (
                    f"The neighbourhoods of the {count} {what} have more than {max_nodes} nodes "
                    "(BASIN_MAX_NODES). Score fewer at a time."
                )
                raise make_graph_problem_at(at(), "too_many_nodes", rule) from None
            is_other = np.ones(len(nodes), bool)
            is_other[own] = False
            order = np.concatenate([own, np.flatnonzero(is_other)])
            place = np.empty(len(nodes), np.int64)
            place[order] = np.arange(len(nodes))
            ordered = Graph(graph.x[order], place[graph.edge_index])
            others = [self._sent.node_ids[row] for row in nodes[is_other].tolist()]
            return ordered, targets.node_ids + others

    def _require_stored(self, rows: np.ndarray, at: PointerFn, rule: str) -> None:
        if (unknown := rows < 0).any():
            raise make_graph_problem_where(unknown, at, "unknown_node", rule)

    def _require_whole(self, rows: np.ndarray, at: PointerFn, which: str) -> None:
        """
        Raises:
            Problem: not all that the score of one of the rows depends on is kept.
        """
        recipe = self.settings.recipe
        first = self._forgotten + recipe.reach
        if (short := self._history.times[rows] < first).any():
            rule = (
                f"The transactions before {which} are no longer stored, and without them it has "
                f"another score. Only those from {format_time(first, recipe)} on can be scored."
            )
            raise make_graph_problem_where(short, at, "expired", rule)

    def describe(self, node_ids: Iterable[NodeId]) -> list[dict[str, Any]]:
        """Return stored transactions, see `describe_rows`."""
        with self._lock:
            stored = self._export(np.array([self._rows[node_id] for node_id in node_ids], np.int64))
        return describe_rows(stored, self.settings.recipe)

    def list_all(self) -> NewTransactions:
        """Return all transactions, in the order in which they count."""
        with self._lock:
            return self._export(np.arange(self.num_nodes))

    def to_file(self) -> bytes:
        """Return all of it as a safetensors file."""
        arrays = self._sent.to_arrays()
        arrays["settings"] = np.frombuffer(self.settings.to_json(), np.uint8)
        arrays |= {"time": self._history.times, "forgotten": np.array([self._forgotten])}
        labels = self._history.list_labels()
        arrays |= {f"{_LABEL}{name}": values for name, values in vars(labels).items()}
        return safetensors.numpy.save(arrays)

    @classmethod
    def from_file(cls, file: bytes, revision: int) -> TransactionGraph:
        """Restore what `to_file` returned."""
        arrays = safetensors.numpy.load(file)
        settings = StreamSettings.from_json(arrays["settings"].tobytes())
        rows = SentRows.from_arrays(settings.recipe, arrays)
        labels = KnownLabels.none()
        if f"{_LABEL}row" in arrays:  # earlier versions wrote none
            labels = KnownLabels(*(arrays[f"{_LABEL}{name}"] for name in vars(labels)))
        loaded = rows.take(np.arange(len(rows)), arrays["time"])
        return cls(settings, loaded, float(arrays["forgotten"][0]), revision, labels)

    def _append(self, new: NewTransactions, *, are_labels_known: bool = False) -> None:
        begin, end = self.num_nodes, self.num_nodes + len(new.node_ids)
        self._history.append(replace(new.rows, labels=None) if are_labels_known else new.rows)
        self._rows.update(zip(new.node_ids, range(begin, end), strict=True))
        self._sent.append(new)
        if self._states is not None:
            self._states.append(new.rows)

    def _export(self, places: np.ndarray) -> NewTransactions:
        return self._sent.take(places, self._history.times[places])
