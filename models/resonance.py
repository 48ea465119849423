"""Differentiable adaptive resonance (DAR): a bounded prior on the logits of any attention.

Logits become beta q . k + lambda r with r = gate(alpha (c - rho)) of the cosine c of q and k (DAR
section 2), before mask and softmax. lambda stands beside beta, not under it: DAR adds to logits
that are scaled already, and so its influence stays bounded by |lambda| at any temperature
(docs/decisions/0013-resonance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Literal, Self, final

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn

Gate = Literal["sigmoid", "centred", "tanh", "piecewise-linear"]

# Steepest slope of each gate in units of the sharpness: what the contraction condition needs.
_STEEPEST: dict[Gate, float] = {
    "sigmoid": 0.25,
    "centred": 0.25,
    "tanh": 0.5,
    "piecewise-linear": 1.0,
}


class _Shape(BaseModel):
    """All of a resonance but its strength."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    vigilance: float = Field(
        0.5,
        ge=-1,
        le=1,
        description="rho, the cosine c from which on a pair is favoured; of the gate centred it is "
        "(c + 1) / 2",
    )
    # single precision would round less to 0
    sharpness: float = Field(8.0, ge=1e-12, le=100, description="alpha, how abruptly it is")
    gate: Gate = Field(
        "sigmoid",
        description="sigmoid(alpha (c - rho)); centred: of (c + 1) / 2 in place of the cosine c; "
        "tanh: (1 + tanh(alpha (c - rho))) / 2; piecewise-linear: alpha (c - rho) + 1/2, cut off "
        "at 0 and 1",
    )
    unroll: int = Field(
        1, ge=1, le=16, description="T_u, rounds of resonance; 1 is none beyond the first"
    )
    feedback: float = Field(
        0.0,
        ge=-1,
        le=1,
        description="how much of a pair's resonance enters its next round; with `sharpness` times "
        "it below 4 (tanh: 2, piecewise-linear: 1) in size, so that the rounds settle",
    )
    rank: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="width of a fixed orthonormal map after which cosines are taken; that of the "
        "head if left out",
    )

    @field_validator("feedback")
    @classmethod
    def _settles(cls, feedback: float, others: ValidationInfo) -> float:
        """The contraction condition of section 5, with the slope of the gate at hand."""
        if {"sharpness", "gate"} <= others.data.keys():
            gate, sharpness = others.data["gate"], others.data["sharpness"]
            if _STEEPEST[gate] * sharpness * abs(feedback) >= 1:
                raise ValueError(
                    f"sharpness times feedback must be below {1 / _STEEPEST[gate]:g} in size with "
                    f"the gate {gate}, or the rounds need not settle: lower feedback or sharpness"
                )
        return feedback

    @property
    def contraction(self) -> float:
        """Most by which a round changes r, over what the round before did; below 1."""
        return _STEEPEST[self.gate] * self.sharpness * abs(self.feedback)


@final
class Resonance(_Shape):
    """A prior on the logits of attention; what is left out has the defaults here."""

    strength: float = Field(
        0.25,
        ge=-20,
        le=20,
        description="lambda, most that the logit of a pair gains; 0 is no resonance at all",
    )


@final
class ResolvedResonance(_Shape):
    """A resonance as it ran."""

    strength: float | tuple[tuple[float, ...], ...] = Field(
        description="lambda; where it was learned, of each attention and head"
    )

    @classmethod
    def from_resonance(cls, shape: Resonance, learned: tuple[tuple[float, ...], ...] = ()) -> Self:
        return cls.model_validate(shape.model_dump() | ({"strength": learned} if learned else {}))


Broadcast = Callable[[Tensor], Tensor]
"""Brings a value of each row (P, 1) or (P, H) to the shape of all pairs, or to one that fits it."""


@final
@dataclass(frozen=True, eq=False)
class AttentionPrior:
    """Resonances of the rows of a batch: P = R, or P = 1 where all have the same.

    Attributes:
        strength_PH: lambda.
        vigilance_P1: rho.
        steepness_P1: alpha, doubled for tanh, as (1 + tanh u) / 2 is the sigmoid of 2 u.
        scale_P1: of the cosine: 1/2 with the centred gate, else 1.
        feedback_P1, rounds_P1: of the unrolled resonance.
        linear_P1: bool, is the gate piecewise linear?
        rank: of the map before the cosine, None for none.
    """

    strength_PH: Tensor
    vigilance_P1: Tensor
    steepness_P1: Tensor
    scale_P1: Tensor
    feedback_P1: Tensor
    rounds_P1: Tensor
    linear_P1: Tensor
    rank: int | None

    def compute_resonance(self, c: Tensor, spread: Broadcast) -> tuple[Tensor, Tensor]:
        """r and dr/dc of cosines c, of any shape.

        r^(t+1) = gate(alpha (c + beta r^(t) - rho)) from r^(0) = 0 (section 5), and with it
        dr^(t+1)/dc = gate' (1 + beta dr^(t)/dc).
        """
        scale, feedback, steepness = map(
            spread, (self.scale_P1, self.feedback_P1, self.steepness_P1)
        )
        base = self.compute_margin(c, spread)
        r = slope = torch.zeros_like(c)
        for t in range(int(self.rounds_P1.max())):
            u = steepness * (base + feedback * r if t else base)
            new = _either(
                self.linear_P1, spread, lambda u=u: (u + 0.5).clamp(0, 1), lambda u=u: u.sigmoid()
            )
            gain = _either(
                self.linear_P1,
                spread,
                lambda new=new: ((new > 0) & (new < 1)).to(new),
                lambda new=new: new * (1 - new),
            )
            new_slope = steepness * gain * (scale + feedback * slope if t else scale)
            going = self.rounds_P1 > t
            r, slope = (
                _either(going, spread, lambda new=new: new, lambda old=old: old)
                for new, old in ((new, r), (new_slope, slope))
            )
        return r, slope

    def compute_margin(self, c: Tensor, spread: Broadcast = lambda value: value) -> Tensor:
        """How far cosines are above vigilance, as the gate sees them."""
        scale = spread(self.scale_P1)
        return scale * c + (1 - scale - spread(self.vigilance_P1))

    def slice_rows(self, first: int, last: int) -> AttentionPrior:
        """That of the rows from `first` to before `last`."""
        if len(self.strength_PH) == 1:
            return self
        rows = {name: getattr(self, name)[first:last] for name in self._of_rows()}
        return replace(self, **rows)

    @classmethod
    def concat_rows(cls, several: Sequence[tuple[AttentionPrior, int]]) -> AttentionPrior:
        """Of the rows of several batches, each with how many those are."""
        rows = {
            name: torch.cat([getattr(p, name).expand(count, -1) for p, count in several])
            for name in cls._of_rows()
        }
        return replace(several[0][0], **rows)

    @classmethod
    def _of_rows(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "rank"]

    def __call__(self, c: Tensor, spread: Broadcast) -> tuple[Tensor, Tensor]:
        """lambda r and its derivative lambda dr/dc."""
        strength = spread(self.strength_PH)
        r, slope = self.compute_resonance(c, spread)
        return strength * r, strength * slope

    def compute_bias(self, q_RHLY: Tensor, k_RHKY: Tensor) -> Tensor:
        """lambda r (R, H, L, K) of queries and keys that come row by row."""
        c_RHLK = self.compute_cosines(q_RHLY, k_RHKY)
        return self(c_RHLK, lambda value_PH: value_PH[..., None, None])[0].to(q_RHLY.dtype)

    def compute_cosines(self, q_RHLY: Tensor, k_RHKY: Tensor) -> Tensor:
        """(R, H, L, K), after the map."""
        q_hat, k_hat = (normalize(self.project(u))[0] for u in (q_RHLY, k_RHKY))
        return q_hat @ k_hat.transpose(-1, -2)

    def project(self, u: Tensor) -> Tensor:
        """u (..., Y) after the map, (..., rank)."""
        basis = self._basis(u)
        # Under mixed precision a product comes in half; cosines stay in the precision of u.
        return u if basis is None else (u @ basis).to(u.dtype)

    def project_back(self, force: Tensor, like: Tensor) -> Tensor:
        """A force on what is narrowed as one on u, which is `like`."""
        basis = self._basis(like)
        return force if basis is None else (force @ basis.T).to(force.dtype)

    def _basis(self, u: Tensor) -> Tensor | None:
        if self.rank is None or self.rank >= u.shape[-1]:
            return None
        return orthonormal_basis(u.shape[-1])[:, : self.rank].to(u)


class ResonanceParameter(nn.Module):
    """The resonance that an attention of H heads was trained with, if with any.

    Args:
        learn: lambda is a parameter of each head, from the strength on.
    """

    strength_H: nn.Parameter | None

    def __init__(
        self,
        heads: int,
        trained: Resonance | None = None,
        learn: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.trained = heads, trained
        learned = None
        if trained is not None and learn:
            learned = nn.Parameter(torch.full((heads,), trained.strength))
        self.register_parameter("strength_H", learned)

    def forward(self, asked: Sequence[Resonance | None], like: Tensor) -> AttentionPrior | None:
        """What rows ask for, and as trained where one asks for nothing; None if none resonates.

        Args:
            like: a tensor of the type and on the device to compute with.

        Raises:
            ValueError: rows of one batch ask for different ranks.
        """
        if self.trained is None and all(a is None or a.strength == 0 for a in asked):
            return None
        silent = Resonance.model_validate({"strength": 0.0})
        different = list(asked) if len(set(asked)) > 1 else [asked[0]]
        rows = [a or self.trained or silent for a in different]
        as_learned = [a is None and self.strength_H is not None for a in different]
        if not any(as_learned) and all(row.strength == 0 for row in rows):
            return None
        sounding = zip(rows, as_learned, strict=True)
        ranks = {row.rank for row, learned in sounding if learned or row.strength != 0}
        if len(ranks) > 1:
            raise ValueError("rows of one batch must have the same rank")

        def column(values: list[float]) -> Tensor:
            return like.new_tensor(values)[:, None]

        strength_PH = column([row.strength for row in rows]).repeat(1, self.heads)
        if self.strength_H is not None and any(as_learned):
            which_P1 = torch.tensor(as_learned, device=like.device)[:, None]
            strength_PH = torch.where(which_P1, self.strength_H.to(like), strength_PH)
        return AttentionPrior(
            strength_PH,
            vigilance_P1=column([row.vigilance for row in rows]),
            steepness_P1=column([row.sharpness * (1 + (row.gate == "tanh")) for row in rows]),
            scale_P1=column([0.5 if row.gate == "centred" else 1.0 for row in rows]),
            feedback_P1=column([row.feedback for row in rows]),
            rounds_P1=column([row.unroll if row.feedback else 1 for row in rows]),
            linear_P1=column([row.gate == "piecewise-linear" for row in rows]).bool(),
            rank=next(iter(ranks), None),
        )


def normalize(u: Tensor) -> tuple[Tensor, Tensor]:
    """u / |u| along the last axis, and |u|, which 1e-6 keeps from 0: there u / |u| is 0."""
    length = u.pow(2).sum(-1, keepdim=True).add(1e-12).sqrt()
    return u / length, length


def normalize_backward(force: Tensor, u_hat: Tensor, length: Tensor) -> Tensor:
    """Pull a force on u/|u| back to u: (I - u u^T/|u|^2)/|u| (DAR section 4)."""
    along = (force * u_hat).sum(-1, keepdim=True)
    return torch.addcmul(force, u_hat, along, value=-1) / length


@cache
@torch.inference_mode(False)  # who asks next may want gradients
def orthonormal_basis(width: int) -> Tensor:
    """A fixed orthonormal basis (width, width), float64; its first r columns are the map to r."""
    drawn = torch.randn(
        width, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64
    )
    q, r = torch.linalg.qr(drawn)
    return q * r.diagonal().sign()


def _either(
    which_P1: Tensor, spread: Broadcast, yes: Callable[[], Tensor], no: Callable[[], Tensor]
) -> Tensor:
    """`yes` where `which_P1` holds, else `no`; only one is computed where one holds for all."""
    if which_P1.all():
        return yes()
    return torch.where(spread(which_P1), yes(), no()) if which_P1.any() else no()
