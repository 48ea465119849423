"""The plan of a bulk run: what is scored, with which model, in which parts. Written first."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast, final

import numpy as np
import pandas as pd
import torch
from basin_client import InputError

from basin.bulk.part_store import PartStore
from models import checkpoint
from models.base import DynamicsParams
from models.checkpoint import Checkpoint
from models.inputs.features import append_log_degree, describe_edges
from models.inputs.graph import Graph
from models.inputs.graph_batch import GraphBatch
from models.inputs.label_columns import describe_labels
from models.layouts import EdgeList, GraphPartition
from models.resonance import Resonance
from models.tasks.node_scorer import NodeScorer

_PLAN_FILE = "plan.json"
_TEMPORARY_PLAN_FILE = "plan.tmp"
_LOCK_FILE = "lock"
_IDS_FILE = "cut/ids.parquet"
DESCRIBED_EDGES = "cut/edges"
DESCRIBED_LABELS = "cut/labels"
_INPUTS = "cut"  # folder of all that is written before the first stage
_EDGES_PER_PART = 1_000_000  # counting each edge at both ends
# Names of the arrays of a `GraphPartition` in files, in the order of its fields.
_PARTITION_ARRAYS = ("indptr", "local", "others")


class BulkError(InputError):
    """A graph cannot be scored in parts, or the folder of the run cannot be used."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one command at a time work in a folder. The system releases the lock of a killed process.

    Raises:
        BulkError: another command works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BulkError(
                f"{folder} is in use by another command: wait until it ends, or name another "
                "folder."
            ) from None
        yield


@final
@dataclass(frozen=True)
class Plan:
    """What a folder with a bulk run is for. Plans are equal if the same scores come out.

    Attributes:
        model: folder of the checkpoint, at a path where all workers can read it.
        sha256: hash of the checkpoint.
        graph: hash of the files of the graph.
        parts: number of parts that the user asked for; None to derive it from the number of edges.
        labels: whether labels of nodes are read.
        bounds: the first node of each part, and the number of nodes.
        log_degree: mean of log(1 + degree); None in plans of versions that did not write it.
    """

    model: str = field(compare=False)
    sha256: str
    graph: str
    steps: int | None
    beta: float | None
    beta_scale: float
    step_size: float | None
    resonance: dict[str, Any] | None
    parts: int | None
    labels: bool = False
    bounds: tuple[int, ...] = field(default=(), compare=False)
    log_degree: float | None = field(default=None, compare=False)

    @classmethod
    def from_model(
        cls,
        model: Path,
        graph: str,
        params: DynamicsParams,
        parts: int | None,
        *,
        labels: bool = False,
    ) -> Self:
        """Plan to score a graph, whose hash is `graph`, with the checkpoint in the folder `model`,
        and by `labels` of its nodes.

        Raises:
            BulkError: the model or the dynamics do not allow scoring in parts, the model reads no
                labels, or the checkpoint cannot be loaded.
        """
        loaded = _load_checkpoint(model)
        if not isinstance(loaded.network, NodeScorer):
            raise BulkError(
                f"{loaded.manifest.name} does not score nodes: name a model of the task `anomaly`."
            )
        if labels and loaded.network.label_trees is None:
            raise BulkError(
                f"{loaded.manifest.name} reads no labels: leave out --label and --drop the column, "
                "or name a model that was trained with --labels."
            )
        resonance = loaded.network.resolve_resonance(params.resonance)
        if resonance and resonance.strength != 0:
            raise BulkError(
                "Resonance is not supported with --bulk: turn it off with --set "
                "'resonance={\"strength\": 0}', or score without --bulk."
            )
        if params.tolerance or params.noise or params.solver != "euler":
            raise BulkError(
                "tolerance, noise and other solvers than euler are not supported with --bulk: "
                "leave them out, or score without --bulk."
            )
        if parts is not None and parts < 1:
            raise BulkError(f"The number of parts is {parts}; it must be at least 1.")
        return cls(
            str(model.resolve()),
            loaded.sha256,
            graph,
            params.steps,
            params.beta,
            params.beta_scale,
            params.step_size,
            None if params.resonance is None else params.resonance.model_dump(),
            parts,
            labels,
        )

    @property
    def params(self) -> DynamicsParams:
        resonance = None if self.resonance is None else Resonance.model_validate(self.resonance)
        return DynamicsParams(
            self.steps, self.beta, self.beta_scale, self.step_size, resonance=resonance
        )

    def load_checkpoint(self) -> Checkpoint:
        """
        Raises:
            BulkError: the checkpoint has changed since the run was started.
        """
        loaded = _load_checkpoint(Path(self.model))
        if loaded.sha256 != self.sha256:
            raise BulkError(
                f"The checkpoint {self.model} has changed since the run was started: restore it, "
                "or name another folder."
            )
        return loaded

    def find_started(self, folder: Path) -> Self | None:
        """Return this plan with its bounds if `folder` has a run of it, None if it has no run.

        Raises:
            BulkError: the folder contains something else.
        """
        if not (folder / _PLAN_FILE).is_file():
            # A command that was killed while it wrote the inputs leaves these.
            leftovers = (_INPUTS, _TEMPORARY_PLAN_FILE, _LOCK_FILE)
            if any(path.name not in leftovers for path in folder.iterdir()):
                raise BulkError(f"{folder} contains other files: name an empty or new folder.")
            return None
        fields = json.loads((folder / _PLAN_FILE).read_text())
        started = type(self)(**fields | {"bounds": tuple(fields["bounds"])})
        if started != self:
            raise BulkError(
                f"{folder} has a run of another graph, model, dynamics or number of parts: name "
                "another folder, or delete this one."
            )
        return replace(self, bounds=started.bounds)

    def start(self, folder: Path, graph: Graph, ids: pd.DataFrame | None = None) -> Self:
        """Cut the graph into parts, write them and the `ids` of its nodes to `folder`, and return
        the plan with its bounds."""
        network = cast(NodeScorer, self.load_checkpoint().network)
        batch = network.pack([graph])
        bounds = _balance_parts(batch.relations, self.parts)
        store = PartStore(folder, bounds)
        store.delete(_INPUTS, _TEMPORARY_PLAN_FILE)  # of a command that was killed here
        self._write_edge_features(store, network, batch)
        labels_NC = describe_labels(batch, float(network.label_prior)) if self.labels else None
        for part in store.parts:
            rows = slice(bounds[part], bounds[part + 1])
            if labels_NC is not None:
                store.write(DESCRIBED_LABELS, part, labels_NC[rows])
            x_nF = batch.x_NF[rows]
            store.write("cut/x", part, x_nF)
            for r, relation in enumerate(batch.relations):
                edges = {"seen": (relation.indptr_N1, relation.indices_E)}
                if not network.config.undirected:  # else both directions are the same
                    edges["seers"] = (relation.t_indptr_N1, relation.t_indices_E)
                for direction, (indptr, indices) in edges.items():
                    partition = GraphPartition.cut(
                        indptr.numpy(), indices.numpy(), rows.start, rows.stop
                    )
                    arrays = vars(partition).values()
                    for name, array in zip(_PARTITION_ARRAYS, arrays, strict=True):
                        store.write(f"cut/{direction}.{r}.{name}", part, array)
                description_nF = append_log_degree(x_nF, relation.degree_N[rows])
                store.write(f"cut/told.{r}", part, description_nF)
        if ids is not None:
            ids.to_parquet(folder / _IDS_FILE)
        # The plan is written last and replaced atomically: with it, all inputs are complete.
        (log_degree,) = batch.log_degree_R
        plan = replace(self, bounds=bounds, log_degree=log_degree)
        (folder / _TEMPORARY_PLAN_FILE).write_text(json.dumps(asdict(plan), indent=1) + "\n")
        (folder / _TEMPORARY_PLAN_FILE).replace(folder / _PLAN_FILE)
        return plan

    def _write_edge_features(
        self, store: PartStore, network: NodeScorer, batch: GraphBatch
    ) -> None:
        """Write what the features of edges add to nodes, and to the logits of each block in both
        directions."""
        if network.edge_features is None:
            return
        with torch.no_grad():
            layouts = cast(list[EdgeList], network.build_layouts(batch))
        described_NC = describe_edges(batch)
        for part in store.parts:
            rows = slice(store.bounds[part], store.bounds[part + 1])
            store.write(DESCRIBED_EDGES, part, described_NC[rows])
        for place, layout in enumerate(layouts):
            assert layout.bias_EH is not None
            directions = {
                "seen": (layout.indptr_N1, layout.bias_EH),
                "seers": (layout.t_indptr_N1, layout.bias_EH[layout.t_edge_E.long()]),
            }
            for direction, (indptr_N1, bias_EH) in directions.items():
                for part in store.parts:
                    first, last = indptr_N1[[store.bounds[part], store.bounds[part + 1]]].tolist()
                    store.write(bias_name(direction, place), part, bias_EH[first:last])


def bias_name(direction: str, block: int) -> str:
    """Array of what features of edges add to the logits, by the place of the block among all."""
    return f"cut/bias.{direction}.{block}"


def read_ids(folder: Path) -> pd.DataFrame:
    """Return the ids of the nodes with which the run was started."""
    return pd.read_parquet(folder / _IDS_FILE)


def read_partition(store: PartStore, direction: str, relation: int, part: int) -> GraphPartition:
    """Return the edges of a part: from its nodes to those they see (`seen`), or from its nodes to
    those that see them (`seers`)."""
    return GraphPartition(
        *(store.read(f"cut/{direction}.{relation}.{name}", part) for name in _PARTITION_ARRAYS)
    )


def hash_files(paths: Sequence[Path], options: str) -> str:
    """Return the SHA-256 of files, of all files in folders, and of the options to read them.

    Raises:
        BulkError: there is no such file.
    """
    digest = hashlib.sha256(options.encode())
    for path in paths:
        if not path.exists():
            raise BulkError(f"{path}: no such file or folder. --bulk reads no standard input.")
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _load_checkpoint(model: Path) -> Checkpoint:
    try:
        return checkpoint.load_checkpoint(model)
    except checkpoint.CheckpointError as error:
        raise BulkError(str(error)) from error


def _balance_parts(relations: Sequence[EdgeList], parts: int | None) -> tuple[int, ...]:
    """Return bounds of parts with about the same number of nodes and edges."""
    num_nodes = len(relations[0].indptr_N1) - 1
    edges = np.sum([relation.indptr_N1.numpy() for relation in relations], 0)
    weight = edges + np.arange(num_nodes + 1)
    count = parts or -(-int(edges[-1]) // _EDGES_PER_PART) or 1
    cuts = np.searchsorted(weight, np.linspace(0, weight[-1], min(count, num_nodes) + 1))
    return tuple(np.unique(np.r_[0, cuts[1:-1], num_nodes]).tolist())
