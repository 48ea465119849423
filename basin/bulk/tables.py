"""From tables to tables."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from basin_client.graphs import graph_of

from basin.bulk.plan import BulkError, Plan, fingerprint
from basin.bulk.run import Over, Track, here, over_ray, score
from basin.files import FileError, read_table
from models import checkpoint
from models.checkpoint import Manifest
from models.contract import Knobs
from models.graph import Graph
from service.engine.scoring import labelled
from service.settings import Settings


def score_tables(
    nodes: Path,
    edges: Path,
    folder: Path,
    *,
    model: str | None = None,
    knobs: Knobs | None = None,
    parts: int | None = None,
    ray: str | None = None,
    track: Track = lambda every: every,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Score all nodes of a graph in two tables, in parts, and go on with what `folder` has of it.

    Args:
        nodes, edges: files, or folders of Parquet files; as `graph_of` takes frames.
        ray: of a cluster to work on, or `local`; this process alone if None.

    Raises:
        BulkError, FileError: it cannot be done.
    """
    path, manifest = _model(model)
    plan = Plan.of(path, fingerprint([nodes, edges]), knobs or Knobs(), parts)
    if plan.begun(folder) is None:
        plan.begin(folder, _graph(nodes, edges, manifest))
    over: AbstractContextManager[Over] = nullcontext(here) if ray is None else over_ray(ray)
    with over as working:
        logits_N, convergence = score(folder, working, track)
    columns = labelled(manifest, logits_N, np.arange(len(logits_N)))
    columns["row"] = read_table(nodes)["id"].to_numpy()
    return pd.DataFrame(columns).rename(columns={"row": "node_id"}), convergence


def _model(name: str | None) -> tuple[Path, Manifest]:
    settings = Settings()
    wanted = name or settings.default_anomaly_model
    for path in sorted(settings.checkpoints.glob(f"*/{checkpoint.MANIFEST}")):
        found = checkpoint.load(path.parent)
        if found.manifest.name == wanted:
            return path.parent, found.manifest
    raise FileError(f"there is no model {wanted} in {settings.checkpoints}")


def _graph(nodes: Path, edges: Path, manifest: Manifest) -> Graph:
    frames = read_table(nodes), read_table(edges)
    names = [feature.name for feature in manifest.features]
    for frame, path, needed in ((frames[0], nodes, ["id", *names]), (frames[1], edges, _ENDS)):
        if missing := [name for name in needed if name not in frame.columns]:
            raise FileError(f"{path}: there is no column {missing[0]}; needed are {needed}")
    given = graph_of(frames, names)
    if not len(given.x):
        raise BulkError("there is no node")
    if (wrong := ~np.isfinite(given.x).all(1)).any():
        raise BulkError(f"the features of node {frames[0]['id'][wrong].iloc[0]!r} are not finite")
    return Graph(given.x, given.edge_index, _types(given.edge_type, manifest))


def _types(edge_type: np.ndarray | None, manifest: Manifest) -> np.ndarray | None:
    told = manifest.config.get("relations")
    relations = len(told) if isinstance(told, list) else 1
    if relations == 1:
        return None
    if edge_type is None:
        raise BulkError(f"the edges need a column type: {manifest.name} has {relations} relations")
    if edge_type.size and not 0 <= edge_type.min() <= edge_type.max() < relations:
        raise BulkError(f"the type of an edge is a whole number from 0 to {relations - 1}")
    return edge_type


_ENDS = ["source", "target"]
