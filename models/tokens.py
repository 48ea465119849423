"""Whole graphs as tokens: a CLS token in front of each graph's nodes, and who sees whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from models.colours import colours
from models.graph import Graph
from models.layouts import EdgeList
from models.positions import laplacian, walk


class Kind(IntEnum):
    """What lets one token see another."""

    EDGE = 0
    CLS_SEES = 1
    SEES_CLS = 2
    PAIR = 3  # two nodes without an edge, where all attend to all


@dataclass(frozen=True)
class Tokens:
    """One graph, prepared: everything that does not depend on weights, computed once.

    Token 0 is CLS. The CSR `indptr`, `indices` holds the tokens that each token sees; `kind` says
    why, and `edge_attr` has one row for each entry of kind EDGE, in order.
    """

    x: np.ndarray
    colours: np.ndarray
    positions: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    kind: np.ndarray
    edge_attr: np.ndarray


@final
@dataclass(frozen=True)
class Tokeniser:
    """How graphs become tokens (Energy Transformer appendix D.1).

    `attend`: nodes see their neighbours ("edges") or every node of their graph ("all"); CLS and
    the nodes see each other in both; no token sees itself (B != C in eq. 25).
    `positions`: see `models.positions`; "walk" does not depend on the numbering, "laplacian"
    (eq. 23, of the graph with CLS in it) does. log(1 + degree) always comes with them, CLS having
    the degree N.
    `rounds`, `buckets`, `categories`, `edge_categories`: see `models.colours`.
    """

    attend: Literal["edges", "all"] = "edges"
    positions: Literal["walk", "laplacian", "none"] = "walk"
    length: int = 16
    rounds: int = 0
    buckets: int = 1
    categories: tuple[int, ...] = ()
    edge_categories: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Columns of `Tokens.positions`."""
        return 1 + (self.length if self.positions != "none" else 0)

    def pairs(self, nodes: int, edges: int) -> int:
        """Most pairs of tokens that see each other: what memory grows with."""
        return 2 * nodes + (nodes * nodes if self.attend == "all" else 2 * edges)

    def work(self, nodes: int, edges: int) -> int:
        """About how many operations the positions of a graph take."""
        colours = (nodes + 2 * edges) * self.rounds
        if self.positions == "walk":
            return colours + nodes * (nodes + 2 * edges) * self.length // 2
        return colours + (10 * nodes**3 if self.positions == "laplacian" else 0)

    def __call__(self, graph: Graph) -> Tokens:
        """Both directions of every edge, each once; self-loops dropped."""
        nodes = graph.num_nodes
        source, receiver, attr = _edges(graph)
        degree = np.bincount(receiver, minlength=nodes)
        indptr = np.r_[0, np.cumsum(degree)]
        rank = np.arange(1, nodes + 1)
        cls = np.zeros(nodes, np.int64)
        sources, receivers = [source + 1, rank, cls], [receiver + 1, cls, rank]
        kinds = [Kind.EDGE, Kind.CLS_SEES, Kind.SEES_CLS]
        if self.attend == "all":
            other = ~np.eye(nodes, dtype=bool)
            other[receiver, source] = False
            apart = np.stack(other.nonzero()) + 1
            sources.append(apart[1])
            receivers.append(apart[0])
            kinds.append(Kind.PAIR)
        kind = np.repeat(kinds, [len(part) for part in sources]).astype(np.int64)
        source, receiver = np.concatenate(sources), np.concatenate(receivers)
        # Stable and by receiver, then source: edges keep their order, and with it `attr` its own.
        order = np.lexsort((source, receiver))
        all_indptr = np.r_[0, np.cumsum(np.bincount(receiver, minlength=nodes + 1))]
        x, neighbours = np.asarray(graph.x, np.float32), source[: indptr[-1]] - 1
        return Tokens(
            x,
            colours(
                indptr,
                neighbours,
                x,
                np.array(self.categories, np.int64),
                attr,
                np.array(self.edge_categories, np.int64),
                self.rounds,
                self.buckets,
            ),
            self._positions(indptr, neighbours, np.r_[nodes, degree]),
            all_indptr,
            source[order].astype(np.int32),
            kind[order],
            attr,
        )

    def _positions(self, indptr: np.ndarray, indices: np.ndarray, degree: np.ndarray) -> np.ndarray:
        columns = [np.log1p(degree)[:, None]]
        nodes = len(indptr) - 1
        if self.positions == "walk":
            columns.append(np.pad(walk(indptr, indices, self.length), ((1, 0), (0, 0))))
        elif self.positions == "laplacian":
            # CLS in front: it sees all nodes, and every node sees it before its own neighbours.
            with_cls = np.r_[0, nodes, nodes + indptr[1:] + np.arange(1, nodes + 1)]
            seen = np.r_[np.arange(1, nodes + 1), np.insert(indices + 1, indptr[:-1], 0)]
            columns.append(laplacian(with_cls, seen, self.length))
        return np.concatenate(columns, 1)


def _edges(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sources, receivers, attributes) symmetrised, by receiver then source, each pair once."""
    source, receiver = np.asarray(graph.edge_index, np.int64)
    attr = graph.edge_attr
    if attr is None:
        attr = np.zeros((len(source), 0), np.float32)
    keep = source != receiver
    source, receiver, attr = source[keep], receiver[keep], np.asarray(attr[keep], np.float32)
    key = np.r_[receiver, source] * graph.num_nodes + np.r_[source, receiver]
    key, first = np.unique(key, return_index=True)
    nodes = max(graph.num_nodes, 1)
    return key % nodes, key // nodes, np.concatenate([attr, attr])[first]


@final
class TokenBatch:
    """Graphs packed as one disjoint union. n counts nodes without CLS, e edges without CLS's.

    `node_n` and `edge_e` say where among the tokens N and the entries E those are; CLS of row r is
    token `cls_R[r]`. Positions are float64, so that rounding them hides no difference.

    No dataclass: Lightning's mixed precision would copy one, edges and all, at every step.
    """

    def __init__(
        self,
        x_nF: Tensor,
        colours_nC: Tensor,
        edge_attr_eP: Tensor,
        positions_NK: Tensor,
        layout: EdgeList,
        kind_E: Tensor,
        node_n: Tensor,
        edge_e: Tensor,
        cls_R: Tensor,
    ) -> None:
        self.x_nF, self.colours_nC = x_nF, colours_nC
        self.edge_attr_eP, self.positions_NK = edge_attr_eP, positions_NK
        self.layout, self.kind_E = layout, kind_E
        self.node_n, self.edge_e, self.cls_R = node_n, edge_e, cls_R

    @property
    def rows(self) -> int:
        return self.layout.rows

    @property
    def row_of_N(self) -> Tensor:
        return self.layout.row_of_N

    @property
    def row_of_outputs(self) -> Tensor:
        """Row of each logit: one for every graph."""
        return torch.arange(self.rows, device=self.cls_R.device)

    @property
    def row_of_n(self) -> Tensor:
        """Graph of each node."""
        return self.row_of_N[self.node_n]

    @property
    def edges_2e(self) -> Tensor:
        """Sources above receivers, counted among the nodes."""
        layout = self.layout
        ends = torch.stack([layout.indices_E.long()[self.edge_e], layout.receivers_E[self.edge_e]])
        return ends - 1 - self.row_of_N[ends]

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(
            self.x_nF.to(device),
            self.colours_nC.to(device),
            self.edge_attr_eP.to(device),
            self.positions_NK.to(device),
            self.layout.to(device),
            self.kind_E.to(device),
            self.node_n.to(device),
            self.edge_e.to(device),
            self.cls_R.to(device),
        )


def collate(tokens: Sequence[Tokens]) -> TokenBatch:
    """Pack prepared graphs into one batch; they keep their order."""
    sizes = np.array([len(t.indptr) - 1 for t in tokens])
    first = np.cumsum(sizes) - sizes
    entries = np.array([len(t.indices) for t in tokens])
    before = np.cumsum(entries) - entries
    indptr = np.r_[0, *(t.indptr[1:] + at for t, at in zip(tokens, before, strict=True))]
    indices = np.concatenate([t.indices for t in tokens]) + np.repeat(first, entries)
    kind = np.concatenate([t.kind for t in tokens])
    is_node = np.ones(int(sizes.sum()), bool)
    is_node[first] = False

    def joined(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    return TokenBatch(
        joined([t.x for t in tokens]),
        joined([t.colours for t in tokens]),
        joined([t.edge_attr for t in tokens]),
        joined([t.positions for t in tokens]),
        EdgeList(
            torch.from_numpy(indptr.astype(np.int64)),
            torch.from_numpy(indices.astype(np.int32)),
            torch.from_numpy(np.repeat(np.arange(len(tokens)), sizes)),
            len(tokens),
        ),
        torch.from_numpy(kind),
        torch.from_numpy(np.flatnonzero(is_node)),
        torch.from_numpy(np.flatnonzero(kind == Kind.EDGE)),
        torch.from_numpy(first),
    )
