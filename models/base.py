"""The contract of every architecture: configuration, blocks, parameters of the dynamics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from models.dynamics import (
    RUN_ALONE,
    Motion,
    RowParams,
    Solution,
    StepBackend,
    StepCallback,
    StepControl,
    relax_as_trained,
    relax_differentiable,
    solve_system,
)
from models.energies import Energy
from models.layouts import Layout
from models.resonance import ResolvedResonance, Resonance, ResonanceParameter

Solver = Literal["euler", "nesterov", "descent"]


@dataclass(frozen=True)
class DynamicsParams:
    """Parameters of the dynamics of one row; None keeps the trained value.

    Attributes:
        beta: inverse temperature of every head; excludes `beta_scale`.
        beta_scale: multiplies the trained inverse temperatures.
        solver: `euler` steps as in training; `nesterov` adds momentum (see `Relaxation`) and needs
            fewer steps to converge; `descent` shortens steps that would go up. The last two are for
            `infer` without noise.
        seed: of the noise; the lower 32 bits count.
        resonance: replaces the trained one as a whole; strength 0 turns it off.
        deterministic: the row never shares a batch with rows of other requests, so that sums are
            always rounded alike.
    """

    steps: int | None = None
    beta: float | None = None
    beta_scale: float = 1.0
    step_size: float | None = None
    tolerance: float = 0.0
    noise: float = 0.0
    seed: int = 0
    solver: Solver = "euler"
    resonance: Resonance | None = None
    deterministic: bool = False


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seed torch inside the context; the generator outside is left as it was."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        yield


class Config(BaseModel):
    """Common part of every architecture's configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dim: PositiveInt = 64
    heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    memories: PositiveInt = 256
    blocks: PositiveInt = 1
    steps: PositiveInt = Field(2, description="T, steps of each block")
    step_size: PositiveFloat = 0.5
    beta: PositiveFloat | None = Field(
        None, description="initial inverse temperature of the heads; 1/sqrt(head_dim) if not set"
    )
    learn_beta: bool = True
    attention: bool = Field(True, description="False leaves the attention energy out")
    hopfield: bool = Field(True, description="False leaves the Hopfield energy out")
    resonance: Resonance | None = Field(
        None, description="prior on the logits of every attention, see `models.resonance`"
    )
    learn_strength: bool = Field(False, description="of the resonance, for each head")

    @model_validator(mode="after")
    def _resonates_on_something(self) -> Self:
        if self.resonance is not None and "resonance" in self.ignored_params:
            raise ValueError("resonance: there is no attention for it to act on")
        if self.learn_strength and self.resonance is None:
            raise ValueError(
                "learn_strength: there is no resonance whose strength could be learned"
            )
        return self

    @property
    def ignored_params(self) -> frozenset[str]:
        """Names of the dynamics parameters that such a network would ignore."""
        return frozenset() if self.attention else frozenset({"beta", "beta_scale", "resonance"})


class Block(nn.Module):
    """One energy, the norm that activates it, and the motion on it.

    Attributes:
        prepared_backend: the step backend with everything that does not depend on the state
            computed once, for weights that no longer change. Copied and moved blocks have none.
    """

    prepared_backend: StepBackend | None
    step_size: float
    steps: int
    noise_stream: int
    """Place among the network's blocks: each draws noise of its own from a request's seed."""

    def __init__(self, energy: Energy, motion: Motion, norm: nn.Module, config: Config) -> None:
        super().__init__()
        self.noise_stream, self.prepared_backend = 0, None
        self.energy, self.motion, self.norm = energy, motion, norm
        self.steps, self.step_size = config.steps, config.step_size
        beta = config.beta or config.head_dim**-0.5
        learn = config.learn_beta and config.attention
        self.log_beta_H = nn.Parameter(torch.full((config.heads,), beta).log(), requires_grad=learn)
        self.resonant = ResonanceParameter(config.heads, config.resonance, config.learn_strength)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"prepared_backend": None}

    def _apply(self, *how: Any, **more: Any) -> Self:
        self.prepared_backend = None
        return super()._apply(*how, **more)

    def resolve_beta(self, params: Sequence[DynamicsParams]) -> Tensor:
        """Inverse temperature of each row and head (R, H).

        `beta` where a row sets it, otherwise the trained one of each head times `beta_scale`.
        """
        trained_H = self.log_beta_H.exp()
        scale_R = trained_H.new_tensor([row.beta_scale for row in params])
        beta_RH = trained_H * scale_R[:, None]
        for place, row in enumerate(params):
            if row.beta is not None:
                beta_RH[place] = row.beta
        return beta_RH

    def resolve_params(self, params: Sequence[DynamicsParams]) -> RowParams:
        """The parameters of each row, trained values where it sets none."""
        beta_RH = self.resolve_beta(params)
        steps = [self.steps if row.steps is None else row.steps for row in params]
        sizes = [self.step_size if row.step_size is None else row.step_size for row in params]
        return RowParams(
            steps_R=np.array(steps, np.int64),
            beta_RH=beta_RH,
            step_size_R=beta_RH.new_tensor(sizes),
            tolerance_R=np.array([row.tolerance for row in params], np.float64),
            noise_R=beta_RH.new_tensor([row.noise for row in params]),
            nesterov_R=np.array([row.solver == "nesterov" for row in params]),
            descent_R=np.array([row.solver == "descent" for row in params]),
            seeds=tuple((row.seed * 1_000_003 + self.noise_stream) % 2**32 for row in params),
        )

    def with_prior(self, layout: Layout, params: Sequence[DynamicsParams]) -> Layout:
        """`layout` with the resonance prior of each row, which is part of the energy."""
        return layout.resonating(self.resonant([k.resonance for k in params], self.log_beta_H))

    def relax(
        self, x_ND: Tensor, layout: Layout, params: Sequence[DynamicsParams] | None = None
    ) -> Tensor:
        """The states (N, D) at the end, differentiable; as trained if `params` is None."""
        if params is None:
            return relax_as_trained(
                self.energy,
                self.motion,
                self.norm,
                x_ND,
                layout.resonating(self.resonant([None], self.log_beta_H)),
                self.log_beta_H.exp().expand(layout.rows, -1),
                self.steps,
                self.step_size,
            )
        layout = self.with_prior(layout, params)
        return relax_differentiable(
            self.energy, self.motion, self.norm, x_ND, layout, self.resolve_params(params)
        )

    def solve(
        self,
        x_ND: Tensor,
        layout: Layout,
        params: Sequence[DynamicsParams],
        control: StepControl,
        watch: StepCallback | None = None,
    ) -> Solution:
        layout, resolved = self.with_prior(layout, params), self.resolve_params(params)
        return solve_system(
            self.prepared_backend or self.build_backend(), x_ND, layout, resolved, control, watch
        )

    @torch.no_grad()
    def build_backend(self) -> StepBackend:
        """A torch backend of the current weights."""
        return StepBackend.from_parts(self.energy, self.motion, self.norm)


@dataclass(frozen=True)
class Output:
    """Outputs of the head and the relaxation of each block (and relation), in order.

    `logits` are logits of scores and classes, or the pixels of an image completer.
    """

    logits: Tensor
    solutions: list[Solution]


class Architecture(nn.Module, ABC):
    """A network that embeds its input, relaxes it, and reads the state out."""

    name: ClassVar[str]
    task: ClassVar[Literal["anomaly", "classification", "images", "completion"]]
    config_type: ClassVar[type[Config]]

    config: Config

    @property
    def device(self) -> torch.device:
        """Device of the weights; `infer` moves batches to it."""
        return next(self.parameters()).device

    @abstractmethod
    def build_block(self) -> Block:
        """A fresh block: the one thing in which architectures differ."""

    @abstractmethod
    def pack(self, items: Sequence[Any], /) -> Any:
        """A batch of graphs or images, one row each, as this network was trained to see them.

        Batches have `rows`, `row_of_N` of each token and `row_of_outputs` of each output.
        """

    @abstractmethod
    def build_layouts(self, batch: Any) -> list[Layout]:
        """The layout that each of `blocks_in_order` relaxes on."""

    @abstractmethod
    def blocks_in_order(self) -> list[Block]:
        """Every block, in the order of `Output.solutions`."""

    def resolve_resonance(self, requested: Resonance | None) -> ResolvedResonance | None:
        """The resonance that runs for a request of `asked`; the trained one if None."""
        if requested is not None or self.config.resonance is None:
            return None if requested is None else ResolvedResonance.from_resonance(requested)
        learned = [m.strength_H for m in self.modules() if isinstance(m, ResonanceParameter)]
        strengths = tuple(tuple(s.detach().tolist()) for s in learned if s is not None)
        return ResolvedResonance.from_resonance(self.config.resonance, strengths)

    @abstractmethod
    def forward(self, batch: Any, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        """The outputs, differentiable, nothing measured; `params` per row, trained ones if None."""

    @abstractmethod
    def infer(
        self, batch: Any, params: Sequence[DynamicsParams], control: StepControl = RUN_ALONE
    ) -> Output:
        """The outputs of `forward` with the dynamics measured; no gradients."""

    @classmethod
    @abstractmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[Any]]:
        """A small random instance and three items to pack for it, for the contract tests."""
