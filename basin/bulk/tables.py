"""From tables to tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from basin_client.graphs import graph_of
from pydantic import ValidationError

from basin.bulk.plan import BulkError, Plan, fingerprint, held
from basin.bulk.run import Over, Track, here, over_ray, score
from basin.io import FileError, read_table
from models.base import DynamicsParams
from models.checkpoint import MANIFEST, Manifest
from models.inputs.graph import Graph
from service.endpoints.anomaly.infer import labelled
from service.settings import Settings

_ENDS = ["source", "target"]


def score_tables(
    nodes: Path,
    edges: Path,
    folder: Path,
    *,
    targets: Sequence[Any] | None = None,
    model: str | None = None,
    knobs: DynamicsParams | None = None,
    parts: int | None = None,
    ray: str | None = None,
    track: Track = lambda every: every,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Score the nodes of a graph in two tables, in parts, and go on with what `folder` has of it.

    Args:
        nodes, edges: files, or folders of Parquet files; as `graph_of` takes frames.
        targets: ids of the nodes to tell of; all if None.
        ray: of a cluster to work on, or `local`; this process alone if None.

    Raises:
        BulkError, FileError, KeyError: it cannot be done.
    """
    folder = folder.resolve()  # workers have a folder of their own
    path, manifest = _model(model)
    over: AbstractContextManager[Over] = nullcontext(here) if ray is None else over_ray(ray)
    with held(folder), over as working:
        asked = Plan.of(path, fingerprint([nodes, edges]), knobs or DynamicsParams(), parts)
        plan = asked.begun(folder)
        if plan is None:
            frames = read_table(nodes), read_table(edges)
            graph = _graph(*frames, manifest)
            plan = asked.begin(folder, graph, frames[0]["id"].to_frame())
            del frames, graph
        ids = pd.Index(asked.ids(folder)["id"])
        rows = np.arange(len(ids)) if targets is None else _rows(ids, targets)
        logits_N, convergence = score(folder, plan, working, track)
    columns = labelled(manifest, logits_N, rows)
    columns["row"] = ids.to_numpy()[rows]
    return pd.DataFrame(columns).rename(columns={"row": "node_id"}), convergence


def _model(name: str | None) -> tuple[Path, Manifest]:
    settings = Settings()
    wanted = name or settings.default_anomaly_model
    for path in sorted(settings.checkpoints.glob(f"*/{MANIFEST}")):
        try:
            found = Manifest.model_validate_json(path.read_bytes())
        except ValidationError:
            continue  # a server leaves it out as well
        if found.name == wanted:
            return path.parent, found
    raise FileError(f"there is no model {wanted} in {settings.checkpoints}")


def _graph(nodes: pd.DataFrame, edges: pd.DataFrame, manifest: Manifest) -> Graph:
    names = [feature.name for feature in manifest.features]
    for frame, what, needed in ((nodes, "nodes", ["id", *names]), (edges, "edges", _ENDS)):
        if missing := [name for name in needed if name not in frame.columns]:
            raise FileError(f"the {what} have no column {missing[0]}; needed are {needed}")
    given = graph_of((nodes, edges), names)
    if not len(given.x):
        raise BulkError("there is no node")
    if (wrong := ~np.isfinite(given.x).all(1)).any():
        raise BulkError(
            f"the features of node {nodes['id'].iloc[int(wrong.argmax())]} are not finite"
        )
    return Graph(given.x, given.edge_index, _types(edges, manifest))


def _types(edges: pd.DataFrame, manifest: Manifest) -> np.ndarray | None:
    told = manifest.config.get("relations")
    relations = len(told) if isinstance(told, list) else 1
    if relations == 1:
        return None
    if "type" not in edges.columns:
        raise BulkError(f"the edges need a column type: {manifest.name} has {relations} relations")
    types = edges["type"].to_numpy()
    if not np.isin(types, range(relations)).all():
        raise BulkError(f"the type of an edge is a whole number from 0 to {relations - 1}")
    return types.astype(np.int64)


def _rows(ids: pd.Index, targets: Sequence[Any]) -> np.ndarray:
    found = ids.get_indexer(pd.Index(targets))
    if (missing := found < 0).any():
        raise KeyError(f"there is no node {targets[int(missing.argmax())]}")
    return found
