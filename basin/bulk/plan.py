"""What is scored, with what, in which parts: written before anybody begins."""

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

from basin.bulk.part_store import PartStore
from models import checkpoint
from models.base import DynamicsParams
from models.checkpoint import Checkpoint
from models.inputs.features import described_by
from models.inputs.graph import Graph
from models.layouts import EdgeList, GraphPartition
from models.resonance import Resonance
from models.tasks.node_scorer import NodeScorer

_FILE, _LOCK = "plan.json", "lock"
_EDGES = 1_000_000  # of a part, as a node at either end sees them


class BulkError(ValueError):
    """A graph that cannot be scored in parts, with the reason."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One command at a time works in a folder; who is killed lets go of it.

    Raises:
        BulkError: another one does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BulkError(f"another command is at work in {folder}") from None
        yield


@final
@dataclass(frozen=True)
class Plan:
    """What a folder of work is for.

    Attributes:
        model: folder of the checkpoint, where all who work can read it.
        sha256: of the checkpoint.
        graph: of what the graph was read from.
        parts: how many were asked for; as many as its edges want if None.
        bounds: the first node of each part, and the end.
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
    bounds: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, model: Path, graph: str, knobs: DynamicsParams, parts: int | None) -> Self:
        """
        Raises:
            BulkError: the model or the knobs are none for work in parts, or the checkpoint cannot
                be trusted.
        """
        found = _loaded(model)
        if not isinstance(found.network, NodeScorer):
            raise BulkError(f"{found.manifest.name} does not score nodes")
        if (heard := found.network.resonance(knobs.resonance)) and heard.strength != 0:
            raise BulkError("in parts nothing resonates: ask for a resonance of strength 0")
        if knobs.tolerance or knobs.noise or knobs.solver != "euler":
            raise BulkError("in parts all steps are taken, without noise and as in training")
        if parts is not None and parts < 1:
            raise BulkError("there is at least one part")
        return cls(
            str(model.resolve()),
            found.sha256,
            graph,
            knobs.steps,
            knobs.beta,
            knobs.beta_scale,
            knobs.step_size,
            None if knobs.resonance is None else knobs.resonance.model_dump(),
            parts,
        )

    @property
    def knobs(self) -> DynamicsParams:
        asked = None if self.resonance is None else Resonance.model_validate(self.resonance)
        return DynamicsParams(
            self.steps, self.beta, self.beta_scale, self.step_size, resonance=asked
        )

    def checkpoint(self) -> Checkpoint:
        """
        Raises:
            BulkError: it is not the one that the work was begun with.
        """
        found = _loaded(Path(self.model))
        if found.sha256 != self.sha256:
            raise BulkError(f"{self.model} has changed since the work was begun")
        return found

    def begun(self, folder: Path) -> Self | None:
        """This plan as it was cut, if its work is in `folder` already.

        Raises:
            BulkError: something else is there.
        """
        if not (folder / _FILE).is_file():
            if any(path.name not in (*_CUT, _LOCK) for path in folder.iterdir()):
                raise BulkError(f"{folder} holds something else: name another folder")
            return None
        told = json.loads((folder / _FILE).read_text())
        found = type(self)(**told | {"bounds": tuple(told["bounds"])})
        if found != self:
            raise BulkError(
                f"{folder} is of another graph, model, dynamics or number of parts: name another "
                "folder, or delete it"
            )
        return replace(self, bounds=found.bounds)

    def begin(self, folder: Path, graph: Graph, ids: pd.DataFrame | None = None) -> Self:
        """Cut the graph into parts and write them to `folder`, with the `ids` of its nodes."""
        network = cast(NodeScorer, self.checkpoint().network)
        batch = network.pack([graph])
        bounds = _bounds(batch.relations, self.parts)
        work = PartStore(folder, bounds)
        work.drop(*_CUT)  # of one who was killed here
        for part in work.parts:
            rows = slice(bounds[part], bounds[part + 1])
            x_nF = batch.x_NF[rows]
            work.put("cut/x", part, x_nF)
            for r, relation in enumerate(batch.relations):
                sides = {"seen": (relation.indptr_N1, relation.indices_E)}
                if not network.config.undirected:  # else they are alike
                    sides["seers"] = (relation.t_indptr_N1, relation.t_indices_E)
                for side, (indptr, indices) in sides.items():
                    cut = GraphPartition.cut(indptr.numpy(), indices.numpy(), rows.start, rows.stop)
                    for name, array in vars(cut).items():
                        work.put(f"cut/{side}.{r}.{name}", part, array)
                work.put(f"cut/told.{r}", part, described_by(x_nF, relation.degree_N[rows]))
        if ids is not None:
            ids.to_parquet(folder / _IDS)
        planned = replace(self, bounds=bounds)
        (folder / "plan.tmp").write_text(json.dumps(asdict(planned), indent=1) + "\n")
        (folder / "plan.tmp").replace(folder / _FILE)
        return planned

    def ids(self, folder: Path) -> pd.DataFrame:
        """Those that it was begun with."""
        return pd.read_parquet(folder / _IDS)


_IDS = "cut/ids.parquet"
_CUT = ("cut", "plan.tmp")  # what may be there before there is a plan


def window(work: PartStore, side: str, relation: int, part: int) -> GraphPartition:
    """What a part sees, or what sees it (`seers`)."""
    arrays: dict[str, Any] = {
        name: work.get(f"cut/{side}.{relation}.{name}", part)
        for name in GraphPartition.__dataclass_fields__
    }
    return GraphPartition(**arrays)


def fingerprint(paths: Sequence[Path]) -> str:
    """SHA-256 of files, and of all in folders."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _loaded(model: Path) -> Checkpoint:
    try:
        return checkpoint.load(model)
    except checkpoint.CheckpointError as error:
        raise BulkError(str(error)) from error


def _bounds(relations: Sequence[EdgeList], parts: int | None) -> tuple[int, ...]:
    """Parts of about as many nodes and edges."""
    nodes = len(relations[0].indptr_N1) - 1
    edges = np.sum([relation.indptr_N1.numpy() for relation in relations], 0)
    weight = edges + np.arange(nodes + 1)
    count = parts or -(-int(edges[-1]) // _EDGES) or 1
    cuts = np.searchsorted(weight, np.linspace(0, weight[-1], min(count, nodes) + 1))
    return tuple(np.unique(np.r_[0, cuts[1:-1], nodes]).tolist())
