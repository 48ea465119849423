"""Why a row stopped where it did: what its tokens see, which memories fired, and the energy of
each by term. All of it is read off the state at rest, after the fact."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from models.base import Architecture, Block, DynamicsParams, Output
from models.dynamics import Solution
from models.energies import (
    AssociativeMemory,
    AttentionEnergy,
    ClampedMemory,
    GridHopfield,
    Hopfield,
)
from models.layouts import PatternLayout
from models.layouts.pairwise import Pairwise
from models.nn.attention_recorder import AttentionRecord
from models.nn.transformer import MultiHeadAttention
from models.nn.workspace import Workspace

TOP_K = 5
"""Pairs told of a head, tokens that one sees, memories that fired."""
_PAIRS = frozenset({"attention", "resonance"})
_STORED = AssociativeMemory, ClampedMemory  # their patterns belong to the layout
_CHUNK = 8192  # tokens whose activations, and pairs whose resonance, are held at a time


class AttentionWeights(NamedTuple):
    """One attention in a row: p (P, H) of its pairs, and the token that sees and the one seen."""

    kind: str
    weight_PH: np.ndarray
    query_P: np.ndarray
    key_P: np.ndarray
    resonance_PH: np.ndarray | None


class MemoryActivations(NamedTuple):
    """The Hopfield network of one block: activations and shares of each token's Hopfield energy, of
    the K tokens asked for, and the mean share over all tokens of the row."""

    activation_KM: np.ndarray
    share_KM: np.ndarray
    mean_share_M: np.ndarray


@dataclass(frozen=True)
class RowReasons:
    """One row, of `length` tokens, of which those at `token_K` were asked for.

    `energies` has, block by block, the weighed energy of each of them by term: (K, H) of attention,
    by head, else (K,).
    """

    num_tokens: int
    token_K: np.ndarray
    attention: list[AttentionWeights]
    memories: list[MemoryActivations]
    energies: list[dict[str, np.ndarray]]

    def add(self, other: RowReasons) -> RowReasons:
        """The sum of two rows whose tokens see alike, such as the windows of an image."""
        return RowReasons(
            self.num_tokens,
            self.token_K,
            [
                a._replace(weight_PH=a.weight_PH + b.weight_PH, resonance_PH=None)
                for a, b in zip(self.attention, other.attention, strict=True)
            ],
            [
                MemoryActivations(*(a + b for a, b in zip(one, two, strict=True)))
                for one, two in zip(self.memories, other.memories, strict=True)
            ],
            [
                {name: part + two[name] for name, part in one.items()}
                for one, two in zip(self.energies, other.energies, strict=True)
            ],
        )

    def divide(self, rows: int) -> RowReasons:
        """Divide a sum over `rows` rows to get the mean."""
        return RowReasons(
            self.num_tokens,
            self.token_K,
            [seen._replace(weight_PH=seen.weight_PH / rows) for seen in self.attention],
            [MemoryActivations(*(part / rows for part in fired)) for fired in self.memories],
            [{name: part / rows for name, part in one.items()} for one in self.energies],
        )


@dataclass(frozen=True)
class _Rest:
    """A block, and where its rows are at rest."""

    block: Block
    solution: Solution
    g_ND: Tensor
    beta_RH: Tensor


class BatchReasons:
    """A batch at rest. Nothing is computed before it is asked for.

    Args:
        output: of `network.infer` with `knobs`.
        heard: what `models.nn.attention_recorder.listening` recorded meanwhile, for networks whose
            attention is not an energy.
    """

    @torch.no_grad()
    def __init__(
        self,
        network: Architecture,
        output: Output,
        params: Sequence[DynamicsParams],
        heard: Sequence[AttentionRecord] = (),
    ) -> None:
        self._blocks = [
            _Rest(block, solution, solution.g_ND, block.resolve_params(params).beta_RH)
            for block, solution in zip(network.blocks_in_order(), output.solutions, strict=True)
        ]
        self._heard = heard

    @cached_property
    def attention_records(self) -> list[AttentionRecord]:
        """Every attention, in the order in which the network comes to them."""
        records = list(self._heard)
        for rest in self._blocks:
            layout = rest.solution.layout
            if isinstance(layout, Pairwise):
                leaves = (leaf for _, leaf in rest.block.energy.leaves())
                records += [
                    _build_record(leaf, layout, rest)
                    for leaf in leaves
                    if isinstance(leaf, AttentionEnergy)
                ]
        return records

    def compute_selectivity(self, row: int, pairs: bool = True) -> list[dict[str, Any]]:
        """How selective each head that resonates is in a row: `crossing` = Pr[c > rho], the share
        of its pairs above vigilance, `mean` r, and its `TOP` pairs of the highest r (DAR section
        9), if they are wanted."""
        return [
            {"attention": place, "kind": attended.kind, **head}
            for place, attended in enumerate(self.attention_records)
            for head in compute_selectivity(attended, row, pairs)
        ]

    @torch.no_grad()
    def explain_row(
        self, row: int, include: Collection[str], token_K: np.ndarray | None = None
    ) -> RowReasons:
        """What `include` names of `attention`, `resonance`, `memories` and `components`.

        Args:
            token_K: the tokens to tell of; all if None, and then the resonance of pairs as well.
        """
        first, last = self._bounds(row)
        asked_K = np.arange(last - first) if token_K is None else token_K
        at_K = torch.from_numpy(asked_K) + first
        seen = "attention" in include or (token_K is None and "resonance" in include)
        return RowReasons(
            last - first,
            asked_K,
            [_read_weights(attended, row, token_K) for attended in self.attention_records]
            if seen
            else [],
            self._fired(at_K, first, last) if "memories" in include else [],
            [
                {name: _to_numpy(part[at_K]) for name, part in energies.items()}
                for energies in (self._energies if "components" in include else [])
            ],
        )

    def count_tokens(self, row: int) -> int:
        """Tokens of a row."""
        first, last = self._bounds(row)
        return last - first

    def estimate_bytes(self, include: Collection[str]) -> int:
        """Bytes of all there is to tell of `include`, in single precision."""
        tokens, size = len(self._blocks[0].g_ND), 0
        for attended in self.attention_records if _PAIRS & set(include) else ():
            bytes_per_pair = 8 + 4 * attended.heads * len(_PAIRS & set(include))
            size += attended.num_pairs * bytes_per_pair
        for rest in self._blocks:
            for _, leaf in rest.block.energy.leaves():
                if "memories" in include and isinstance(leaf, Hopfield):
                    size += 8 * tokens * len(leaf.memories_MD)
                elif "memories" in include and isinstance(leaf, GridHopfield):
                    size += 8 * tokens * len(leaf.memories_MF)
                elif "memories" in include and isinstance(leaf, _STORED):
                    layout = cast(PatternLayout, rest.solution.layout)
                    size += 8 * tokens * layout.patterns_PMD.shape[1]
                if "components" in include:
                    size += 4 * tokens * (leaf.heads if isinstance(leaf, AttentionEnergy) else 2)
        return size

    def _bounds(self, row: int) -> tuple[int, int]:
        row_of_N = self._blocks[0].solution.layout.row_of_N
        bounds = torch.searchsorted(row_of_N, row_of_N.new_tensor([row, row + 1])).tolist()
        return bounds[0], bounds[1]

    def _fired(self, at_K: Tensor, first: int, last: int) -> list[MemoryActivations]:
        activations = []
        for rest in self._blocks:
            layout, beta_RH = rest.solution.layout, rest.beta_RH
            for _, leaf in rest.block.energy.leaves():
                if isinstance(leaf, _STORED):  # its attractors belong to rows
                    weight_NM = leaf.memory_activations(rest.g_ND, layout, beta_RH)[0]
                    weight_KM = _to_numpy(weight_NM[at_K])
                    mean_M = _to_numpy(weight_NM[first:last].double().mean(0))
                    activations.append(MemoryActivations(weight_KM, weight_KM, mean_M))
                elif isinstance(leaf, GridHopfield):  # a memory is of several tokens
                    r_NM, share_NM = leaf.memory_activations(rest.g_ND, layout)
                    mean_M = share_NM[first:last].double().mean(0)
                    of_tokens = r_NM[at_K], share_NM[at_K], mean_M
                    activations.append(MemoryActivations(*map(_to_numpy, of_tokens)))
                elif isinstance(leaf, Hopfield):
                    r_KM, share_KM = leaf.memory_activations(rest.g_ND[at_K], layout, beta_RH)
                    total_M = sum(
                        leaf.memory_activations(part, layout, beta_RH)[1].double().sum(0)
                        for part in rest.g_ND[first:last].split(_CHUNK)
                    )
                    assert isinstance(total_M, Tensor)
                    mean_M = _to_numpy(total_M) / (last - first)
                    activations.append(
                        MemoryActivations(_to_numpy(r_KM), _to_numpy(share_KM), mean_M)
                    )
        return activations

    @cached_property
    def _energies(self) -> list[dict[str, Tensor]]:
        energies = []
        for rest in self._blocks:
            at = rest.g_ND, rest.solution.layout, rest.beta_RH
            parts: dict[str, Tensor] = {}
            for weight, leaf in rest.block.energy.leaves():
                if isinstance(leaf, AttentionEnergy):
                    parts[leaf.name] = weight * leaf.head_energy(*at)
                else:
                    of_leaf = leaf(*at, with_force=False).parts
                    parts |= {name: weight * part for name, part in of_leaf.items()}
            energies.append(parts)
        return energies


def get_supported_reasons(network: Architecture) -> frozenset[str]:
    """What there is to tell of `attention` and `memories` with such a network."""
    kinds = {
        "attention": (AttentionEnergy, MultiHeadAttention, Workspace),
        "memories": (Hopfield, GridHopfield, *_STORED),
    }
    parts = list(network.modules())
    return frozenset(
        name for name, types in kinds.items() if any(isinstance(part, types) for part in parts)
    )


def _build_record(energy: AttentionEnergy, layout: Pairwise, rest: _Rest) -> AttentionRecord:
    ends = energy.attention_inputs(rest.g_ND)
    beta_NH = layout.of_tokens(rest.beta_RH)
    weights = cache(lambda: layout.weights(*ends, beta_NH))
    cosines = cache(lambda: layout.cosines(*ends))
    return AttentionRecord(
        "attention",
        energy.heads,
        layout.num_pairs,
        lambda row: layout.pairs(weights(), row),
        layout.prior,
        lambda row: layout.pairs(cosines(), row),
    )


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


def _read_weights(
    attended: AttentionRecord, row: int, token_K: np.ndarray | None
) -> AttentionWeights:
    weight_PH, i_P, j_P = (part.cpu().numpy() for part in attended.weights(row))
    r_PH = None
    if token_K is not None:
        is_kept_P = np.isin(i_P, token_K)
        weight_PH, i_P, j_P = weight_PH[is_kept_P], i_P[is_kept_P], j_P[is_kept_P]
    elif attended.prior is not None:
        c_PH = attended.cosines(row)[0]
        r_PH = attended.prior.slice_rows(row, row + 1).compute_resonance(c_PH, lambda value: value)[
            0
        ]
        r_PH = r_PH.cpu().numpy()
    return AttentionWeights(attended.kind, weight_PH.astype(np.float64), i_P, j_P, r_PH)


def compute_selectivity(
    attended: AttentionRecord, row: int, pairs: bool = True
) -> list[dict[str, Any]]:
    """Return `BatchReasons.compute_selectivity` of one attention, with its `pairs` if wanted."""
    if attended.prior is None:
        return []
    c_PH, i_P, j_P = attended.cosines(row)
    row_prior, count = attended.prior.slice_rows(row, row + 1), len(c_PH)
    above_H, total_H = c_PH.new_zeros(2, attended.heads, dtype=torch.float64)
    for some_PH in c_PH.split(_CHUNK):
        above_H += (row_prior.compute_margin(some_PH) > 0).sum(0)
        total_H += row_prior.compute_resonance(some_PH, lambda value: value)[0].double().sum(0)
    told: list[dict[str, Any]] = [
        {
            "head": head,
            "crossing": float(above_H[head]) / count if count else None,
            "mean": float(total_H[head]) / count if count else None,
        }
        for head in range(attended.heads)
    ]
    if pairs:
        best_KH = c_PH.topk(min(TOP_K, count), 0).indices
        r_KH = row_prior.compute_resonance(c_PH.gather(0, best_KH), lambda value: value)[0]
        for head, of_head in enumerate(told):
            of_head["pairs"] = [
                {
                    "token": int(i_P[at]),
                    "seen": int(j_P[at]),
                    "cosine": float(c_PH[at, head]),
                    "resonance": float(r),
                }
                for at, r in zip(best_KH[:, head].tolist(), r_KH[:, head], strict=True)
            ]
    return told
