"""Score a graph in tables in parts, and return a table of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from basin_client import InputError
from basin_client.graph_tables import ColumnOptions, find_targets, graph_from_tables, other_columns
from basin_client.schema import GraphSchema
from basin_client.tables import read_table

from basin.bulk.plan import Plan, hash_files, lock_folder, read_ids
from basin.bulk.run import PartExecutor, ShowProgress, ray_executor, run_in_process, score
from basin.io import add_columns
from models.base import DynamicsParams
from models.inputs.graph import UNTYPED, Graph
from models.manifest import MANIFEST, CheckpointError, Manifest, read_manifest
from service.endpoints.anomaly.infer import labelled
from service.settings import Settings

_NODE_ID = "(node id)"  # no column of a table is called so


def score_tables(
    nodes: Path,
    edges: Path,
    folder: Path,
    *,
    targets: pd.Series | Sequence[Any] | None = None,
    model: str | None = None,
    params: DynamicsParams | None = None,
    options: ColumnOptions | None = None,
    label: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    parts: int | None = None,
    ray: str | None = None,
    show_progress: ShowProgress = iter,
    tell: Callable[[str], object] = print,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Score the nodes of a graph in parts; resume the run if `folder` has one of this graph.

    Args:
        nodes: table with an id and the features; a file, or a folder of Parquet files.
        edges: table with source, target and optionally type; likewise.
        folder: where arrays and progress are stored.
        targets: ids of the nodes to return; all nodes if None.
        model: name of a checkpoint in BASIN_CHECKPOINTS; the server's default if None.
        options: which column is what.
        label: column of the nodes with labels that are known, for a model that reads some.
        separator, encoding: of CSV, see `basin_client.tables.read_table`.
        parts: number of parts; one per million edges if None.
        ray: address of a Ray cluster, or `local`; None to use this process alone.
        tell: called with each line about what is left out of the tables.

    Returns:
        one row per node, with its scores and the columns that the model does not read; and the
        convergence.

    Raises:
        BulkError, InputError: the arguments, files or folder cannot be used.
    """
    options = options or ColumnOptions()
    folder = folder.resolve()  # workers on a cluster have other working directories
    model_folder, manifest = find_model(model)
    executor: AbstractContextManager[PartExecutor] = nullcontext(run_in_process)
    if ray is not None:
        executor = ray_executor(ray)
    with lock_folder(folder), executor as execute:
        given = (options, separator, encoding, *([label] if label else []))
        graph_hash = hash_files([nodes, edges], repr(given))
        params = params or DynamicsParams()
        is_labelled = label is not None
        new_plan = Plan.from_model(model_folder, graph_hash, params, parts, labels=is_labelled)
        plan = new_plan.find_started(folder)
        if plan is None:
            node_table = read_table(nodes, separator=separator, encoding=encoding)
            edge_table = read_table(edges, separator=separator, encoding=encoding)
            schema = _schema(manifest)
            read = graph_from_tables(node_table, edge_table, schema, options, label)
            for note in read.notes:
                tell(note)
            others = other_columns(node_table, read, options)
            others.insert(0, _NODE_ID, read.ids.to_numpy(), allow_duplicates=True)
            arrays = read.x, read.edge_index, read.edge_type, read.edge_attr
            graph = Graph(*arrays, labels=read.labels)
            plan = new_plan.start(folder, graph, others)
            del node_table, edge_table, read, graph  # the memory is needed for the stages
        others = read_ids(folder)
        ids = others.pop(_NODE_ID)
        rows = np.arange(len(ids))
        if targets is not None:
            rows = find_targets(ids, pd.Series(targets), "targets", options.id)
        logits_N, convergence = score(folder, plan, execute, show_progress)
    columns = labelled(manifest, logits_N, rows)
    columns["row"] = ids.to_numpy()[rows]
    results = pd.DataFrame(columns).rename(columns={"row": "node_id"})
    return add_columns(results, others.iloc[rows]), convergence


def _schema(manifest: Manifest) -> GraphSchema:
    names = tuple(feature.name for feature in manifest.features)
    relations = manifest.config.get("relations") or UNTYPED
    edge_features = tuple(feature.name for feature in manifest.edge_features)
    relations = tuple(cast(Sequence[str], relations))
    return GraphSchema(manifest.name, names, relations, edge_features=edge_features)


def find_model(name: str | None) -> tuple[Path, Manifest]:
    """Return folder and manifest of a checkpoint; skip manifests that the server would skip."""
    settings = Settings()
    name = name or settings.default_anomaly_model
    for path in sorted(settings.checkpoints.glob(f"*/{MANIFEST}")):
        try:
            manifest = read_manifest(path.parent)
        except CheckpointError:
            continue
        if manifest.name == name:
            return path.parent, manifest
    raise InputError(
        f"No model {name} in {settings.checkpoints} (BASIN_CHECKPOINTS): `basin models` lists the "
        "models."
    )
