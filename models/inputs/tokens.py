"""Whole graphs as tokens: a CLS token in front of each graph's nodes, and who sees whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from models.inputs.graph import Graph
from models.inputs.positions import compute_laplacian_pe, compute_random_walk_pe
from models.inputs.wl_colors import compute_wl_colors
from models.layouts import EdgeList


class AttentionKind(IntEnum):
    """What lets one token see another."""

    EDGE = 0
    CLS_TO_NODE = 1
    NODE_TO_CLS = 2
    NON_EDGE = 3  # two nodes without an edge, where all attend to all


@dataclass(frozen=True)
class GraphTokens:
    """One graph, prepared: everything that does not depend on weights, computed once.

    Token 0 is CLS. The CSR `indptr`, `indices` holds the tokens that each token sees; `kind` says
    why, and `edge_attr` has one row for each entry of kind EDGE, in order.
    """

    x: np.ndarray
    colors: np.ndarray
    positions: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    kind: np.ndarray
    edge_attr: np.ndarray


@final
@dataclass(frozen=True)
class GraphTokenizer:
    """How graphs become tokens (Energy Transformer appendix D.1).

    `attend`: nodes see their neighbours ("edges") or every node of their graph ("all"); CLS and
    the nodes see each other in both; no token sees itself (B != C in eq. 25).
    `positions`: see `models.inputs.positions`; "walk" does not depend on the numbering, "laplacian"
    (eq. 23, of the graph with CLS in it) does. log(1 + degree) always comes with them, CLS having
    the degree N.
    `rounds`, `categories`, `edge_categories`: see `models.inputs.wl_colors`.
    """

    attend: Literal["edges", "all"] = "edges"
    positions: Literal["walk", "laplacian", "none"] = "walk"
    position_length: int = 16
    color_rounds: int = 0
    categorical_columns: tuple[int, ...] = ()
    categorical_edge_columns: tuple[int, ...] = ()

    @property
    def position_width(self) -> int:
        """Columns of `Tokens.positions`."""
        return 1 + (self.position_length if self.positions != "none" else 0)

    def max_pairs(self, nodes: int, edges: int) -> int:
        """Most pairs of tokens that see each other: what memory grows with."""
        return 2 * nodes + (nodes * nodes if self.attend == "all" else 2 * edges)

    def estimate_operations(self, nodes: int, edges: int) -> int:
        """About how many operations the positions of a graph take."""
        colours = (nodes + 2 * edges) * self.color_rounds
        if self.positions == "walk":
            return colours + nodes * (nodes + 2 * edges) * self.position_length // 2
        return colours + (10 * nodes**3 if self.positions == "laplacian" else 0)

    def __call__(self, graph: Graph) -> GraphTokens:
        """Both directions of every edge, each once; self-loops dropped."""
        nodes = graph.num_nodes
        source, receiver, attr = _edges(graph)
        degree = np.bincount(receiver, minlength=nodes)
        neighbours = _indptr(degree), source
        seen = self._all(nodes, *neighbours) if self.attend == "all" else _near(*neighbours)
        x = np.asarray(graph.x, np.float32)
        return GraphTokens(
            x,
            self._colours(*neighbours, x, attr),
            self._positions(*neighbours, degree),
            *seen,
            attr,
        )

    def compute_colors(self, graph: Graph) -> np.ndarray:
        """Of each node, as `__call__` finds them."""
        source, receiver, attr = _edges(graph)
        indptr = _indptr(np.bincount(receiver, minlength=graph.num_nodes))
        return self._colours(indptr, source, np.asarray(graph.x, np.float32), attr)

    def _colours(
        self, indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, attr: np.ndarray
    ) -> np.ndarray:
        columns = (
            np.array(self.categorical_columns, np.int64),
            np.array(self.categorical_edge_columns, np.int64),
        )
        return compute_wl_colors(
            indptr, indices, x, columns[0], attr, columns[1], self.color_rounds
        )

    @staticmethod
    def _all(nodes: int, indptr: np.ndarray, indices: np.ndarray) -> _Seen:
        """Every node sees CLS and all others, the edges among them."""
        of = np.arange(nodes)[:, None]
        others = np.arange(nodes - 1) + (np.arange(nodes - 1) >= of)
        kind = np.full((nodes, nodes), AttentionKind.NON_EDGE, np.int64)
        kind[:, 0] = AttentionKind.NODE_TO_CLS
        receiver = np.repeat(np.arange(nodes), np.diff(indptr))
        kind[receiver, indices + (indices < receiver)] = AttentionKind.EDGE
        indices = np.concatenate([np.zeros((nodes, 1), np.int64), others + 1], 1)
        return _with_cls(np.full(nodes, nodes), indices.ravel(), kind.ravel())

    def _positions(self, indptr: np.ndarray, indices: np.ndarray, degree: np.ndarray) -> np.ndarray:
        nodes = len(degree)
        out = np.zeros((nodes + 1, self.position_width))
        out[0, 0], out[1:, 0] = np.log1p(nodes), np.log1p(degree)
        if self.positions == "walk":
            out[1:, 1:] = compute_random_walk_pe(indptr, indices, self.position_length)
        elif self.positions == "laplacian":
            out[:, 1:] = compute_laplacian_pe(*_near(indptr, indices)[:2], self.position_length)
        return out


_Seen = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The CSR of the tokens that each token sees, CLS in front, and the kind of each entry."""


def _near(indptr: np.ndarray, indices: np.ndarray) -> _Seen:
    """Every node sees CLS and its neighbours."""
    degree = np.diff(indptr)
    nodes = len(degree)
    kind = np.full(nodes + len(indices), AttentionKind.NODE_TO_CLS, np.int64)
    seen = np.zeros(len(kind), np.int64)
    place = np.arange(len(indices)) + np.repeat(np.arange(1, nodes + 1), degree)
    kind[place], seen[place] = AttentionKind.EDGE, indices + 1
    return _with_cls(degree + 1, seen, kind)


def _with_cls(degree: np.ndarray, indices: np.ndarray, kind: np.ndarray) -> _Seen:
    """CLS sees every node; what each of them sees is given."""
    nodes = len(degree)
    return (
        _indptr(np.concatenate([[nodes], degree])),
        np.concatenate([np.arange(1, nodes + 1), indices]).astype(np.int32),
        np.concatenate([np.full(nodes, AttentionKind.CLS_TO_NODE, np.int64), kind]),
    )


def _indptr(degree: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(degree)])


def _edges(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sources, receivers, attributes) symmetrised, by receiver then source, each pair once."""
    source, receiver = np.asarray(graph.edge_index, np.int64)
    attr = graph.edge_attr
    if attr is None:
        attr = np.zeros((len(source), 0), np.float32)
    keep = source != receiver
    source, receiver, attr = source[keep], receiver[keep], np.asarray(attr[keep], np.float32)
    nodes = max(graph.num_nodes, 1)
    forth, back = receiver * nodes + source, source * nodes + receiver
    key, first = np.unique(np.concatenate([forth, back]), return_index=True)
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
        colors_nC: Tensor,
        edge_attr_eP: Tensor,
        positions_NK: Tensor,
        layout: EdgeList,
        kind_E: Tensor,
        node_n: Tensor,
        edge_e: Tensor,
        cls_R: Tensor,
    ) -> None:
        self.x_nF, self.colours_nC = x_nF, colors_nC
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


def collate_tokens(tokens: Sequence[GraphTokens]) -> TokenBatch:
    """Pack prepared graphs into one batch; they keep their order."""
    sizes = np.array([len(t.indptr) - 1 for t in tokens])
    first = np.cumsum(sizes) - sizes
    entries = np.array([len(t.indices) for t in tokens])
    before = np.cumsum(entries) - entries
    ends = [t.indptr[1:] + at for t, at in zip(tokens, before, strict=True)]
    indptr = np.concatenate([[0], *ends])
    indices = np.concatenate([t.indices for t in tokens]) + np.repeat(first, entries)
    kind = np.concatenate([t.kind for t in tokens])
    is_node = np.ones(int(sizes.sum()), bool)
    is_node[first] = False

    def joined(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    return TokenBatch(
        joined([t.x for t in tokens]),
        joined([t.colors for t in tokens]),
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
        torch.from_numpy(np.flatnonzero(kind == AttentionKind.EDGE)),
        torch.from_numpy(first),
    )
