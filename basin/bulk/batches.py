"""What is computed of one part before the next thing can be computed of any.

Neighbours meet three times: their features are averaged hop by hop; in each step a node reads those
it sees, which tells the weights of its edges, and then those that see it pull at it by these
weights. In between every node is by itself. A pass ends where neighbours meet.
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
from basin.bulk.plan import Plan, window
from models.base import Block, DynamicsParams
from models.dynamics.motion import Motion
from models.energies import AttentionEnergy, Energy
from models.inputs.features import columns
from models.layouts import Attention, GraphPartition, PrecomputedAttention
from models.tasks.node_scorer import NodeScorer


@final
@dataclass(frozen=True)
class Pass:
    """`at` is the hop, or the block and the step in it."""

    kind: Literal["hop", "embed", "read", "go"]
    at: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.kind, *map(str, self.at)])

    @property
    def course(self) -> str:
        """The array of what a step came to: of each relation energy, |dx/dt|^2 and |x|^2."""
        return f"course/{self.name}"

    def outdated(self) -> list[str]:
        """Names of the arrays that nobody needs once it is done."""
        if self.kind == "embed":
            return ["cut/x", "told"]
        return ["step-" + "-".join(map(str, self.at))] if self.kind == "go" else []


def passes(network: NodeScorer, knobs: DynamicsParams) -> Iterator[Pass]:
    """All of them, in order."""
    for hop in range(1, network.config.hops + 1):
        yield Pass("hop", (hop,))
    yield Pass("embed")
    for block in range(network.config.blocks):
        for step in range(_steps(network, knobs) + 1):
            if network.config.attention:
                yield Pass("read", (block, step))
            yield Pass("go", (block, step))


@final
class Part:
    """One part of the work in a folder."""

    def __init__(self, folder: Path, plan: Plan, network: NodeScorer, part: int) -> None:
        self._work, self._part = PartStore(folder, plan.bounds), part
        self._network, self._knobs = network, plan.knobs
        self._relations = range(len(network.config.relations))

    def do(self, one: Pass) -> None:
        """Its pass; again if it was done before."""
        kinds = {"hop": self._hop, "embed": self._embed, "read": self._read, "go": self._go}
        with torch.no_grad():
            kinds[one.kind](*one.at)
        self._work.mark(one.name, self._part)

    def _hop(self, hop: int) -> None:
        for r in self._relations:
            seen = self._window("seen", r)
            told_LF = self._work.gather(_told(r, hop - 1), seen.others)
            self._put(_told(r, hop), seen.mean(told_LF))
            if hop == 1:
                self._put(f"told/{r}.square", seen.mean(np.square(told_LF)))

    def _embed(self) -> None:
        network, hops = self._network, self._network.config.hops
        table_nC = columns(
            self._get("cut/x"),
            [
                (
                    [self._get(_told(r, hop)) for hop in range(hops + 1)],
                    self._get(f"told/{r}.square") if hops else None,
                )
                for r in self._relations
            ],
        )
        x_nD = network.embedded(table_nC)
        self._put("embedded", x_nD)
        for r in self._relations:
            self._arrive(r, 0, 0, x_nD)

    def _arrive(self, r: int, block: int, step: int, x_nD: Tensor) -> None:
        """Show the neighbours where the nodes are."""
        at, moving = _at(r, block, step), self._block(r, block)
        self._put(f"{at}/x", x_nD)
        if (attention := _attention(moving)) is not None:
            q_nHY, k_nHY = attention.ends(moving.norm(x_nD))
            self._put(f"{at}/q", q_nHY)
            self._put(f"{at}/k", k_nHY)

    def _read(self, block: int, step: int) -> None:
        for r in self._relations:
            at, seen = _at(r, block, step), self._window("seen", r)
            q_nHY = self._work.get(f"{at}/q", self._part)
            k_LHY = self._work.gather(f"{at}/k", seen.others)
            lse_nH, pk_nHY = seen.read(q_nHY, k_LHY, self._beta(r, block, len(q_nHY)))
            self._put(f"{at}/lse", lse_nH)
            self._put(f"{at}/pk", pk_nHY)

    def _go(self, block: int, step: int) -> None:
        last, course, ends = step == _steps(self._network, self._knobs), [], []
        for r in self._relations:
            at, moving = _at(r, block, step), self._block(r, block)
            x_nD, resolved = self._get(f"{at}/x"), moving.resolve([self._knobs])
            g_nD = moving.norm(x_nD)
            known = self._attended(at, r, block, last) if _attention(moving) else None
            layout = PrecomputedAttention(len(x_nD), known)
            energy, motion = cast(Energy, moving.energy), cast(Motion, moving.motion)
            terms = energy(g_nD, layout, resolved.beta_RH, with_force=not last)
            speed = 0.0
            if not last:
                drift_nD = motion.drift(x_nD, terms.force_ND)
                moved_nD = x_nD + resolved.step_size_R[0] * drift_nD
                speed = _square(drift_nD)
                self._arrive(r, block, step + 1, moved_nD)
            elif block + 1 < self._network.config.blocks:
                self._arrive(r, block + 1, 0, x_nD)
            else:
                ends.append(g_nD)
            total = sum(float(part_n.double().sum()) for part_n in terms.parts.values())
            course.append((total, speed, _square(x_nD)))
        self._put(Pass("go", (block, step)).course, np.array(course, np.float64))
        if ends:
            first_nD = self._block(0, 0).norm(self._get("embedded"))
            self._put("logits", self._network.head(first_nD, ends))

    def _attended(self, at: str, r: int, block: int, last: bool) -> Attention:
        """Of the part, once all have read; at the last step nothing pulls any more."""
        lse_nH, pk_nHY = self._get(f"{at}/lse"), self._get(f"{at}/pk")
        if last:
            return Attention(lse_nH, pk_nHY, torch.zeros_like(pk_nHY))
        seers = self._window("seen" if self._network.config.undirected else "seers", r)
        q_LHY, lse_LH = (self._work.gather(f"{at}/{name}", seers.others) for name in ("q", "lse"))
        k_nHY = self._work.get(f"{at}/k", self._part)
        ptq_nHY = seers.write(k_nHY, q_LHY, self._beta(r, block, len(q_LHY)), lse_LH)
        return Attention(lse_nH, pk_nHY, ptq_nHY)

    def _beta(self, r: int, block: int, nodes: int) -> np.ndarray:
        beta_H = self._block(r, block).resolve([self._knobs]).beta_RH
        return beta_H.expand(nodes, -1).contiguous().numpy()

    def _block(self, r: int, block: int) -> Block:
        return self._network.blocks_in_order()[r * self._network.config.blocks + block]

    def _window(self, side: str, r: int) -> GraphPartition:
        return window(self._work, side, r, self._part)

    def _get(self, name: str) -> Tensor:
        return torch.from_numpy(self._work.get(name, self._part))

    def _put(self, name: str, tensor: Tensor | np.ndarray) -> None:
        self._work.put(name, self._part, tensor)


def _steps(network: NodeScorer, knobs: DynamicsParams) -> int:
    return network.config.steps if knobs.steps is None else knobs.steps


def _told(r: int, hop: int) -> str:
    return f"told/{r}.{hop}" if hop else f"cut/told.{r}"


def _at(r: int, block: int, step: int) -> str:
    return f"step-{block}-{step}/{r}"


def _attention(block: Block) -> AttentionEnergy | None:
    leaves = (leaf for _, leaf in cast(Energy, block.energy).leaves())
    return next((leaf for leaf in leaves if isinstance(leaf, AttentionEnergy)), None)


def _square(x_nD: Tensor) -> float:
    return float(x_nD.double().pow(2).sum())
