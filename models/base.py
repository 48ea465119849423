"""What every architecture must offer, and what a caller may ask of it."""

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
    relax_differentiable,
    solve_system,
)
from models.energies import Energy
from models.layouts import Layout
from models.resonance import ResolvedResonance, Resonance, ResonanceParameter

Solver = Literal["euler", "nesterov"]


@dataclass(frozen=True)
class DynamicsParams:
    """What a caller may turn for one row; None keeps what the model was trained with.

    `beta` sets the inverse temperature of every head; `beta_scale` multiplies the trained ones.
    `resonance` replaces the trained one as a whole; of strength 0 it is as if there were none.
    `solver` is how a state moves on: by steps as in training, or by those with momentum, see
    `Relaxation`, of which there are fewer on the way to rest. It is for `infer`; and not for noise.
    Of `seed` 32 bits count, as many as torch's generator takes. `deterministic` is for whoever
    runs requests side by side: such a row never shares a batch with those of others, so that sums
    are always rounded alike.
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
    """torch draws from `seed` within, and goes on outside as if nothing had been drawn."""
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
        """Names of the knobs that such a network would ignore."""
        return frozenset() if self.attention else frozenset({"beta", "beta_scale", "resonance"})


class Block(nn.Module):
    """One energy, the norm that activates it, and the motion on it.

    Attributes:
        prepared: the system, where all that does not depend on the state is made ready for good:
            for weights that do not change any more. Copies, and blocks that are moved, have none.
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

    def resolve_params(self, params: Sequence[DynamicsParams]) -> RowParams:
        """Trained values where a row asks for none."""
        beta = self.log_beta_H.exp()

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=beta.device, dtype=beta.dtype)

        beta_RH = beta * column([k.beta_scale for k in params])[:, None]
        for row, asked in enumerate(params):
            if asked.beta is not None:
                beta_RH[row] = asked.beta
        return RowParams(
            steps_R=np.array(
                [self.steps if k.steps is None else k.steps for k in params], np.int64
            ),
            beta_RH=beta_RH,
            step_size_R=column(
                [self.step_size if k.step_size is None else k.step_size for k in params]
            ),
            tolerance_R=np.array([k.tolerance for k in params], np.float64),
            noise_R=column([k.noise for k in params]),
            nesterov_R=np.array([k.solver == "nesterov" for k in params]),
            seeds=tuple((k.seed * 1_000_003 + self.noise_stream) % 2**32 for k in params),
        )

    def beta_of(self, params: DynamicsParams) -> list[float]:
        """The inverse temperature of each head, as `resolve` gives it to a row with these knobs: it
        alone takes less than all that a row has."""
        if params.beta is not None:
            return torch.full_like(self.log_beta_H, params.beta).tolist()
        return (self.log_beta_H.exp() * params.beta_scale).tolist()

    def with_prior(self, layout: Layout, params: Sequence[DynamicsParams]) -> Layout:
        """`layout` with the prior that `knobs` ask for, which is part of the energy there."""
        return layout.resonating(self.resonant([k.resonance for k in params], self.log_beta_H))

    def relax(self, x_ND: Tensor, layout: Layout, params: Sequence[DynamicsParams]) -> Tensor:
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
        """As the weights are now."""
        return StepBackend.from_parts(self.energy, self.motion, self.norm)


@dataclass(frozen=True)
class Output:
    """What the head reads, and how each block (and relation) came to it, in order.

    `logits` are logits of scores and classes, and of an image completer its pixels.
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
        """Where its tensors are; `infer` takes batches there."""
        return next(self.parameters()).device

    @abstractmethod
    def build_block(self) -> Block:
        """A fresh block of this architecture: the one thing in which they differ."""

    @abstractmethod
    def pack(self, items: Sequence[Any], /) -> Any:
        """A batch of graphs or pictures, one row each, as this network was trained to see them.

        Batches have `rows`, `row_of_N` of each token and `row_of_outputs` of each output.
        """

    @abstractmethod
    def build_layouts(self, batch: Any) -> list[Layout]:
        """What each of `blocks_in_order` relaxes on."""

    @abstractmethod
    def blocks_in_order(self) -> list[Block]:
        """Every block, in the order of `Output.solutions`."""

    def resolve_resonance(self, asked: Resonance | None) -> ResolvedResonance | None:
        """What runs where `asked` is asked for: the trained one if that is None."""
        if asked is not None or self.config.resonance is None:
            return None if asked is None else ResolvedResonance.from_resonance(asked)
        learned = [m.strength_H for m in self.modules() if isinstance(m, ResonanceParameter)]
        told = tuple(tuple(s.detach().tolist()) for s in learned if s is not None)
        return ResolvedResonance.from_resonance(self.config.resonance, told)

    @abstractmethod
    def forward(self, batch: Any, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        """The outputs, differentiable, nothing measured; `knobs` per row, trained ones if None."""

    @abstractmethod
    def infer(
        self, batch: Any, params: Sequence[DynamicsParams], control: StepControl = RUN_ALONE
    ) -> Output:
        """The same outputs with the dynamics measured; no gradients."""

    @classmethod
    @abstractmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[Any]]:
        """A small random instance and three items to pack for it, for the contract tests."""
