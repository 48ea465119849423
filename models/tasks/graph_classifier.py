"""Embed whole graphs, relax them, read classes off: what ET and CDAT for graphs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from models.base import (
    RUN_ALONE,
    Architecture,
    Block,
    Config,
    DynamicsParams,
    Output,
    StepControl,
    temporary_seed,
)
from models.dynamics import Solution
from models.heads import ClassHead
from models.heads.classes import Readout
from models.inputs.edge_terms import EdgeTerms, PairTerm, Weighting
from models.inputs.graph import Column, Graph
from models.inputs.tabular import ColumnEncoder, find_categorical_columns
from models.inputs.tokens import GraphTokenizer, GraphTokens, TokenBatch, collate_tokens
from models.inputs.wl_colors import WLColorEncoder, find_frequent_colors
from models.layouts import Layout
from models.nn.dropout import Dropout


class ClassificationTask(BaseModel):
    """One question with two or more exclusive answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    labels: tuple[str, ...] = Field(min_length=2)


class GraphConfig(Config):
    """Configuration of a graph classifier."""

    node_features: tuple[Column, ...] = Field(min_length=1)
    edge_features: tuple[Column, ...] = ()
    tasks: tuple[ClassificationTask, ...] = Field(min_length=1)
    attend: Literal["edges", "all"] = Field("edges", description="see `models.inputs.tokens`")
    positions: Literal["walk", "laplacian", "none"] = Field(
        "walk", description="laplacian is eq. 23 and depends on how the nodes are numbered"
    )
    position_length: PositiveInt = Field(16, description="steps of the walk, or eigenvectors")
    rounds: NonNegativeInt = Field(
        0,
        description="Weisfeiler-Leman colors, see `models.inputs.wl_colors`; 1 is the node alone",
    )
    familiar: PositiveInt = Field(
        1, description="minimum number of training graphs that have a color for it to be known"
    )
    colours: NonNegativeInt = Field(0, description="how many colours are known")
    weighting: Weighting = Field("bias", description="see `models.inputs.edge_terms`")
    pairs: PairTerm = Field(
        "product", description="convolution is eq. 24 and depends on how the nodes are numbered"
    )
    noise: float = Field(0.0, ge=0, description="sigma of eq. 27, in training only")
    encoder: NonNegativeInt = Field(0, description="width of a hidden layer in the embedding")
    readout: tuple[Readout, ...] = Field(("cls", "mean"), min_length=1)
    hidden: NonNegativeInt = Field(64, description="width of the head's hidden layer; 0: linear")
    dropout: float = Field(0.1, ge=0, lt=1)

    @property
    def tokenizer(self) -> GraphTokenizer:
        return GraphTokenizer(
            self.attend,
            self.positions,
            self.position_length,
            self.rounds,
            find_categorical_columns(self.node_features),
            find_categorical_columns(self.edge_features),
        )


class GraphClassifier(Architecture):
    """CLS in front of the nodes, S blocks of T steps, a head on the last activations.

    Energy Transformer appendix D.1 (eq. 22-28). Nodes are embedded from their features, their
    position, the sum of the features of their edges and the names of their surroundings; the last
    two are departures, as attention over neighbours alone averages and cannot count. x(1) is
    scaled to unit variance, so that steps of one size mean the same on every dataset. Each block
    has a norm, an energy and edge terms of its own. The head reads g(1) || g(T), as eq. 11 does
    for nodes. Logits are (R, C), the classes of every task in turn; each task has its own softmax.
    """

    task = "classification"
    config: GraphConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: GraphConfig) -> None:
        super().__init__()
        c = self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.tokenizer = c.tokenizer
        self.cls_D = nn.Parameter(torch.randn(c.dim) * 0.02)
        self.nodes = ColumnEncoder(c.node_features, c.dim)
        self.edges = ColumnEncoder(c.edge_features, c.dim) if c.edge_features else None
        self.positions = nn.Linear(self.tokenizer.position_width, c.dim, bias=False)
        self.colours = WLColorEncoder(c.colours, c.dim, c.dropout) if c.colours else None
        self.encoder = _encoder(c)
        self.blocks = nn.ModuleList(self.build_block() for _ in range(c.blocks))
        self.terms = nn.ModuleList(
            EdgeTerms(c.dim, c.heads, c.edge_features, c.weighting, c.pairs) for _ in self.blocks
        )
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream
        outputs = sum(len(task.labels) for task in c.tasks)
        self.head = ClassHead(2 * c.dim, outputs, c.readout, c.hidden, c.dropout)

    def tokenize(self, graph: Graph) -> GraphTokens:
        """What of a graph does not depend on weights; worth keeping between epochs."""
        return self.tokenizer(graph)

    def pack(self, graphs: Sequence[Graph]) -> TokenBatch:
        return collate_tokens([self.tokenize(graph) for graph in graphs])

    def check(self, graph: Graph) -> None:
        """Refuse features that this network does not know.

        Raises:
            ValueError: naming the column.
        """
        self.nodes.check(graph.x)
        if self.edges is not None:
            attr = graph.edge_attr
            self.edges.check(np.zeros((0, 0)) if attr is None else attr)

    def blocks_in_order(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def build_layouts(self, batch: TokenBatch) -> list[Layout]:
        return self._layouts(self.embed(batch), batch)

    def split_logits(self, logits_RC: Tensor) -> list[Tensor]:
        """The logits of each task, (R, its classes)."""
        return list(logits_RC.split([len(task.labels) for task in self.config.tasks], -1))

    def forward(
        self,
        batch: TokenBatch,
        params: Sequence[DynamicsParams] | None = None,
        x_ND: Tensor | None = None,
    ) -> Tensor:
        """Logits (R, C). `x_ND`, if given, is `self.embed(batch)` computed before."""
        params = params or self._draw_training_noise(batch.rows)
        x_ND = state_ND = self.embed(batch) if x_ND is None else x_ND
        for block, layout in zip(self.blocks_in_order(), self._layouts(x_ND, batch), strict=True):
            state_ND = block.relax(state_ND, layout, params)
        return self.head(self._read(x_ND, self.blocks_in_order()[-1].norm(state_ND)), batch)

    @torch.no_grad()
    def infer(
        self,
        batch: TokenBatch,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
    ) -> Output:
        batch = batch.to(self.device)
        x_ND = state_ND = self.embed(batch)
        solutions: list[Solution] = []
        for block, layout in zip(self.blocks_in_order(), self._layouts(x_ND, batch), strict=True):
            solutions.append(block.solve(state_ND, layout, params, control))
            state_ND = solutions[-1].x_ND
        return Output(self.head(self._read(x_ND, solutions[-1].g_ND), batch), solutions)

    def embed(self, batch: TokenBatch) -> Tensor:
        """x(1) (N, D), from which the tokens set out."""
        nodes_nD = self.nodes(batch.x_nF)
        if self.colours is not None:
            nodes_nD = nodes_nD + self.colours(batch.colours_nC).to(nodes_nD)
        if self.edges is not None:
            nodes_nD = nodes_nD.index_add(
                0, batch.edges_2e[1], self.edges(batch.edge_attr_eP).to(nodes_nD)
            )
        positions_NK = batch.positions_NK
        if self.training and self.config.positions == "laplacian":
            # Eigenvectors have no sign of their own (appendix D.3).
            shape = (batch.rows, self.config.position_length)
            sign_RK = torch.randint(2, shape).to(positions_NK) * 2 - 1
            signed = positions_NK[:, 1:] * sign_RK[batch.row_of_N]
            positions_NK = torch.cat([positions_NK[:, :1], signed], 1)
        # Under mixed precision the projections arrive in half; the sums stay in full.
        x_ND = self.positions(positions_NK.to(self.cls_D.dtype)).to(self.cls_D.dtype)
        x_ND = x_ND.index_add(0, batch.node_n, nodes_nD.to(x_ND.dtype))
        x_ND = x_ND.index_add(0, batch.cls_R, self.cls_D.expand(batch.rows, -1))
        x_ND = x_ND if self.encoder is None else x_ND + self.encoder(x_ND)
        return nn.functional.layer_norm(x_ND, x_ND.shape[-1:])

    def _layouts(self, x_ND: Tensor, batch: TokenBatch) -> list[Layout]:
        g_ND = self.blocks_in_order()[0].norm(x_ND)
        return [terms(g_ND, batch) for terms in self.terms]

    def _read(self, x_ND: Tensor, last_ND: Tensor) -> Tensor:
        """g(1) || g(T), (N, 2 D), of x(1) and g(T)."""
        return torch.cat([self.blocks_in_order()[0].norm(x_ND), last_ND], -1)

    def _draw_training_noise(self, rows: int) -> list[DynamicsParams] | None:
        if not self.training or self.config.noise == 0:
            return None
        seeds = torch.randint(2**62, (rows,)).tolist()
        return [DynamicsParams(noise=self.config.noise, seed=seed) for seed in seeds]

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[Graph]]:
        rng = np.random.default_rng(seed)
        graphs = []
        for nodes, edges in ((9, 20), (1, 0), (14, 6)):  # one atom alone; some of them isolated
            x = np.c_[rng.integers(0, 3, nodes), rng.standard_normal(nodes)]
            attr = np.c_[rng.integers(0, 2, edges), rng.standard_normal(edges)]
            index = rng.integers(0, nodes, (2, edges))
            # One of each pair: which of two edges between the same ends counts is not the point.
            key = np.sort(index, 0)
            first = np.unique(key[0] * nodes + key[1], return_index=True)[1]
            graphs.append(Graph(x.astype(np.float32), index[:, first], None, attr[first]))
        config = cls.config_type.model_validate(
            {
                "node_features": ({"name": "a", "values": ("x", "y", "z")}, {"name": "b"}),
                "edge_features": ({"name": "c", "values": ("s", "t")}, {"name": "d"}),
                "tasks": (
                    {"name": "p", "labels": ("0", "1")},
                    {"name": "q", "labels": ("u", "v", "w")},
                ),
                "dim": 12,
                "heads": 2,
                "head_dim": 4,
                "memories": 10,
                "blocks": 2,
                "steps": 3,
                "step_size": 0.1,
                "encoder": 8,
                "readout": ("cls", "mean", "sum", "max"),
                "position_length": 5,
                "rounds": 2,
            }
        )
        return cls.from_data(cast(GraphConfig, config), graphs, seed), graphs

    @classmethod
    def from_data(cls, config: GraphConfig, graphs: Sequence[Graph], seed: int) -> GraphClassifier:
        """A fresh network whose columns are standardised on `graphs`."""
        names = np.empty(0, np.int64)
        if config.rounds:
            names = find_frequent_colors(
                [config.tokenizer.compute_colors(g) for g in graphs], config.familiar
            )
        with temporary_seed(seed):
            network = cls(config.model_copy(update={"colours": len(names)}))
        if network.colours is not None:
            network.colours.names_V.copy_(torch.from_numpy(names))
        network.nodes.fit([graph.x for graph in graphs])
        attrs: list[Any] = [graph.edge_attr for graph in graphs if graph.edge_attr is not None]
        if network.edges is not None:
            for encoder in [network.edges, *(terms.features for terms in network.terms)]:
                if isinstance(encoder, ColumnEncoder):
                    encoder.fit(attrs)
        return network


def _encoder(config: GraphConfig) -> nn.Module | None:
    if not config.encoder:
        return None
    return nn.Sequential(
        nn.Linear(config.dim, config.encoder),
        nn.GELU(),
        Dropout(config.dropout),
        nn.Linear(config.encoder, config.dim),
    )
