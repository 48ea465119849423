"""The stages of a bulk run, and what a stage computes for one part.

A stage ends where nodes need results of their neighbours, which may be in other parts:

- `hop`: the mean over the neighbours of each node, once for each hop; then `score`, its
  log-odds by trees, if there are trees; then `embed`: the first state
- `read`, in each step: a node compares its query with the keys of the nodes that it sees, which
  normalises the weights of its edges
- `go`, in each step: the nodes that see a node pull at it with these weights; the node moves

Within a stage every node is independent of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, final

import numpy as np
import torch
from torch import Tensor

from basin.bulk.part_store import PartStore
from basin.bulk.plan import DESCRIBED_EDGES, DESCRIBED_LABELS, Plan, bias_name, read_partition
from models.base import Block, DynamicsParams
from models.dynamics.motion import Motion
from models.energies import AttentionEnergy, Energy
from models.inputs.features import assemble_columns
from models.inputs.label_columns import is_labelled_around
from models.layouts import Attention, GraphPartition, PrecomputedAttention
from models.tasks.node_scorer import LabelScores, NodeScorer

# Names of kinds and arrays are names of files: an unfinished run must find them again.
_SCORES = "scores"  # of trees, (n, 1)
_LABEL_SCORES = "label_scores"  # of trees that read labels, (n, 1)


@final
@dataclass(frozen=True)
class Stage:
    """A stage. `position` is the hop, or the block and the step in it."""

    kind: Literal["hop", "score", "embed", "read", "go"]
    position: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.kind, *map(str, self.position)])

    @property
    def trace_name(self) -> str:
        """Array of what a `go` stage traces: energy, |dx/dt|^2 and |x|^2 of each chain."""
        return f"course/{self.name}"

    def obsolete_arrays(self) -> list[str]:
        """Return the arrays that no later stage reads."""
        if self.kind == "embed":
            return ["cut/x", "told"]
        return ["step-" + "-".join(map(str, self.position))] if self.kind == "go" else []


def list_stages(network: NodeScorer, params: DynamicsParams) -> Iterator[Stage]:
    """Yield all stages in order."""
    for hop in range(1, network.config.hops + 1):
        yield Stage("hop", (hop,))
    if network.features.trees is not None:
        yield Stage("score")
    yield Stage("embed")
    for block in range(network.config.blocks):
        for step in range(_num_steps(network, params) + 1):
            if network.config.attention:
                yield Stage("read", (block, step))
            yield Stage("go", (block, step))


@final
class PartWorker:
    """Computes stages for one part of a run, from arrays in its folder to arrays there.

    A chain is what moves on one relation in one network: those of the first network come first, in
    the order of `blocks_in_order`.

    Shapes: n nodes of the part, L nodes at the other ends of their edges; H heads of width Y.
    """

    def __init__(self, folder: Path, plan: Plan, network: NodeScorer, part: int) -> None:
        self._store = PartStore(folder, plan.bounds)
        self._part = part
        self._network = network
        self._params = plan.params
        self._relations = range(len(network.config.relations))
        self._chains = range(network.config.members * len(self._relations))
        self._has_labels = plan.labels

    def run(self, stage: Stage) -> None:
        """Compute a stage, also if it was computed before, and mark it as done."""
        methods = {
            "hop": self._hop,
            "score": self._score,
            "embed": self._embed,
            "read": self._read,
            "go": self._go,
        }
        with torch.no_grad():
            methods[stage.kind](*stage.position)
        self._store.mark_done(stage.name, self._part)

    def _hop(self, hop: int) -> None:
        for r in self._relations:
            seen = self._partition("seen", r)
            description_LF = self._store.gather(_description_name(r, hop - 1), seen.others)
            self._write(_description_name(r, hop), seen.mean(description_LF))
            if hop <= self._network.features.deviation_hops:
                square_LF = (
                    np.square(description_LF)
                    if hop == 1
                    else self._store.gather(_square_name(r, hop - 1), seen.others)
                )
                self._write(_square_name(r, hop), seen.mean(square_LF))

    def _score(self) -> None:
        trees = self._network.features.trees
        assert trees is not None
        columns_nC = self._node_columns()
        self._write(_SCORES, trees(columns_nC)[:, None])
        if self._has_labels:
            assert self._network.label_trees is not None
            labelled_nC = torch.cat([columns_nC, self._tensor(DESCRIBED_LABELS)], 1)
            self._write(_LABEL_SCORES, self._network.label_trees(labelled_nC)[:, None])

    def _node_columns(self) -> Tensor:
        hops, deviations = self._network.config.hops, self._network.features.deviation_hops
        descriptions = []
        for r in self._relations:
            means = [self._tensor(_description_name(r, hop)) for hop in range(hops + 1)]
            squares = [self._tensor(_square_name(r, hop)) for hop in range(1, deviations + 1)]
            descriptions.append((means, squares))
        return assemble_columns(self._tensor("cut/x"), descriptions)

    def _embed(self) -> None:
        table_nC = self._node_columns()
        if self._network.features.trees is not None:
            columns = [self._tensor(_SCORES)]
            for r in self._relations:
                seen = self._partition("seen", r)
                columns.append(seen.mean(self._store.gather(_SCORES, seen.others)))
            table_nC = torch.cat([table_nC, *columns], 1)
        if self._network.edge_features is not None:
            table_nC = torch.cat([table_nC, self._tensor(DESCRIBED_EDGES)], 1)
        embedded_KnD = self._network.embed_table(table_nC)
        for member, x_nD in enumerate(embedded_KnD):
            self._write(_embedded_name(member), x_nD)
        for chain in self._chains:
            self._write_state(chain, 0, 0, embedded_KnD[chain // len(self._relations)])

    def _write_state(self, chain: int, block: int, step: int, x_nD: Tensor) -> None:
        """Write the state before a step, with the queries and keys that other parts gather."""
        folder = _step_folder(chain, block, step)
        moving_block = self._block(chain, block)
        self._write(f"{folder}/x", x_nD)
        if (attention := _find_attention(moving_block)) is not None:
            q_nHY, k_nHY = attention.attention_inputs(moving_block.norm(x_nD))
            self._write(f"{folder}/q", q_nHY)
            self._write(f"{folder}/k", k_nHY)

    def _read(self, block: int, step: int) -> None:
        for chain in self._chains:
            folder = _step_folder(chain, block, step)
            seen = self._partition("seen", self._relation(chain))
            q_nHY = self._store.read(f"{folder}/q", self._part)
            k_LHY = self._store.gather(f"{folder}/k", seen.others)
            beta_nH = self._beta(chain, block, len(q_nHY))
            bias_eH = self._bias("seen", chain, block)
            lse_nH, pk_nHY = seen.read(q_nHY, k_LHY, beta_nH, bias_eH)
            self._write(f"{folder}/lse", lse_nH)
            self._write(f"{folder}/pk", pk_nHY)

    def _go(self, block: int, step: int) -> None:
        # After the last step the energy is evaluated once more, without a force.
        is_last = step == _num_steps(self._network, self._params)
        trace = []
        final_states = []
        for chain in self._chains:
            folder = _step_folder(chain, block, step)
            moving_block = self._block(chain, block)
            x_nD = self._tensor(f"{folder}/x")
            g_nD = moving_block.norm(x_nD)
            attention = None
            if _find_attention(moving_block) is not None:
                attention = self._finish_attention(folder, chain, block, is_last)
            layout = PrecomputedAttention(len(x_nD), attention)
            resolved = moving_block.resolve_params([self._params])
            energy = cast(Energy, moving_block.energy)
            terms = energy(g_nD, layout, resolved.beta_RH, with_force=not is_last)
            speed_squared = 0.0
            if not is_last:
                drift_nD = cast(Motion, moving_block.motion).drift(x_nD, terms.force_ND)
                speed_squared = _squared_norm(drift_nD)
                next_nD = x_nD + resolved.step_size_R[0] * drift_nD
                self._write_state(chain, block, step + 1, next_nD)
            elif block + 1 < self._network.config.blocks:
                self._write_state(chain, block + 1, 0, x_nD)
            else:
                final_states.append(g_nD)
            total_energy = sum(float(part_n.double().sum()) for part_n in terms.parts.values())
            trace.append((total_energy, speed_squared, _squared_norm(x_nD)))
        self._write(Stage("go", (block, step)).trace_name, np.array(trace, np.float64))
        if final_states:
            logits_n = self._network.read_states(
                [self._tensor(_embedded_name(k)) for k in range(self._network.config.members)],
                final_states,
            )
            scores_n = None
            if self._network.features.trees is not None:
                scores_n = self._tensor(_SCORES)[:, 0].float()
            by_labels = None
            if self._has_labels:
                by_labels = LabelScores(
                    self._tensor(_LABEL_SCORES)[:, 0].float(),
                    torch.ones(len(logits_n), dtype=torch.bool),
                    is_labelled_around(self._tensor(DESCRIBED_LABELS)),
                )
            self._write("logits", self._network.mix(logits_n, scores_n, by_labels))

    def _finish_attention(self, folder: str, chain: int, block: int, is_last: bool) -> Attention:
        """Return the attention of the part, once the `read` stage is done for all parts."""
        lse_nH = self._tensor(f"{folder}/lse")
        pk_nHY = self._tensor(f"{folder}/pk")
        if is_last:  # no force, so that the pull of those that see a node is not needed
            return Attention(lse_nH, pk_nHY, torch.zeros_like(pk_nHY))
        direction = "seen" if self._network.config.undirected else "seers"
        seers = self._partition(direction, self._relation(chain))
        q_LHY = self._store.gather(f"{folder}/q", seers.others)
        lse_LH = self._store.gather(f"{folder}/lse", seers.others)
        k_nHY = self._store.read(f"{folder}/k", self._part)
        beta_LH, bias_eH = self._beta(chain, block, len(q_LHY)), self._bias("seers", chain, block)
        ptq_nHY = seers.write(k_nHY, q_LHY, beta_LH, lse_LH, bias_eH)
        return Attention(lse_nH, pk_nHY, ptq_nHY)

    def _beta(self, chain: int, block: int, num_nodes: int) -> np.ndarray:
        beta_H = self._block(chain, block).resolve_params([self._params]).beta_RH
        return beta_H.expand(num_nodes, -1).contiguous().numpy()

    def _bias(
        self, direction: Literal["seen", "seers"], chain: int, block: int
    ) -> np.ndarray | None:
        """Of each edge of the part in this direction, (e, H); None without features of edges."""
        if self._network.edge_features is None:
            return None
        return self._store.read(bias_name(direction, self._place(chain, block)), self._part)

    def _place(self, chain: int, block: int) -> int:
        return chain * self._network.config.blocks + block

    def _block(self, chain: int, block: int) -> Block:
        return self._network.blocks_in_order()[self._place(chain, block)]

    def _relation(self, chain: int) -> int:
        return chain % len(self._relations)

    def _partition(self, direction: Literal["seen", "seers"], r: int) -> GraphPartition:
        return read_partition(self._store, direction, r, self._part)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self._store.read(name, self._part))

    def _write(self, name: str, array: Tensor | np.ndarray) -> None:
        self._store.write(name, self._part, array)


def _num_steps(network: NodeScorer, params: DynamicsParams) -> int:
    return network.config.steps if params.steps is None else params.steps


def _description_name(r: int, hop: int) -> str:
    """Array of node features and log degree, or of their mean over nodes `hop` steps away."""
    return f"told/{r}.{hop}" if hop else f"cut/told.{r}"


def _square_name(r: int, hop: int) -> str:
    """Array of the mean of squared descriptions over nodes `hop` steps away."""
    return f"told/{r}.square" if hop == 1 else f"told/{r}.{hop}.square"


def _embedded_name(member: int) -> str:
    """Array of the first states of a network."""
    return f"embedded/{member}"


def _step_folder(chain: int, block: int, step: int) -> str:
    return f"step-{block}-{step}/{chain}"


def _find_attention(block: Block) -> AttentionEnergy | None:
    leaves = (leaf for _, leaf in cast(Energy, block.energy).leaves())
    return next((leaf for leaf in leaves if isinstance(leaf, AttentionEnergy)), None)


def _squared_norm(x_nD: Tensor) -> float:
    return float(x_nD.double().pow(2).sum())
