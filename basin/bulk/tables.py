"""Score a graph in tables in parts, and return a table of scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from basin_client.graphs import to_graph
from pydantic import ValidationError

from basin.bulk.plan import BulkError, Plan, hash_files, lock_folder, read_ids
from basin.bulk.run import PartExecutor, ShowProgress, ray_executor, run_in_process, score
from basin.io import FileError, read_table, require_columns
from models.base import DynamicsParams
from models.checkpoint import MANIFEST, Manifest
from models.inputs.graph import Graph
from service.endpoints.anomaly.infer import labelled
from service.settings import Settings


def score_tables(
    nodes: Path,
    edges: Path,
    folder: Path,
    *,
    targets: Sequence[Any] | None = None,
    model: str | None = None,
    params: DynamicsParams | None = None,
    parts: int | None = None,
    ray: str | None = None,
    show_progress: ShowProgress = iter,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Score the nodes of a graph in parts; resume the run if `folder` has one of this graph.

    Args:
        nodes: table with `id` and the features; a file, or a folder of Parquet files.
        edges: table with `source`, `target` and optionally `type`; likewise.
        folder: where arrays and progress are stored.
        targets: ids of the nodes to return; all nodes if None.
        model: name of a checkpoint in BASIN_CHECKPOINTS; the server's default if None.
        parts: number of parts; one per million edges if None.
        ray: address of a Ray cluster, or `local`; None to use this process alone.

    Returns:
        one row of scores per node, and the convergence.

    Raises:
        BulkError, FileError: the arguments, files or folder cannot be used.
        KeyError: a target or the end of an edge is not a node.
    """
    folder = folder.resolve()  # workers on a cluster have other working directories
    model_folder, manifest = _find_model(model)
    executor: AbstractContextManager[PartExecutor] = nullcontext(run_in_process)
    if ray is not None:
        executor = ray_executor(ray)
    with lock_folder(folder), executor as execute:
        graph_hash = hash_files([nodes, edges])
        new_plan = Plan.from_model(model_folder, graph_hash, params or DynamicsParams(), parts)
        plan = new_plan.find_started(folder)
        if plan is None:
            node_frame = read_table(nodes)
            graph = _read_graph(node_frame, read_table(edges), manifest)
            plan = new_plan.start(folder, graph, node_frame["id"].to_frame())
            del node_frame, graph  # the memory is needed for the stages
        ids = pd.Index(read_ids(folder)["id"])
        rows = np.arange(len(ids)) if targets is None else _find_rows(ids, targets)
        logits_N, convergence = score(folder, plan, execute, show_progress)
    columns = labelled(manifest, logits_N, rows)
    columns["row"] = ids.to_numpy()[rows]
    return pd.DataFrame(columns).rename(columns={"row": "node_id"}), convergence


def _find_model(name: str | None) -> tuple[Path, Manifest]:
    """Return folder and manifest of a checkpoint; skip manifests that the server would skip."""
    settings = Settings()
    name = name or settings.default_anomaly_model
    for path in sorted(settings.checkpoints.glob(f"*/{MANIFEST}")):
        try:
            manifest = Manifest.model_validate_json(path.read_bytes())
        except ValidationError:
            continue
        if manifest.name == name:
            return path.parent, manifest
    raise FileError(
        f"No model {name} in {settings.checkpoints} (BASIN_CHECKPOINTS): `basin models` lists the "
        "models."
    )


def _read_graph(nodes: pd.DataFrame, edges: pd.DataFrame, manifest: Manifest) -> Graph:
    features = [feature.name for feature in manifest.features]
    require_columns(nodes, ["id", *features], "nodes")
    require_columns(edges, ["source", "target"], "edges")
    graph = to_graph((nodes, edges), features)
    if not len(graph.x):
        raise BulkError("The table of nodes is empty: the graph needs at least one node.")
    if (is_wrong := ~np.isfinite(graph.x).all(1)).any():
        node = nodes["id"].iloc[int(is_wrong.argmax())]
        raise BulkError(f"The features of node {node} are not finite: replace NaN and infinity.")
    return Graph(graph.x, graph.edge_index, _read_edge_types(edges, manifest))


def _read_edge_types(edges: pd.DataFrame, manifest: Manifest) -> np.ndarray | None:
    relations = manifest.config.get("relations")
    num_relations = len(relations) if isinstance(relations, list) else 1
    if num_relations == 1:
        return None
    if "type" not in edges.columns:
        raise BulkError(
            f"The edges have no column `type`, but {manifest.name} has {num_relations} relations: "
            f"add it, with whole numbers from 0 to {num_relations - 1}."
        )
    types = edges["type"].to_numpy()
    if not np.isin(types, range(num_relations)).all():
        raise BulkError(
            "An edge has an invalid `type`: it must be a whole number from 0 to "
            f"{num_relations - 1}."
        )
    return types.astype(np.int64)


def _find_rows(ids: pd.Index, targets: Sequence[Any]) -> np.ndarray:
    rows = ids.get_indexer(pd.Index(targets))
    if (is_missing := rows < 0).any():
        raise KeyError(f"Unknown node {targets[int(is_missing.argmax())]} in targets.")
    return rows
