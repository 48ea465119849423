"""A graph in memory that changes while neighbourhoods are taken from it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from models.inputs.graph import UNKNOWN, Graph
from models.inputs.neighbor_means import NeighborRule
from service.errors import FieldError, pointer
from service.storage.graphs.description import GraphArrays, GraphDescription
from service.storage.graphs.digests import extend_digest
from service.storage.graphs.graph_views import GraphSnapshot, Neighborhood
from service.storage.graphs.half_edges import (
    INWARD_BIT,
    NO_HALF_EDGES,
    ROW_SHIFT,
    HalfEdges,
    NodeEdges,
    RowEdges,
    add_half_edges,
)
from service.storage.graphs.metadata import WatchSettings
from service.storage.graphs.node_hash import hash_node, hash_nodes
from service.storage.graphs.reach import Links, make_size_problem
from service.storage.graphs.stored_graph import Schema, StoredGraph, ToScore, TouchedNodes
from service.storage.graphs.update import Change, Edge, Update
from service.validation.arrays import (
    make_graph_problem,
    make_graph_problem_where,
    pointer_builder,
)
from service.validation.ids import NodeId

_MAX_DESCRIPTIONS = 4  # of a graph, by what the models read that ask for it
_NO_NODE = "No node of the graph has this id. Send ids of its nodes."
_BYTES_A_NODE = 200  # of a node beside its features: its id, its rows in dictionaries


def warm_up() -> None:
    """Take a neighbourhood of a small graph, so that no request waits for kernels to load."""
    two = Graph(np.zeros((2, 1), np.float32), np.array([[0], [1]]))
    graph = DynamicGraph(Schema(("x",), ("edge",)), GraphSnapshot(two, [0, 1], 0))
    rule = NeighborRule(hops=2, relations=1, undirected=True, self_loops=False)
    graph.sample_neighborhood([0], 0, 1, 0, 2, 2, rule)


@final
class DynamicGraph(StoredGraph):
    """A graph of nodes and edges, which raise alerts if it has `watch`."""

    def __init__(
        self, schema: Schema, whole: GraphSnapshot, watch: WatchSettings | None = None
    ) -> None:
        graph = whole.graph
        self.schema, self.revision, self.watch = schema, whole.revision, watch
        self._ids: list[NodeId | None] = list(whole.node_ids)
        self._rows = dict(zip(whole.node_ids, range(graph.num_nodes), strict=True))
        self._x = np.array(graph.x, np.float32)
        self._labels = None
        if schema.labels:
            unknown = np.full(graph.num_nodes, UNKNOWN)
            self._labels = np.array(unknown if graph.labels is None else graph.labels, np.int8)
        self._order = hash_nodes(whole.node_ids)
        self._place = np.full(graph.num_nodes, -1, np.int32)  # free outside of `neighborhood`
        self._edges = HalfEdges(graph, self._order)
        self._dead = np.zeros(graph.num_nodes, bool)  # deleted, though edges still name them
        self._descriptions = dict[NeighborRule, GraphDescription]()
        self.num_edges = self._edges.num_outward
        self._lock = threading.Lock()

    @property
    def num_nodes(self) -> int:
        return len(self._rows)

    @property
    def should_compact(self) -> bool:
        return len(self._ids) > 2 * len(self._rows) + 1000

    @property
    def nbytes(self) -> int:
        arrays = self._x, self._order, self._place
        means = sum(each.nbytes for each in list(self._descriptions.values()))
        ids = _BYTES_A_NODE * len(self._ids)
        return sum(a.nbytes for a in arrays) + self._edges.nbytes + means + ids

    def plan(self, update: Update) -> Change | None:
        drops, adds = defaultdict[int, dict[int, int]](dict), defaultdict[int, dict[int, int]](dict)
        for source, target, relation in update.delete_edges:
            ends = self._rows.get(source), self._rows.get(target)
            if ends[0] is not None and ends[1] is not None:
                add_half_edges(drops, ends[0], ends[1], relation)
        deleted = {id: self._rows[id] for id in update.delete_nodes if id in self._rows}
        fresh = [id for id in update.nodes if id in deleted or id not in self._rows]
        new = dict(zip(fresh, range(len(self._ids), len(self._ids) + len(fresh)), strict=True))
        for i, (source, target, relation) in enumerate(self._ends(update.edges, deleted, new)):
            add_half_edges(adds, source, target, relation, i)
        if (attr := update.edge_attr) is None:  # edges have no features, or there are none
            width = 0 if update.edges else len(self.schema.edge_features)
            attr = np.empty((len(update.edges), width), np.float32)
        halves, more = dict[int, RowEdges](), 0
        for row in drops.keys() | adds.keys():
            if merged := self._edges.merge(row, drops.get(row, ()), adds.get(row, {}), attr):
                halves[row] = merged[0]
                more += merged[1]
        rows = np.array([new[id] if id in new else self._rows[id] for id in update.nodes], int)
        labelled = self._find_labelled(update.labels, deleted, new)
        is_same = not (halves or deleted or new or labelled)
        if is_same and np.array_equal(self._x[rows], update.x):
            return None
        less = self._leaving(list(deleted.values()), halves)
        return Change(
            update,
            halves | dict.fromkeys(deleted.values(), RowEdges(NO_HALF_EDGES, attr[:0])),
            list(deleted.items()),
            list(new.items()),
            rows,
            update.x,
            self.num_nodes + len(new) - len(deleted),
            self.num_edges + more - less,
            labelled,
        )

    def commit(self, change: Change, revision: int, digest: str = "") -> None:
        with self._lock:
            touched = self._touched(change) if self._descriptions else NO_HALF_EDGES
            for description in self._descriptions.values():
                description.mark_changed(touched)
            for id, row in change.deleted:
                del self._rows[id]
                self._ids[row] = None
                self._dead[row] = True
            self._grow(len(self._ids) + len(change.new))
            for id, row in change.new:
                self._ids.append(id)
                self._rows[id], self._order[row] = row, hash_node(id)
            self._edges.replace(change.halves, self._order)
            self._x[change.rows] = change.x
            if self._labels is not None:
                for row, label in change.labelled:
                    self._labels[row] = label
            self.num_edges = change.num_edges
            self.revision, self.digest = revision, digest

    def compacted(self) -> DynamicGraph:
        return DynamicGraph(self.schema, self.snapshot(), self.watch)

    def apply_logged(self, text: bytes) -> ToScore:
        widths = len(self.schema.features), len(self.schema.edge_features)
        change = self.plan(Update.from_json(text, *widths))
        revision, digest = self.revision + 1, extend_digest(self.digest, text)
        if change is None:  # each was a change when it was written
            with self._lock:
                self.revision, self.digest = revision, digest
            return ToScore()
        to_score = self.list_to_score(change)
        self.commit(change, revision, digest)
        return to_score

    def snapshot(self) -> GraphSnapshot:
        """All of it, each edge once, in order of its ends."""
        with self._lock:
            rows = np.array(list(self._rows.values()), np.int64)
            ids, x, revision = list(self._rows), self._x[rows], self.revision
            labels = None if self._labels is None else self._labels[rows]
            halves, edges = self._edges.copy(), self.num_edges
            place = np.full(len(self._ids), -1, np.int64)
        place[rows] = np.arange(len(rows))
        parts = [halves.at(row) for row in rows.tolist()]
        among = NodeEdges.from_rows(halves, rows, parts, place)
        graph = replace(among.build_graph(x, len(self.schema.relations)), labels=labels)
        assert graph.edge_index.shape[1] == edges
        return GraphSnapshot(graph, ids, revision)

    def sample_neighborhood(
        self,
        targets: Sequence[NodeId],
        hops: int,
        max_neighbors: int,
        seed: int,
        max_nodes: int,
        max_edges: int,
        rule: NeighborRule | None = None,
    ) -> Neighborhood:
        """The nodes that are up to `hops` edges from one of `targets`, whichever way these point,
        and all edges between them.

        Of a node with more than `max_neighbors` neighbours that many are followed, which `seed`
        chooses: the same whatever order the graph was built in, and but for one the same where an
        edge comes or goes. Targets stand first, in their order. With `rule` the nodes are
        described as in the whole graph (`Graph.outside`). Their labels are there with a rule that
        reads some.

        Raises:
            Problem: a target is no node, or is named twice; more than `max_nodes` are found, or the
                nodes looked at have more than `max_edges`.
        """
        wanted = targets, hops, max_neighbors, seed, max_nodes, max_edges
        if rule is None:
            with self._lock:
                return self._take(*wanted)[0]
        description = self._describe(rule)
        with description.lock:
            with self._lock:
                near, rows, edges = self._take(*wanted)
                state = self._x, self._edges, self._dead, self.revision, self._labels
                part = description.read(GraphArrays(*state), rows)
                labels = None
                if rule.labels and self._labels is not None:
                    labels = self._labels[rows]
                left_out = None
                if edges.attr is not None:
                    is_live = ~self._dead[edges.half >> ROW_SHIFT]
                    left_out = edges.select((edges.other < 0) & is_live)
            outside = description.sum_outside(part)
            if left_out is not None:
                outside = replace(outside, edges=left_out.sum_attr(rule, len(rows)))
            graph = replace(near.graph, outside=outside, labels=labels)
            return replace(near, graph=graph, means_revision=description.revision)

    def list_to_score(self, change: Change) -> ToScore:
        return ToScore() if self.watch is None else ToScore(touched=self.list_touched(change))

    def list_touched(self, change: Change) -> TouchedNodes:
        """Return the nodes whose features, edges or labels are others after a planned `change`, and
        those that it deletes."""
        deleted, new = dict(change.deleted), {row: id for id, row in change.new}
        rows = np.setdiff1d(self._touched(change), list(deleted.values())).tolist()
        ids = [new[row] if row in new else self._ids[row] for row in rows]
        return TouchedNodes([id for id in ids if id is not None], list(deleted))

    def list_dependents(
        self,
        changed: Iterable[NodeId] | None,
        rule: NeighborRule,
        hops: int,
        max_neighbors: int,
    ) -> list[NodeId]:
        """Return the nodes whose scores may be others after these nodes changed, as
        `Links.find_dependents`; all of them for None. Nodes that are no more are ignored."""
        with self._lock:
            if changed is None:
                return list(self._rows)
            known = {row for id in changed if (row := self._rows.get(id)) is not None}
            links = Links(self._edges.copy(), self._dead.copy(), self._order)
        rows = np.array(sorted(known), np.int64)
        dependents = links.find_dependents(rows, rule, hops, max_neighbors).tolist()
        with self._lock:
            return [id for row in dependents if (id := self._ids[row]) is not None]

    def _take(
        self,
        targets: Sequence[NodeId],
        hops: int,
        max_neighbors: int,
        seed: int,
        max_nodes: int,
        max_edges: int,
    ) -> tuple[Neighborhood, np.ndarray, NodeEdges]:
        """The neighbourhood, the rows of its nodes, and all edges of these."""
        found = [self._targets(targets)]
        self._place[found[0]] = np.arange(len(found[0]))
        count, links = len(found[0]), Links(self._edges, self._dead, self._order)
        try:
            for _ in range(hops):
                parts = self._parts(found[-1], max_edges)
                _, near = links.follow(found[-1], parts, max_neighbors, seed)
                near = np.unique(near)
                new = near[self._place[near] < 0]
                if not len(new):
                    break
                new = new[np.argsort(self._order[new], kind="stable")]
                found.append(new)
                self._place[new] = np.arange(count, count + len(new))
                if (count := count + len(new)) > max_nodes:
                    raise make_size_problem(max_nodes, "nodes")
            rows = np.concatenate(found)
            ids = [id for row in rows.tolist() if (id := self._ids[row]) is not None]
            parts = self._parts(rows, max_edges)
            edges = NodeEdges.from_rows(self._edges, rows, parts, self._place)
        finally:
            for part in found:
                self._place[part] = -1
        graph = edges.build_graph(self._x[rows], len(self.schema.relations))
        near = Neighborhood(graph, ids, self.revision, self.digest, self.revision)
        return near, rows, edges

    def _describe(self, rule: NeighborRule) -> GraphDescription:
        """What nodes are described by; that of a rule which was not asked for lately is dropped."""
        with self._lock:
            description = self._descriptions.pop(rule, None)
            if description is None:
                description = GraphDescription(rule, len(self.schema.features))
                description.mark_changed(np.arange(len(self._ids)))
                while len(self._descriptions) >= _MAX_DESCRIPTIONS:
                    del self._descriptions[next(iter(self._descriptions))]
            self._descriptions[rule] = description
            return description

    def _touched(self, change: Change) -> np.ndarray:
        """Rows whose features, edges or labels are others after `change`."""
        gone = [self._edges.at(row) >> ROW_SHIFT for _, row in change.deleted]
        named = [np.array(list(change.halves), np.int64), change.rows]
        labelled = np.array([row for row, _ in change.labelled], np.int64)
        return np.concatenate([*named, labelled, *gone])

    def _targets(self, targets: Sequence[NodeId]) -> np.ndarray:
        rows = np.array([self._rows.get(id, -1) for id in targets], np.int64)
        if (unknown := rows < 0).any():
            at = pointer_builder("targets")
            raise make_graph_problem_where(unknown, at, "unknown_node", _NO_NODE)
        again = np.ones(len(rows), bool)
        again[np.unique(rows, return_index=True)[1]] = False
        if again.any():
            rule = "This node is listed twice. List each node once."
            raise make_graph_problem_where(again, pointer_builder("targets"), "duplicate", rule)
        return rows

    def _parts(self, rows: np.ndarray, max_entries: int) -> list[np.ndarray]:
        parts = [self._edges.at(row) for row in rows.tolist()]
        if sum(map(len, parts)) > 2 * max_entries:  # an edge has two ends
            raise make_size_problem(max_entries, "edges")
        return parts

    def _ends(
        self, edges: Iterable[Edge], deleted: Container[NodeId], new: dict[NodeId, int]
    ) -> Iterator[tuple[int, int, int]]:
        faults = list[FieldError]()
        for i, (*ends, relation) in enumerate(edges):
            rows = [self._row_after(id, deleted, new) for id in ends]
            faults += [
                FieldError(pointer("edges", i, end), "unknown_node", _NO_NODE)
                for end, row in zip(("source", "target"), rows, strict=True)
                if row < 0
            ]
            if not faults:
                yield rows[0], rows[1], relation
        if faults:
            raise make_graph_problem(faults)

    def _row_after(self, id: NodeId, deleted: Container[NodeId], new: dict[NodeId, int]) -> int:
        """Return the row of a node once some are `deleted` and `new`; -1 if there is none."""
        return new[id] if id in new else -1 if id in deleted else self._rows.get(id, -1)

    def _find_labelled(
        self,
        labels: Iterable[tuple[NodeId, int]],
        deleted: Container[NodeId],
        new: dict[NodeId, int],
    ) -> list[tuple[int, int]]:
        """Return the rows whose label is another, and it; those of `new` nodes are not known yet.

        Raises:
            Problem: there is no node of an id.
        """
        changed, faults = list[tuple[int, int]](), list[FieldError]()
        for i, (id, label) in enumerate(labels):
            if (row := self._row_after(id, deleted, new)) < 0:
                faults.append(FieldError(pointer("labels", i), "unknown_node", _NO_NODE))
                continue
            assert self._labels is not None, "labels of a graph whose nodes have none"
            before = self._labels[row] if row < len(self._ids) else UNKNOWN
            if label != before:
                changed.append((row, label))
        if faults:
            raise make_graph_problem(faults)
        return changed

    def _leaving(self, deleted: list[int], halves: dict[int, RowEdges]) -> int:
        """How many edges go with rows that are deleted, where some have new `halves`."""
        parts = [halves[row].half if row in halves else self._edges.at(row) for row in deleted]
        half = np.concatenate([NO_HALF_EDGES, *parts])
        other = half >> ROW_SHIFT
        half, other = half[~self._dead[other]], other[~self._dead[other]]
        # One between two of them is counted where it starts.
        return int(np.count_nonzero((half & INWARD_BIT == 0) | ~np.isin(other, deleted)))

    def _grow(self, rows: int) -> None:
        if (spare := rows - len(self._x)) <= 0:
            return
        more = max(spare, len(self._x), 16)
        self._x = np.concatenate([self._x, np.zeros((more, self._x.shape[1]), np.float32)])
        self._order = np.concatenate([self._order, np.zeros(more, np.uint64)])
        self._place = np.concatenate([self._place, np.full(more, -1, np.int32)])
        self._dead = np.concatenate([self._dead, np.zeros(more, bool)])
        if self._labels is not None:
            self._labels = np.concatenate([self._labels, np.full(more, UNKNOWN, np.int8)])
