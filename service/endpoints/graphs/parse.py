"""Parse bodies that store or update a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson

from models.inputs.transactions import TransactionRecipe
from service.endpoints.common.alert_rule import find_daily_threshold
from service.endpoints.common.labels import require_labels, require_labels_read
from service.endpoints.graphs.schemas import (
    AlertSettings,
    GraphOf,
    GraphOfNodes,
    StoreTransactions,
)
from service.errors import FieldError, Problem, unknown_fields
from service.media_types import JSON
from service.registry.handles import Scorer
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.graphs import (
    DynamicGraph,
    Edge,
    GraphSnapshot,
    Schema,
    StoredGraph,
    StreamSettings,
    TransactionGraph,
    Update,
    WatchSettings,
)
from service.validation.arrays import (
    PointerFn,
    make_graph_problem_at,
    make_graph_problem_where,
    pointer_builder,
    require_list,
    require_types,
)
from service.validation.edge_features import require_same_if_repeated
from service.validation.ids import NodeId, index_ids
from service.validation.json_body import parse_json_object
from service.validation.json_graph import (
    parse_edge_types,
    parse_json_graph,
    parse_named_features,
    parse_nodes,
)
from service.validation.node_labels import parse_label_changes
from service.validation.safetensors_body import (
    GRAPH_TENSORS,
    INTEGER_DTYPES,
    TensorSpecs,
    graph_from_tensors,
    parse_safetensors,
)
from service.validation.schema_errors import make_request_problem, validate_fields

TENSORS_OF_GRAPH: TensorSpecs = {
    **{name: spec for name, spec in GRAPH_TENSORS.items() if name != "targets"},
    "node_ids": ({**INTEGER_DTYPES, "U8": np.uint8}, (1,)),
}
MAX_CHANGES = 10_000
"""Nodes and edges of one update; other updates wait while it is applied."""
_SHAPES = ("graph", "nodes", "edges")
_NAMES = ("feature_names", "edge_feature_names", "relation_names")
_MAX_ID = 64
_RULE = "Must be the id of a node."


def parse_graph(
    body: bytes, media_type: str, registry: Registry, settings: Settings
) -> StoredGraph:
    """Parse a body of `PUT /graphs/{id}`.

    Raises:
        Problem: the graph is not valid for its model.
    """
    if media_type == JSON:
        fields, tensors = parse_json_object(body, "invalid-json"), None
        known = (*StoreTransactions.model_fields, *GraphOfNodes.model_fields, *_SHAPES)
    else:
        tensors, metadata = parse_safetensors(body, TENSORS_OF_GRAPH)
        fields = parse_json_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        known = (*GraphOfNodes.model_fields, "node_ids", *_NAMES)
    if faults := unknown_fields(fields, known):
        raise make_request_problem(faults)
    name = validate_fields(GraphOf, fields).model or settings.default_anomaly_model
    model = registry.get_of_kind(Scorer, name)
    if model.recipe is not None:
        origins = settings.webhook_origins
        return _make_transaction_graph(fields, tensors is not None, model, model.recipe, origins)
    of_transactions = StoreTransactions.model_fields.keys() - GraphOf.model_fields.keys()
    if given := sorted(name for name in of_transactions if fields.get(name) is not None):
        rule = f"The model {model.name!r} reads graphs, not transactions. Leave it out."
        if given[0] in AlertSettings.model_fields:
            rule += " Alerts of nodes have it within `alerts`."
        raise make_request_problem([FieldError(f"/{given[0]}", "not_read", rule)])
    watch = _parse_watch(fields, model.name, settings.webhook_origins)
    if tensors is None and fields.get("nodes") is not None:
        at_ids, at_edges = pointer_builder("nodes", tail="id"), pointer_builder("edges")
    else:
        where = () if tensors is not None else ("graph",)
        at_ids, at_edges = (pointer_builder(*where, name) for name in ("node_ids", "edge_attr"))
    if tensors is None:
        parsed = parse_json_graph(fields, model, settings)
    else:
        node_ids = fields.get("node_ids")
        if "node_ids" in tensors:
            if node_ids is not None:
                detail = "Send node ids either as a tensor or as a list in `request`, not both."
                raise make_graph_problem_at("/node_ids", "one_of", detail)
            node_ids = _ids_of(tensors["node_ids"])
        names = {name: fields.get(name) for name in _NAMES}
        parsed = graph_from_tensors(tensors, names | {"node_ids": node_ids}, model, settings)
    if parsed.graph.num_nodes > settings.max_stored_nodes:
        detail = (
            f"The graph has {parsed.graph.num_nodes} nodes; stored graphs may have at most "
            f"{settings.max_stored_nodes} together (BASIN_MAX_STORED_NODES). Send a smaller "
            "graph."
        )
        raise Problem("store-full", detail)
    ids: list[NodeId] = parsed.node_ids or list(range(parsed.graph.num_nodes))
    _require_short(ids, at_ids)
    graph = parsed.graph
    if model.edge_features and graph.edge_attr is not None:
        require_same_if_repeated(graph.edge_index, graph.edge_type, graph.edge_attr, at_edges)
    require_labels_read(graph, model)
    more = {"edge_features": model.edge_features, "labels": graph.labels is not None}
    schema = Schema(model.features, model.relations, **more)
    return DynamicGraph(schema, GraphSnapshot(graph, ids, 0), watch)


def find_origin(url: str) -> str:
    """Return scheme, host and port of a URL; blank if it has none, or a user in it."""
    try:
        parts = urlsplit(url)
        is_plain = parts.username is None and parts.hostname is not None
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}" if is_plain else ""


def _make_transaction_graph(
    fields: Mapping[str, Any],
    has_tensors: bool,
    model: Scorer,
    recipe: TransactionRecipe,
    origins: Collection[str],
) -> TransactionGraph:
    if has_tensors or any(fields.get(name) is not None for name in _SHAPES):
        detail = (
            f"The model {model.name!r} reads transactions. Store the graph with `model` alone, and "
            "send rows to POST /graphs/{id}/transactions."
        )
        raise make_graph_problem_at("/model", "not_read", detail)
    if fields.get("alerts") is not None:
        rule = (
            f"The model {model.name!r} reads transactions, which raise alerts anyway. Send "
            "`threshold` or `webhook` beside `model`."
        )
        raise make_request_problem([FieldError("/alerts", "not_read", rule)])
    options = validate_fields(StoreTransactions, fields)
    keep = 2 * recipe.reach if options.keep is None else options.keep
    if keep < recipe.reach:
        rule = f"Must be at least {recipe.reach:g}: over that time rows change a score."
        raise make_request_problem([FieldError("/keep", "out_of_range", rule)])
    _require_allowed(options.webhook, origins, "/webhook")
    threshold = options.threshold
    if options.daily_budget is not None:
        if threshold is not None:
            rule = "Give `threshold` or `daily_budget`, not both."
            raise make_request_problem([FieldError("/daily_budget", "one_of", rule)])
        threshold = find_daily_threshold(model.manifest, options.daily_budget, "/daily_budget")
    settings = StreamSettings(model.name, recipe, threshold, keep, options.webhook)
    return TransactionGraph(settings, None, -math.inf, 0)


def _parse_watch(
    fields: Mapping[str, Any], model: str, origins: Collection[str]
) -> WatchSettings | None:
    """Return the settings of `alerts`; None if nodes raise none."""
    given = fields.get("alerts")
    if isinstance(given, dict) and (
        faults := unknown_fields(given, AlertSettings.model_fields, "alerts")
    ):
        raise make_request_problem(faults)
    options = validate_fields(GraphOfNodes, fields).alerts
    if options is None:
        return None
    _require_allowed(options.webhook, origins, "/alerts/webhook")
    return WatchSettings(model, **options.model_dump())


def _require_allowed(webhook: str | None, origins: Collection[str], where: str) -> None:
    if webhook is not None and find_origin(webhook) not in origins:
        rule = (
            "The origin of this URL is not allowed. Allowed are: "
            f"{', '.join(origins) or 'none'} (BASIN_WEBHOOK_ORIGINS)."
        )
        raise make_request_problem([FieldError(where, "not_allowed", rule)])


def parse_update(body: bytes, schema: Schema, parts: Collection[str]) -> Update:
    """Parse an update with some of the fields `parts`: `nodes`, `edges`, `delete_nodes`,
    `delete_edges`, `labels`.

    Raises:
        Problem: the update is malformed or empty.
    """
    fields = parse_json_object(body, "invalid-json")
    if faults := unknown_fields(fields, parts):
        raise make_request_problem(faults)
    given = {part: _list(fields, part) for part in parts}
    if (num_changes := sum(map(len, given.values()))) > MAX_CHANGES:
        rule = (
            f"{num_changes} nodes, edges and labels were sent; at most {MAX_CHANGES} are allowed "
            "in one update. Send several updates, or PUT the whole graph."
        )
        raise make_graph_problem_at("", "too_many", rule)
    if not any(given.values()):
        part = next(iter(parts))
        detail = "The update is empty. Send at least one node, edge or label."
        raise make_graph_problem_at(f"/{part}" if len(parts) == 1 else "", "empty", detail)
    x, node_ids = np.empty((0, len(schema.features)), np.float32), list[NodeId]()
    if nodes := given.get("nodes"):
        x, node_ids, _ = parse_nodes(nodes, schema.features)
        _require_short(node_ids, pointer_builder("nodes", tail="id"))
    deleted = given.get("delete_nodes", [])
    index_ids(deleted, pointer_builder("delete_nodes"))
    edges, attr = _edges(given, "edges", schema, schema.edge_features), None
    if edges and schema.edge_features:
        attr = parse_named_features(given["edges"], schema.edge_features, "edge")
        numbers = {id: i for i, id in enumerate({id for edge in edges for id in edge[:2]})}
        keys = np.array([(numbers[a], numbers[b], relation) for a, b, relation in edges], np.int64)
        require_same_if_repeated(keys[:, :2].T, keys[:, 2], attr, pointer_builder("edges"))
    labels = parse_label_changes(given.get("labels", []))
    if labels:
        require_labels(schema)
    dropped = _edges(given, "delete_edges", schema)
    return Update(tuple(node_ids), x, edges, tuple(deleted), dropped, attr, labels)


def _ids_of(tensor: np.ndarray) -> object:
    """Return the ids of a tensor of integers, or of the bytes of a JSON list."""
    if tensor.dtype != np.uint8:
        return tensor.tolist()
    try:
        return orjson.loads(tensor.tobytes())
    except orjson.JSONDecodeError:
        raise make_graph_problem_at(
            "/node_ids", "wrong_type", "Must hold integers, or the bytes of a JSON list."
        ) from None


def _require_short(ids: list[NodeId], at: PointerFn) -> None:
    """Limit the length of ids, since storage is limited by the number of nodes."""
    long = np.array([type(name) is str and len(name) > _MAX_ID for name in ids], bool)
    if long.any():
        detail = f"A node id of a stored graph may have at most {_MAX_ID} characters."
        raise make_graph_problem_where(long, at, "too_long", detail)


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return [] if value is None else require_list(value, pointer_builder(name))


def _edges(
    given: Mapping[str, list[Any]], part: str, schema: Schema, features: tuple[str, ...] = ()
) -> tuple[Edge, ...]:
    rows = given.get(part, [])
    types = parse_edge_types(rows, schema.relations, part, features)
    ends = [[row[end] for row in rows] for end in ("source", "target")]
    for end, ids in zip(("source", "target"), ends, strict=True):
        require_types(ids, {int, str}, pointer_builder(part, tail=end), _RULE)
    relations = [0] * len(rows) if types is None else types.tolist()
    return tuple(zip(*ends, relations, strict=True))
