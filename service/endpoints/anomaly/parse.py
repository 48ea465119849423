"""A body, its envelope and its graph, as one task for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.manifest import EnergyReference
from service.endpoints.anomaly.schemas import (
    ArrayScoreRequest,
    NeighborhoodKnobs,
    RowScoreRequest,
    StoredGraphRef,
    StoredScoreRequest,
    TensorEnvelope,
    TransactionScoreRequest,
)
from service.endpoints.common.alert_rule import AlertRule
from service.endpoints.common.envelope import read_envelope, require_supported_params
from service.endpoints.common.include import require_max_explained, require_supported_includes
from service.endpoints.common.labels import require_labels_read
from service.endpoints.common.schemas import Dynamics, Envelope
from service.errors import FieldError, Problem, unknown_fields
from service.media_types import JSON, SAFETENSORS
from service.registry.handles import Scorer
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.graphs import (
    DynamicGraph,
    Schema,
    StoredGraph,
    TransactionGraph,
    shorten_digest,
)
from service.validation.arrays import (
    join_names,
    make_graph_problem_at,
    pointer_builder,
    require_list,
)
from service.validation.ids import NodeId, index_ids
from service.validation.json_body import parse_json_object
from service.validation.json_graph import ParsedGraph, check_graph_size, parse_json_graph
from service.validation.safetensors_body import (
    GRAPH_TENSORS,
    Tensors,
    graph_from_tensors,
    parse_safetensors,
)
from service.validation.schema_errors import make_request_problem, validate_fields
from service.validation.transaction_rows import parse_transaction_graph

_IN_JSON = (
    ArrayScoreRequest.model_fields
    | RowScoreRequest.model_fields
    | StoredScoreRequest.model_fields
    | TransactionScoreRequest.model_fields
)


@dataclass(frozen=True)
class ScoreInputs:
    """What to score and how. `targets` are row numbers, None for all nodes; `taken` tells of what
    stored graph it is a neighbourhood."""

    model: Scorer
    graph: Graph
    node_ids: list[NodeId] | None
    targets: np.ndarray | None
    dynamics: Dynamics
    params: DynamicsParams
    include: frozenset[str]
    decision: AlertRule | None = None
    subgraph: Mapping[str, str | int] | None = None

    @property
    def energy_reference(self) -> EnergyReference | None:
        """The energies of training that are compared with: of a stored graph those of such parts;
        None where a request reads more or less."""
        manifest, taken = self.model.manifest, self.subgraph
        usual = manifest.neighborhood
        if taken is None or usual is None:
            return manifest.energy
        is_usual = (taken["hops"], taken["max_neighbors"]) == (usual.hops, usual.max_neighbors)
        return usual.energy if is_usual else None


@dataclass(frozen=True)
class StoredScoreInputs:
    """The same of nodes of a stored graph, which is to be read first."""

    model: Scorer
    graph_id: str
    targets: list[NodeId]
    neighborhood: NeighborhoodKnobs | None
    dynamics: Dynamics
    include: frozenset[str]
    decision: AlertRule | None

    def from_stored(self, stored: StoredGraph, settings: Settings) -> ScoreInputs:
        """With the neighbourhood of the targets, or of transactions the neighbourhoods.

        Raises:
            Problem: the graph is not one for this model, a target is not in it, or too much is
                around them.
        """
        require_same_schema(stored.schema, self.model)
        decision = self.decision
        if isinstance(stored, TransactionGraph):
            if self.neighborhood is not None:
                rule = "The model's recipe says what is linked with a target. Leave it out."
                raise make_graph_problem_at("/neighborhood", "not_read", rule)
            at = pointer_builder("targets")
            targets = stored.find_targets(self.targets, at)
            graph, node_ids = stored.build_neighborhoods(targets, settings.max_nodes, at)
            version = {"revision": targets.revision, "digest": shorten_digest(targets.digest)}
            at_size, reach = at(), dict[str, int]()
            decision = decision or rule_of(stored)
        else:
            assert isinstance(stored, DynamicGraph)
            reach = (self.neighborhood or NeighborhoodKnobs.model_validate({})).resolve(
                self.model.manifest
            )
            around = stored.sample_neighborhood(
                self.targets,
                **reach,
                seed=0 if self.neighborhood is None else self.neighborhood.seed,
                max_nodes=settings.max_neighborhood_nodes,
                max_edges=settings.max_neighborhood_edges,
                rule=self.model.network.neighbor_rule,
            )
            graph, node_ids = around.graph, around.node_ids
            version = {"revision": around.revision, "digest": shorten_digest(around.digest)}
            reach["means_revision"] = around.means_revision
            at_size = "/neighborhood"
        nodes, edges = graph.num_nodes, graph.edge_index.shape[1]
        check_graph_size(nodes, edges, settings, at_size, at_size)
        subgraph = {"id": self.graph_id, **version, **reach}
        return ScoreInputs(
            self.model,
            graph,
            node_ids,
            np.arange(len(self.targets)),
            self.dynamics,
            self.dynamics.to_params(),
            self.include,
            decision,
            subgraph | {"num_nodes": nodes, "num_edges": edges},
        )


@dataclass(frozen=True)
class TransactionScoreInputs:
    """Transactions to score, whose neighbourhoods are to be built first."""

    model: Scorer
    fields: Mapping[str, Any]
    envelope: Envelope
    decision: AlertRule | None

    def build(self, settings: Settings) -> ScoreInputs:
        """With the neighbourhoods of the targets.

        Raises:
            Problem: the rows or targets are not valid, or too much is around them.
        """
        assert self.model.recipe is not None
        named = parse_transaction_graph(self.fields, self.model.recipe, settings)
        return _to_inputs(self.model, named, self.envelope, self.decision, settings)


def rule_of(graph: TransactionGraph) -> AlertRule | None:
    """The threshold that was stored with a graph; None for that of the model."""
    threshold = graph.settings.threshold
    return None if threshold is None else AlertRule.model_validate({"threshold": threshold})


def require_same_schema(stored: Schema, model: Scorer) -> None:
    """Check that a model reads what a graph holds.

    Raises:
        Problem: it has other features or relations, or reads the other kind of graph.
    """
    for what, has, reads in (
        ("features", stored.features, model.features),
        ("relations", stored.relations, model.relations),
        ("edge features", stored.edge_features, model.edge_features),
    ):
        if has != reads and stored.recipe is None:
            rule = (
                f"The {what} of the stored graph are {join_names(has) or 'none'}, those of this "
                f"model {join_names(reads) or 'none'}. Choose another model or graph."
            )
            raise make_graph_problem_at("/graph_id", "not_read", rule)
    if stored.recipe != model.recipe:
        rule = (
            "The stored graph holds transactions for another model. Choose another model or graph."
        )
        if stored.recipe is None:
            rule = "This model reads transactions, and the stored graph holds nodes and edges."
        raise make_graph_problem_at("/graph_id", "not_read", rule)


def parse_score(
    body: bytes, media_type: str, registry: Registry, settings: Settings
) -> ScoreInputs | StoredScoreInputs | TransactionScoreInputs:
    """Parse a body of `POST /anomaly/score`, as sent or as `service.workers.large_json` made it.

    Raises:
        Problem: all errors of the first stage that fails: syntax, envelope, model, graph.
    """
    opened = _open(body, media_type)
    envelope = read_envelope(opened.fields, opened.known, settings)
    rule = _read_alert_rule(opened.fields)
    model = registry.get_of_kind(Scorer, envelope.model or settings.default_anomaly_model)
    rule = None if rule is None else rule.for_model(model.manifest)
    require_supported_params(envelope.dynamics, model.network.config)
    require_supported_includes(model.network, envelope.include)
    if opened.problem is not None:
        raise opened.problem
    sent = {name for name, value in opened.fields.items() if value is not None}
    if "labels" in sent and sent & {"graph_id", "transactions"}:
        detail = (
            "Labels are read with a graph that is sent. Leave out `labels`; those of a stored graph"
            " go to POST /graphs/{id}/labels."
        )
        raise make_graph_problem_at("/labels", "not_read", detail)
    if opened.fields.get("graph_id") is not None:
        return _stored(opened.fields, envelope, rule, model, settings)
    if opened.fields.get("neighborhood") is not None:
        raise make_graph_problem_at(
            "/neighborhood", "not_read", "`neighborhood` is allowed only with `graph_id`."
        )
    if model.recipe is not None or opened.fields.get("transactions") is not None:
        _require_transactions(opened, model)
        return TransactionScoreInputs(model, opened.fields, envelope, rule)
    if opened.tensors is None:
        named = parse_json_graph(opened.fields, model, settings)
    else:
        named = graph_from_tensors(
            opened.tensors,
            opened.names,
            model,
            settings,
            is_matched=media_type not in (JSON, SAFETENSORS),
        )
    return _to_inputs(model, named, envelope, rule, settings)


def _require_transactions(opened: _Opened, model: Scorer) -> None:
    if model.recipe is None:
        raise make_graph_problem_at(
            "/transactions",
            "not_read",
            "This model reads graphs. Send `graph`, or `nodes` and `edges`, or choose a model whose"
            " GET /models/{name} has `transactions`.",
        )
    if opened.tensors is not None or opened.fields.get("transactions") is None:
        raise make_graph_problem_at(
            "/transactions",
            "missing",
            "This model reads rows of transactions. Send them as `transactions` in JSON.",
        )


def _read_alert_rule(fields: Mapping[str, Any]) -> AlertRule | None:
    given = fields.get("decision")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise make_request_problem([FieldError("/decision", "wrong_type", "Must be an object.")])
    if faults := unknown_fields(given, AlertRule.model_fields, "decision"):
        raise make_request_problem(faults)
    return validate_fields(AlertRule, given, "decision")


def _to_inputs(
    model: Scorer,
    named: ParsedGraph,
    envelope: Envelope,
    rule: AlertRule | None,
    settings: Settings,
) -> ScoreInputs:
    count = named.graph.num_nodes if named.targets is None else len(named.targets)
    require_max_explained(envelope.include, count, "/targets", settings)
    require_labels_read(named.graph, model)
    return ScoreInputs(
        model,
        named.graph,
        named.node_ids,
        named.targets,
        envelope.dynamics,
        envelope.dynamics.to_params(),
        frozenset(envelope.include),
        rule,
    )


def _stored(
    fields: dict[str, Any],
    envelope: Envelope,
    rule: AlertRule | None,
    model: Scorer,
    settings: Settings,
) -> StoredScoreInputs:
    if any(fields.get(name) is not None for name in ("graph", "nodes", "edges", "transactions")):
        raise make_graph_problem_at(
            "", "one_of", "Send either a graph, or the `graph_id` of a stored graph."
        )
    at = pointer_builder("targets")
    targets = require_list(fields.get("targets"), at)
    if not targets:
        raise make_graph_problem_at(at(), "empty", "`targets` is empty. Give at least one node.")
    index_ids(targets, at)
    require_max_explained(envelope.include, len(targets), at(), settings)
    given = fields.get("neighborhood")
    if isinstance(given, dict) and (
        faults := unknown_fields(given, NeighborhoodKnobs.model_fields, "neighborhood")
    ):
        raise make_request_problem(faults)
    stored_fields = validate_fields(StoredGraphRef, fields)
    include = frozenset(envelope.include)
    return StoredScoreInputs(
        *(
            model,
            stored_fields.graph_id,
            targets,
            None if given is None else stored_fields.neighborhood,
            envelope.dynamics,
            include,
            rule,
        )
    )


@dataclass(frozen=True)
class _Opened:
    """A parsed body: its fields, the names of all allowed fields, and its arrays, if any.

    `names` are those of nodes, columns and relations of the arrays.
    """

    fields: dict[str, Any]
    known: Iterable[str]
    tensors: Tensors | None = None
    names: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None


def _open(body: bytes, media_type: str) -> _Opened:
    if media_type == JSON:
        return _Opened(parse_json_object(body, "invalid-json"), _IN_JSON)
    if media_type == SAFETENSORS:
        tensors, metadata = parse_safetensors(body)
        fields = parse_json_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        return _Opened(fields, TensorEnvelope.model_fields, tensors, fields)
    tensors, metadata = parse_safetensors(
        body, {**GRAPH_TENSORS, "node_ids": ({"U8": np.uint8}, (1,))}
    )
    problem = Problem.loads(metadata["problem"]) if "problem" in metadata else None
    if problem and "request" not in metadata:
        raise problem
    ids = tensors.pop("node_ids", None)
    names = {} if ids is None else {"node_ids": orjson.loads(ids.tobytes())}
    return _Opened(orjson.loads(metadata["request"]), _IN_JSON, tensors, names, problem)
