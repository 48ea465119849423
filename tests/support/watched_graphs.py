"""Graphs whose nodes raise alerts: random changes of one, and the alerts that there should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np

from models.base import StepControl
from models.checkpoint import load_checkpoint
from models.inputs.graph import Graph
from service.endpoints.alerts.schemas import AlertList
from service.endpoints.anomaly.infer import results, score
from service.endpoints.anomaly.parse import StoredScoreInputs
from service.endpoints.anomaly.schemas import NeighborhoodKnobs
from service.endpoints.common.schemas import Dynamics
from service.registry.handles import Scorer, handle_for
from service.settings import Settings
from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema
from tests.support.checkpoints import FEATURES, RELATIONS
from tests.support.server import Server, wait_until

MODEL = "cdat-small"
REACH = {"hops": 1, "max_neighbors": 3}
Row = dict[str, Any]


class MirroredGraph:
    """What a graph on a server should be, and what a model says of it from nothing.

    Attributes:
        above: nodes that were above the threshold when they were scored last.
    """

    def __init__(self, checkpoints: Path, seed: int, nodes: int = 16) -> None:
        model = handle_for(load_checkpoint(checkpoints / MODEL))
        assert isinstance(model, Scorer)
        self._model, self._rng = model, np.random.default_rng(seed)
        self.nodes = dict[str, list[float]]()
        self.edges = set[tuple[str, str, str]]()
        self.above = set[str]()
        self._count = 0
        first = [self._add_node() for _ in range(nodes)]
        for _ in range(nodes):
            self._add_edge(first)
        self.threshold = float(np.median(list(self.score().values())))

    def to_body(self, **alerts: Any) -> Row:
        """Return what stores the graph."""
        settings = {**REACH, "threshold": self.threshold, **alerts}
        rows = {"nodes": self._name_nodes(self.nodes), "edges": _name_edges(self.edges)}
        return {"model": MODEL, "alerts": settings, **rows}

    def change(self) -> Row:
        """Change it at random, and return the body that changes one on a server."""
        body: Row = {}
        ids = list(self.nodes)
        if self._rng.random() < 0.3 and len(ids) > 8:
            gone = self._choose(ids)
            del self.nodes[gone]
            self.above.discard(gone)
            self.edges = {edge for edge in self.edges if gone not in edge[:2]}
            body["delete_nodes"] = [gone]
        if self._rng.random() < 0.3 and self.edges:
            edge = self._choose(sorted(self.edges))
            self.edges.discard(edge)
            body["delete_edges"] = _name_edges([edge])
        changed = [self._choose(list(self.nodes))] if self._rng.random() < 0.7 else []
        for node_id in changed:
            self.nodes[node_id] = self._draw()
        if self._rng.random() < 0.4:
            # One that was deleted before may come back.
            back = body.get("delete_nodes", []) if self._rng.random() < 0.5 else []
            changed += back or [f"n{self._count}"]
            self._add_node(changed[-1])
        body["nodes"] = self._name_nodes(changed)
        if not changed or self._rng.random() < 0.5:
            body["edges"] = _name_edges([self._add_edge(list(self.nodes))])
        return {name: rows for name, rows in body.items() if rows}

    def touch(self, node_id: str) -> Row:
        """Change the features of a node, and return the body that does."""
        self.nodes[node_id] = self._draw()
        return {"nodes": self._name_nodes([node_id])}

    def score(self) -> dict[str, float]:
        """Return the probability of each node of a graph that is built from nothing."""
        ids = list(self.nodes)
        place = {node_id: i for i, node_id in enumerate(ids)}
        ends = [(place[source], place[target]) for source, target, _ in sorted(self.edges)]
        types = [RELATIONS.index(relation) for _, _, relation in sorted(self.edges)]
        graph = Graph(
            np.array([self.nodes[node_id] for node_id in ids], np.float32),
            np.array(ends, np.int64).reshape(-1, 2).T,
            np.array(types, np.int64),
        )
        schema = Schema(self._model.features, self._model.relations)
        stored = DynamicGraph(schema, GraphSnapshot(graph, list(ids), 1))
        settings, dynamics = Settings(), Dynamics.model_validate({})
        reach = NeighborhoodKnobs.model_validate(REACH)
        given = reach, dynamics, frozenset[str](), None
        probabilities = {}
        for node_id in ids:
            sent = StoredScoreInputs(self._model, "g", [node_id], *given)
            inputs = sent.from_stored(stored, settings)
            (result,) = results(inputs, score(inputs, None, StepControl()))
            probabilities[node_id] = result["probability"]
        return probabilities

    def raise_alerts(self) -> dict[str, float]:
        """Score all nodes anew; return the probabilities of those that cross the threshold."""
        scores = self.score()
        above = {node_id for node_id, p in scores.items() if p >= self.threshold}
        crossed = {node_id: scores[node_id] for node_id in above - self.above}
        self.above = above
        return crossed

    def _add_node(self, node_id: str | None = None) -> str:
        node_id = node_id or f"n{self._count}"
        self._count += 1
        self.nodes[node_id] = self._draw()
        return node_id

    def _add_edge(self, ids: list[str]) -> tuple[str, str, str]:
        edge = (self._choose(ids), self._choose(ids), self._choose(list(RELATIONS)))
        self.edges.add(edge)
        return edge

    def _choose(self, options: list[Any]) -> Any:
        return options[int(self._rng.integers(len(options)))]

    def _draw(self) -> list[float]:
        return self._rng.standard_normal(len(FEATURES)).astype(np.float32).tolist()

    def _name_nodes(self, ids: Any) -> list[Row]:
        return [{"id": i, **dict(zip(FEATURES, self.nodes[i], strict=True))} for i in ids]


def _name_edges(edges: Any) -> list[Row]:
    names = ("source", "target", "type")
    return [dict(zip(names, edge, strict=True)) for edge in sorted(edges)]


def wait_for_scores(server: Server, id: str = "g") -> None:
    """Wait until everything of a graph is scored."""

    def is_scored() -> bool:
        with server.client() as client:
            graph = client.get(f"/graphs/{id}").json()
        return graph["scored_revision"] == graph["revision"]

    wait_until(is_scored)


def list_alerts(client: httpx.Client, after: str | None = None, id: str = "g") -> list[Row]:
    """Return all alerts that follow one."""
    alerts = list[Row]()
    while True:
        parameters = {"limit": 7} | ({} if after is None else {"after": after})
        response = client.get(f"/graphs/{id}/alerts", params=parameters)
        page = AlertList.model_validate_json(response.content)
        if not page.alerts:
            return alerts
        alerts += response.json()["alerts"]
        after = page.last_event_id
