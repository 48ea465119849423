"""Which models and stored graphs have labels of nodes."""

from __future__ import annotations

from models.inputs.graph import Graph
from service.registry.handles import Scorer
from service.storage.graphs import Schema
from service.validation.arrays import make_graph_problem_at


def require_labels_read(graph: Graph, model: Scorer) -> None:
    """Check that a model reads labels, if a graph has some.

    Raises:
        Problem: it reads none.
    """
    if graph.labels is not None and model.network.label_trees is None:
        detail = (
            "This model reads no labels. Leave out `labels`, or choose a model whose "
            "GET /models/{name} has `label_trees`."
        )
        raise make_graph_problem_at("/labels", "not_read", detail)


def require_labels(schema: Schema) -> None:
    """Check that nodes of a stored graph may have labels.

    Raises:
        Problem: they may not.
    """
    if not schema.labels:
        detail = (
            "The nodes of this graph have no labels. PUT the graph with `labels`, which may be "
            "empty, and a model whose GET /models/{name} has `label_trees`."
        )
        raise make_graph_problem_at("/labels", "not_read", detail)
