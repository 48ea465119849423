"""Scores the nodes of watched graphs after changes, and raises their alerts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import final

import structlog

from models.base import StepControl
from service.context import AppContext
from service.endpoints.alerts.backlog import Backlog, NodeQueue
from service.endpoints.anomaly.infer import Scored, results, score_all, workload_of
from service.endpoints.anomaly.parse import (
    ScoreInputs,
    StoredScoreInputs,
    require_same_schema,
)
from service.endpoints.anomaly.schemas import NeighborhoodKnobs
from service.endpoints.common.alert_rule import AlertRule
from service.endpoints.common.alerts import encode_alert
from service.endpoints.common.failures import FailurePauses
from service.endpoints.common.schemas import Dynamics
from service.engine.engine import Workload
from service.errors import Problem
from service.registry.handles import Scorer
from service.settings import Settings
from service.storage.graphs import (
    DynamicGraph,
    GraphStore,
    ScoredNodes,
    WatchedGraph,
    WatchSettings,
)
from service.validation.ids import NodeId

_EVERY_S = 1.0  # between looks at what other servers changed, and at what could not be scored
_LEASE_S = 15.0  # of a claim; renewed while this server scores
_MAX_TARGETS = 64
_MAX_SIZE = 1 << 16
"""Nodes and edges that are computed together, so that no step keeps requests waiting for long."""


@dataclass(frozen=True)
class _Part:
    """The next nodes of a queue, each in a neighbourhood of its own.

    Attributes:
        count: how many nodes it is, with those that are no more and those that are `refused`.
        refused: why nodes cannot be scored.
    """

    inputs: list[ScoreInputs]
    count: int
    refused: list[Problem]


@final
class NodeWatcher:
    """Scores what depends on changes of watched graphs, one part of one graph after the other.

    What is to be scored is stored with each change and removed with the alerts of the last of it;
    a node raises an alert only if it was not above the threshold before (`GraphLog.record_scores`).
    So a server that is killed repeats some scores and no alert. Of several servers one at a time
    scores a graph.
    """

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._backlogs = dict[WatchedGraph, Backlog]()
        self._failures = FailurePauses("nodes not scored")

    async def run(self) -> None:
        """Score until cancelled."""
        changed = self._context.graphs.alerts.changed
        async with asyncio.TaskGroup() as group:  # where one of both fails, both end
            group.create_task(self._renew_claims())
            while True:
                changed.clear()
                if not await self._score_parts():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), _EVERY_S)

    async def _renew_claims(self) -> None:
        """Keep the claims while a part takes long; not where this server fails, and another may
        not."""
        while True:
            await asyncio.sleep(_LEASE_S / 3)
            for graph in list(self._backlogs):
                if self._failures.is_paused(graph):
                    continue
                with suppress(Problem):  # the store has logged why
                    await self._context.graphs.alerts.claim(graph.place, "scoring", _LEASE_S)

    async def _score_parts(self) -> bool:
        """Score a part of each graph that has changed; return whether there was any."""
        context = self._context
        try:
            context.registry.require_ready()
            graphs = await context.graphs.alerts.list_changed_graphs()
        except Problem:
            return False  # still loading, or the store has logged why
        self._backlogs = {graph: self._backlogs.get(graph, Backlog()) for graph in graphs}
        self._failures.keep_only(graphs)
        is_any = False
        for graph in graphs:
            if self._failures.is_paused(graph):
                continue
            try:
                is_any |= await self._score_part(graph)
            except Exception as error:  # of this one: others go on
                is_problem = isinstance(error, Problem)
                if not is_problem or error.kind not in ("queue-full", "unknown-graph"):
                    self._failures.note_failure(graph, graph.place.id, error)
            else:
                self._failures.note_success(graph)
        context.metrics.set_watched(sum(map(len, self._backlogs.values())), len(self._failures))
        return is_any

    async def _score_part(self, graph: WatchedGraph) -> bool:
        """Score a part of one graph; return whether there was any.

        Raises:
            Problem: the graph cannot be read, or its model is not loaded or does not fit any more.
        """
        context, place = self._context, graph.place
        graphs, backlog = context.graphs.scoped_to(place.owner), self._backlogs[graph]
        if not await graphs.alerts.claim(place, "scoring", _LEASE_S):
            self._backlogs[graph] = Backlog()  # another server scores it
            return False
        stored = await graphs.get_nodes_and_edges(place.id)
        if (watch := stored.watch) is None:
            return False  # it was replaced
        model = context.registry.scoped(None).get_of_kind(Scorer, watch.model)
        require_same_schema(stored.schema, model)
        await self._take_changes(graphs, graph, stored, model, backlog)
        if (queue := backlog.take_turn()) is None:
            return False
        build = _build_part, model, place.id, stored, watch, queue, context.settings
        part = await asyncio.to_thread(*build)
        above, below, refused = dict[NodeId, bytes](), list[NodeId](), part.refused
        for inputs, scored in zip(part.inputs, await self._score(part, place.owner), strict=True):
            if isinstance(scored, Problem):
                refused.append(scored)
                continue
            assert inputs.subgraph is not None
            (result,) = results(inputs, scored)
            if result["label"] == 1:
                version = {name: inputs.subgraph[name] for name in ("revision", "digest")}
                alert = encode_alert(result, model.ref_dict, **version)
                above[result["node_id"]] = alert
            else:
                below.append(result["node_id"])
        revision = min((_revision_of(inputs) for inputs in part.inputs), default=stored.revision)
        finished = queue.list_finished(part.count)
        raised = await graphs.alerts.record_scores(
            ScoredNodes(graph, revision, above, below, finished)
        )
        if raised is None:  # the graph is gone, or another server scores it
            self._backlogs[graph] = Backlog()
            return False
        queue.remove(part.count)
        context.metrics.count_watched(model.name, len(above) + len(below), raised)
        if refused:
            structlog.get_logger().warning(
                "nodes refused", graph=place.id, count=len(refused), reason=refused[0].detail
            )
        return True

    async def _take_changes(
        self,
        graphs: GraphStore,
        graph: WatchedGraph,
        stored: DynamicGraph,
        model: Scorer,
        backlog: Backlog,
    ) -> None:
        """Add what depends on new changes, once the means over neighbours include them."""
        changes = await graphs.alerts.read_changed(graph, backlog.unfinished)
        if not changes or stored.watch is None:
            return
        rule = model.network.neighbor_rule
        empty = await asyncio.to_thread(stored.sample_neighborhood, [], 0, 1, 0, 1, 1, rule)
        changes = [each for each in changes if each.revision <= empty.means_revision]
        reach = _reach_of(stored.watch).resolve(model.manifest)
        for queue, is_whole in ((backlog.whole, True), (backlog.changes, False)):
            taken = [each for each in changes if (each.node_ids is None) == is_whole]
            if taken:
                named = {node_id for each in taken for node_id in each.node_ids or ()}
                changed = None if is_whole else named
                dependents = await asyncio.to_thread(stored.list_dependents, changed, rule, **reach)
                queue.add(dependents, [each.key for each in taken])

    async def _score(self, part: _Part, owner: str) -> list[Scored | Problem]:
        inputs = part.inputs
        if not inputs:
            return []

        def work(control: StepControl) -> list[Scored | Problem]:
            return score_all(inputs, control)

        works = [workload_of(each) for each in inputs]
        cost, size = sum(each.cost for each in works), sum(each.size for each in works)
        workload = Workload(works[0].flow, cost, size, works[0].is_isolated)
        outcome = await self._context.engine.run(work, workload, is_job=True, key=owner)
        return outcome.value


def _build_part(
    model: Scorer,
    graph_id: str,
    stored: DynamicGraph,
    watch: WatchSettings,
    queue: NodeQueue,
    settings: Settings,
) -> _Part:
    """Return the next nodes of the queue, as `POST /anomaly/score` takes each by itself."""
    decision = None
    if watch.threshold is not None:
        decision = AlertRule.model_validate({"threshold": watch.threshold})
    fixed = _reach_of(watch), Dynamics.model_validate({}), frozenset[str](), decision
    taken, refused, count = list[ScoreInputs](), list[Problem](), 0
    nodes = edges = 0
    for node_id in islice(queue, _MAX_TARGETS):
        try:
            sent = StoredScoreInputs(model, graph_id, [node_id], *fixed)
            inputs = sent.from_stored(stored, settings)
        except Problem as problem:
            if all(fault.code != "unknown_node" for fault in problem.faults):
                refused.append(problem)
        else:
            nodes += inputs.graph.num_nodes
            edges += inputs.graph.edge_index.shape[1]
            is_large = nodes > settings.max_nodes or edges > settings.max_edges
            if taken and (is_large or nodes + edges > _MAX_SIZE):
                break
            taken.append(inputs)
        count += 1
    return _Part(taken, count, refused)


def _reach_of(watch: WatchSettings) -> NeighborhoodKnobs:
    reach = {"hops": watch.hops, "max_neighbors": watch.max_neighbors}
    return NeighborhoodKnobs.model_validate(reach)


def _revision_of(inputs: ScoreInputs) -> int:
    assert inputs.subgraph is not None
    return int(inputs.subgraph["revision"])
