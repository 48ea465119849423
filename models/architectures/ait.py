"""Associative Transformer (Sun et al., arXiv 2309.12862): for images and questions on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, cast, final

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
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
from models.dynamics import Descent, Solution
from models.energies import AssociativeMemory
from models.inputs.images import ImageBatch, ImageInput, collate_images
from models.inputs.patches import patchify
from models.layouts import Layout, PatternLayout
from models.nn.transformer import FeedForward, MultiHeadAttention
from models.nn.workspace import Workspace
from models.resonance import Resonance
from models.tasks.graph_classifier import ClassificationTask

RetrieveFn = Callable[[Block, Tensor, PatternLayout], Tensor]


class AiTConfig(Config):
    """Configuration of AiT. `memories` are the slots of each workspace, `blocks` the layers.

    The paper's table 2 takes parts away: `attention` (W/O SA), `feedforward` (W/O FF), `workspace`
    (W/O memory, which leaves a vision transformer), that and `attention` (dense networks),
    `hopfield` (another attention in its stead), `share` of 1 (W/O bottleneck). To reset the memory
    every epoch is up to training. `write` is of tables 7 and 8: without memory forward.
    """

    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = Field(
        description="channels, height and width of an image"
    )
    patch: PositiveInt = Field(4, description="side of a patch; height and width are multiples")
    stem: tuple[PositiveInt, ...] = Field(
        (),
        description="channels of convolutions before the patches, each of which halves height and "
        "width",
    )
    places: PositiveFloat = Field(0.02, description="deviation of the places before training")
    question: NonNegativeInt = Field(0, description="width of a question; 0: there is none")
    asked: Literal["token", "apart"] = Field(
        "token",
        description="what the question is: one more token among the patches, or one that reads "
        "them and is read by none of them",
    )
    tasks: tuple[ClassificationTask] = Field(description="what is asked, with its answers")
    memories: PositiveInt = 32
    steps: PositiveInt = Field(1, description="T, steps of each retrieval")
    step_size: PositiveFloat = 1.0
    beta: PositiveFloat | None = Field(1.0, description="inverse temperature of the retrieval")
    learn_beta: bool = False
    mlp: PositiveInt = Field(128, description="width of the hidden layer of each feed-forward")
    slot_dim: PositiveInt = Field(32, description="D, width of a slot of the memory")
    slot_heads: PositiveInt = Field(8, description="heads of the bottleneck attention")
    share: float = Field(
        1 / 64, gt=0, le=1, description="of the patches of a pool that pass the bottleneck"
    )
    decay: float = Field(0.9, ge=0, lt=1, description="alpha of eq. 4")
    pool: Literal["batch", "picture"] = Field(
        "batch", description="whose patches compete in training; in serving those of one image"
    )
    feedforward: bool = Field(True, description="False leaves the feed-forward out")
    workspace: bool = Field(True, description="False leaves the workspace out")
    write: bool = Field(True, description="False retrieves from the memory as it is kept")
    dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> AiTConfig:
        if any(side % self.patch for side in self._sides):
            raise ValueError("height and width must be multiples of the patch")
        if self.slot_dim % self.slot_heads:
            raise ValueError("slot_dim must be a multiple of slot_heads")
        return self

    @property
    def num_tokens(self) -> int:
        """Patches of an image, and its question."""
        return self.num_patches + (self.question > 0)

    @property
    def num_readable_tokens(self) -> int:
        """The tokens, from the first, that others attend to and that write into the memory."""
        return self.num_patches if self.asked == "apart" else self.num_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self._sides
        return height // self.patch, width // self.patch

    @property
    def num_patches(self) -> int:
        return math.prod(self.grid)

    @property
    def _sides(self) -> tuple[int, int]:
        """Height and width of what is cut into patches."""
        height, width = (math.ceil(side / 2 ** len(self.stem)) for side in self.shape[1:])
        return height, width

    @property
    def ignored_params(self) -> frozenset[str]:
        """What resonates are the self-attention and the bottleneck."""
        there = self.attention or (self.workspace and (self.write or not self.hopfield))
        return frozenset() if there else frozenset({"resonance"})

    @property
    def hopfield_config(self) -> Config:
        """What of this concerns the Hopfield network: one temperature for all of a row."""
        of_all = {
            name: getattr(self, name) for name in ("steps", "step_size", "beta", "learn_beta")
        }
        return Config.model_validate({"heads": 1} | of_all)


@final
class AiTLayer(nn.Module):
    """Self-attention, feed-forward, and the global workspace (figure 1b), each on a residual."""

    def __init__(self, config: AiTConfig, block: Block) -> None:
        super().__init__()
        c = config
        resonance = c.resonance, c.learn_strength
        self.attention = self.feedforward = self.workspace = self.cross = self.block = None
        if c.attention:
            self.attention_norm = nn.LayerNorm(c.dim)
            self.attention = MultiHeadAttention(c.dim, c.heads, c.head_dim, c.dropout, *resonance)
        if c.feedforward:
            self.feedforward_norm = nn.LayerNorm(c.dim)
            self.feedforward = FeedForward(c.dim, c.mlp, c.dropout)
        self.pooled, self.writes, self.read = c.pool == "batch", c.write, c.num_readable_tokens
        if c.workspace:
            self.workspace_norm = nn.LayerNorm(c.dim)
            self.workspace = Workspace(
                c.dim, c.memories, c.slot_dim, c.slot_heads, c.share, c.decay, *resonance
            )
            self.lift = nn.Linear(c.slot_dim, c.dim)
            if c.hopfield:
                self.block = block
            else:
                self.cross = MultiHeadAttention(c.dim, c.heads, c.head_dim, c.dropout, *resonance)

    def forward(
        self, x_RLD: Tensor, retrieve: RetrieveFn, asked: Sequence[Resonance | None]
    ) -> tuple[Tensor, Tensor]:
        """The next x (R, L, D) and the balance loss of the bottleneck.

        `asked` is the resonance of each row, in every attention of the layer.
        """
        if self.attention is not None:
            g_RLD = self.attention_norm(x_RLD)
            x_RLD = x_RLD + self.attention(g_RLD, g_RLD[:, : self.read], asked)
        if self.feedforward is not None:
            x_RLD = x_RLD + self.feedforward(self.feedforward_norm(x_RLD))
        balance = x_RLD.new_zeros(())
        if self.workspace is not None:
            rows, length, dim = x_RLD.shape
            xi_RLD = self.workspace_norm(x_RLD)
            memory_PMD, balance = self._write(self.workspace, xi_RLD[:, : self.read], asked)
            attractors_PMD = self.lift(memory_PMD).to(xi_RLD.dtype)
            if self.block is not None:
                layout = PatternLayout(attractors_PMD, rows, length)
                recalled = retrieve(self.block, xi_RLD.reshape(rows * length, dim), layout)
                x_RLD = x_RLD + recalled.view(rows, length, dim)
            elif self.cross is not None:
                attractors_RMD = attractors_PMD.expand(rows, -1, -1)
                x_RLD = x_RLD + self.cross(xi_RLD, attractors_RMD, asked)
        return x_RLD, balance

    def _write(
        self, workspace: Workspace, xi_RLD: Tensor, asked: Sequence[Resonance | None]
    ) -> tuple[Tensor, Tensor]:
        """gamma^(t+1) (P, M, D) and the balance loss: the squash layer and what follows it."""
        if not (self.training or self.writes):
            return workspace.memory_MD[None], xi_RLD.new_zeros(())
        pooled = self.training and self.pooled
        if pooled and len(set(asked)) > 1:
            raise ValueError("rows that compete in one pool must have the same resonance")
        memory_PMD, balance = workspace(xi_RLD.flatten(0, 1)[None] if pooled else xi_RLD, asked)
        if self.training:
            workspace.store_memory(memory_PMD)
        return memory_PMD, balance


@final
class AiT(Architecture):
    """Patches and their places, layers with a workspace each, a linear map of their mean.

    The Hopfield network of a layer relaxes g = LN(x) on the energy of eq. 7, whose attractors are
    the memory after the patches have written into it (eq. 3-4), and adds what it retrieved to x.
    The norm before it is the one that every other branch has, and the released code too; without
    it beta would mean something else in every layer.

    In training all patches of a batch compete for the workspace (the squash layer) and what they
    write stays. In evaluation the memory is frozen and each image competes with itself alone, so
    that no answer depends on another request; k shrinks with the pool (`models.nn.workspace`). A
    question, LN, linear, LN, is "concatenated to image patch embeddings" (section 5.8): one more
    token. `apart` departs from the paper: no patch knows of the question, whose token reads them in
    every layer, and the answer is read from it instead of the mean. What an image is made to know
    then serves every question about it, and K of them take little longer than one. Logits are
    (R, C), or (R K, C) of K questions apart.

    `balance` is the balance loss of the last `forward`, summed over the layers.
    """

    name = "ait"
    task = "images"
    config_type = AiTConfig
    config: AiTConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    mean_C: Tensor
    std_C: Tensor

    def __init__(self, config: AiTConfig) -> None:
        super().__init__()
        c = self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        channels = c.shape[0]
        self.register_buffer("mean_C", torch.zeros(channels))
        self.register_buffer("std_C", torch.ones(channels))
        self.stem = _build_stem(c)
        self.embed = nn.Linear((channels, *c.stem)[-1] * c.patch**2, c.dim)
        self.places_LD = nn.Parameter(torch.randn(c.num_patches, c.dim) * c.places)
        self.ask = _build_question_embedding(c)
        self.layers = nn.ModuleList(AiTLayer(c, self.build_block()) for _ in range(c.blocks))
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, len(c.tasks[0].labels))
        self.balance = torch.zeros(())

    def build_block(self) -> Block:
        return Block(AssociativeMemory(), Descent(), nn.Identity(), self.config.hopfield_config)

    def pack(self, images: Sequence[ImageInput]) -> ImageBatch:
        return collate_images(images, self.config.num_tokens)

    def check(self, image: ImageInput) -> None:
        """Refuse an image that this network cannot see, or a question it does not understand.

        Raises:
            ValueError: saying what is wrong with it.
        """
        if image.pixels.shape != self.config.shape:
            raise ValueError(f"the image must be of shape {self.config.shape}")
        if not ((image.pixels >= 0) & (image.pixels <= 1)).all():
            raise ValueError("pixels must lie between 0 and 1")
        width = 0 if image.question is None else len(image.question)
        if width != self.config.question:
            raise ValueError(f"the question must have {self.config.question} numbers")
        if image.question is not None and not np.isfinite(image.question).all():
            raise ValueError("the question must be finite")

    def blocks_in_order(self) -> list[Block]:
        blocks = [cast(AiTLayer, layer).block for layer in self.layers]
        return [block for block in blocks if block is not None]

    @torch.no_grad()
    def build_layouts(self, batch: ImageBatch) -> list[Layout]:
        found: list[Layout] = []

        def retrieve(block: Block, x_ND: Tensor, layout: PatternLayout) -> Tensor:
            found.append(layout)
            return block.relax(x_ND, layout)

        self._through(batch, retrieve, [DynamicsParams()])
        return found

    def forward(self, batch: ImageBatch, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        """Logits (R, C)."""
        rows = params or [DynamicsParams()] * batch.rows

        def retrieve(block: Block, x_ND: Tensor, layout: PatternLayout) -> Tensor:
            return block.relax(x_ND, layout, rows)

        logits_RC, self.balance = self._through(batch, retrieve, rows)
        return logits_RC

    @torch.no_grad()
    def infer(
        self,
        batch: ImageBatch,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
    ) -> Output:
        solutions: list[Solution] = []

        def retrieve(block: Block, x_ND: Tensor, layout: PatternLayout) -> Tensor:
            solutions.append(block.solve(x_ND, layout, params, control))
            return solutions[-1].x_ND

        return Output(self._through(batch.to(self.device), retrieve, params)[0], solutions)

    def reset_memories(self) -> None:
        """Fresh memories in every workspace: an ablation of table 2, between epochs."""
        for module in self.modules():
            if isinstance(module, Workspace):
                module.reset_memory()

    def _through(
        self, batch: ImageBatch, retrieve: RetrieveFn, params: Sequence[DynamicsParams]
    ) -> tuple[Tensor, Tensor]:
        resonances = [row.resonance for row in params]
        x_RLD = self._embed(batch)
        balance = x_RLD.new_zeros(())
        for layer in self.layers:
            x_RLD, of_layer = layer(x_RLD, retrieve, resonances)
            balance = balance + of_layer
        return self.head(self._select_answer_tokens(self.norm(x_RLD))), balance

    def _select_answer_tokens(self, x_RLD: Tensor) -> Tensor:
        """The question tokens (R K, D) if they stand apart, else the mean of all tokens (R, D)."""
        apart_RKD = x_RLD[:, self.config.num_readable_tokens :]
        return apart_RKD.flatten(0, 1) if apart_RKD.shape[1] else x_RLD.mean(1)

    def _embed(self, batch: ImageBatch) -> Tensor:
        """The tokens of each image (R, L, D), its questions last."""
        scaled_RCHW = (batch.pixels_RCHW - self.mean_C[:, None, None]) / self.std_C[:, None, None]
        if self.config.stem:  # twice as fast where the channels of a pixel lie together
            scaled_RCHW = self.stem(scaled_RCHW.contiguous(memory_format=torch.channels_last))
        patches_NP = patchify(scaled_RCHW, self.config.patch)
        x_RLD = self.embed(patches_NP.unflatten(0, (batch.rows, -1))) + self.places_LD
        if self.ask is None:
            return x_RLD
        assert batch.question_RKQ is not None
        asked_RKD = self.ask(batch.question_RKQ.to(self.places_LD.dtype)).to(x_RLD.dtype)
        return torch.cat([x_RLD, asked_RKD], 1)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[ImageInput]]:
        rng = np.random.default_rng(seed)
        images = [
            ImageInput(
                rng.random((2, 4, 6)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
            )
            for _ in range(3)
        ]
        config = AiTConfig.model_validate(
            {
                "shape": (2, 4, 6),
                "patch": 2,
                "question": 5,
                "tasks": ({"name": "p", "labels": ("u", "v", "w")},),
                "dim": 12,
                "heads": 2,
                "head_dim": 4,
                "memories": 5,
                "blocks": 2,
                "steps": 3,
                "step_size": 0.1,
                "learn_beta": True,
                "mlp": 16,
                "slot_dim": 8,
                "slot_heads": 2,
                "share": 0.5,
            }
        )
        return cls.from_images(config, np.stack([p.pixels for p in images]), seed), images

    @classmethod
    def from_images(cls, config: AiTConfig, pixels_ICHW: np.ndarray, seed: int) -> AiT:
        """A fresh network whose channels are standardised on images, in [0, 1] or bytes."""
        with temporary_seed(seed):
            network = cls(config)
        scale = 255 if pixels_ICHW.dtype == np.uint8 else 1
        for buffer_C, of in ((network.mean_C, np.mean), (network.std_C, np.std)):
            channels = [of(pixels_ICHW[:, c], dtype=np.float64) for c in range(len(buffer_C))]
            buffer_C.copy_(torch.tensor(channels) / scale)
        network.std_C.clamp_(min=1e-3)
        return network


def _build_stem(config: AiTConfig) -> nn.Module:
    """Nothing, where no channels are asked for."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in pairwise((config.shape[0], *config.stem)):
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers)


def _build_question_embedding(config: AiTConfig) -> nn.Module | None:
    if not config.question:
        return None
    return nn.Sequential(
        nn.LayerNorm(config.question),
        nn.Linear(config.question, config.dim),
        nn.LayerNorm(config.dim),
    )
