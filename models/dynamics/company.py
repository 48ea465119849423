"""Relaxations on one energy that take their steps as one batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
from torch import Tensor

from models.dynamics.relaxation import Moment, Relaxation, RowKnobs
from models.energies import Terms

_IDLE = 4  # one in so many rows may have stopped before the others close ranks


def company_of(relaxation: Relaxation) -> Hashable | None:
    """Relaxations of equal company can step together; one of None, as where it is watched, steps
    alone."""
    kind = relaxation.layout.kind
    alone = kind is None or relaxation.watch is not None
    return None if alone else (id(relaxation.system.energy), kind, relaxation.x_ND.dtype)


@dataclass(frozen=True)
class _Place:
    """Where the rows of a relaxation that moved when the batch was formed are in it."""

    relaxation: Relaxation
    moving: list[int]
    rows: slice
    tokens: slice


@final
class Company:
    """Relaxations that join between two steps, and leave as soon as none of their rows moves.

    Rows that have stopped are dropped from the batch once they are a fourth of it. What comes of a
    row does not depend on the others, but for how sums are rounded.
    """

    def __init__(self) -> None:
        self._members: list[Relaxation] = []
        self._batch: Relaxation | None = None
        self._places: list[_Place] = []

    def __len__(self) -> int:
        return len(self._members)

    @property
    def tokens(self) -> int:
        """Of all that relax here."""
        return sum(len(member.x_ND) for member in self._members)

    def join(self, relaxation: Relaxation) -> None:
        self._disperse()
        self._members.append(relaxation)

    def leave(self, relaxation: Relaxation) -> None:
        """It keeps the state that it has come to."""
        self._disperse()
        self._members.remove(relaxation)

    def step(self) -> list[Relaxation]:
        """Move every row that still moves, once. Those whose rows have all stopped have left."""
        batch = self._batch or self._form()
        batch.step()
        over = [place.relaxation for place in self._places if all(batch.reasons[place.rows])]
        stopped = batch.rows - len(batch.moving)
        if over or _IDLE * stopped >= batch.rows:
            self._disperse()
        self._members = [member for member in self._members if member not in over]
        return over

    def _form(self) -> Relaxation:
        """One batch of all rows that move."""
        parts: list[Relaxation] = []
        rows = tokens = 0
        for member in self._members:
            moving = member.moving
            mine = [_part(member, *run) for run in _runs(moving)]
            width = sum(part.rows for part in mine), sum(len(part.x_ND) for part in mine)
            at = slice(rows, rows + width[0]), slice(tokens, tokens + width[1])
            self._places.append(_Place(member, moving, *at))
            rows, tokens = at[0].stop, at[1].stop
            parts += mine
        self._batch = parts[0] if len(parts) == 1 else _joined(parts)
        return self._batch

    def _disperse(self) -> None:
        """Every relaxation takes back its rows."""
        batch, places, self._batch, self._places = self._batch, self._places, None, []
        for place in places:
            if batch is not None and batch is not place.relaxation:
                _take(place, batch)


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(np.asarray(rows), breaks)]


def _part(whole: Relaxation, first: int, last: int) -> Relaxation:
    """Some rows of a relaxation as one of their own, from here on."""
    if last - first == whole.rows:
        return whole
    rows, terms = slice(first, last), whole.terms
    row_of_N = whole.layout.row_of_N
    tokens = (row_of_N >= first) & (row_of_N < last)
    return Relaxation(
        whole.system,
        whole.layout.part(first, last),
        _knobs([whole.knobs], rows),
        whole.x_ND[tokens],
        whole.g_ND[tokens],
        Terms(
            {name: part_N[tokens] for name, part_N in terms.parts.items()},
            None if terms.force_ND is None else terms.force_ND[tokens],
        ),
        whole.begun_R[rows],
        whole.steps_R[rows],
        whole.residual_R[rows],
        whole.work_R[rows],
        whole.generators[rows],
        whole.reasons[rows],
    )


def _joined(parts: Sequence[Relaxation]) -> Relaxation:
    """The rows of several, all of which move, as one."""

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    first = parts[0]
    names = dict.fromkeys(name for part in parts for name in part.terms.parts)
    forces = [part.terms.force_ND for part in parts if part.terms.force_ND is not None]
    return Relaxation(
        first.system,
        first.layout.joined([part.layout for part in parts[1:]]),
        _knobs([part.knobs for part in parts]),
        cat("x_ND"),
        cat("g_ND"),
        Terms(
            {
                # Rows that have not begun have no energy yet.
                name: torch.cat([p.terms.parts.get(name, p.x_ND[:, 0] * 0) for p in parts])
                for name in names
            },
            torch.cat(forces),
        ),
        cat("begun_R"),
        cat("steps_R"),
        cat("residual_R"),
        cat("work_R"),
        [generator for part in parts for generator in part.generators],
        [reason for part in parts for reason in part.reasons],
    )


def _knobs(several: Sequence[RowKnobs], rows: slice = slice(None)) -> RowKnobs:
    """Of all rows, or of some."""
    tensors = [field.name for field in fields(RowKnobs) if field.name != "seeds"]
    return RowKnobs(
        **{name: torch.cat([getattr(knobs, name)[rows] for knobs in several]) for name in tensors},
        seeds=tuple(seed for knobs in several for seed in knobs.seeds[rows]),
    )


def _take(place: _Place, batch: Relaxation) -> None:
    """What became of the rows of a relaxation in `batch`, and all its moments there."""
    whole, rows, tokens = place.relaxation, place.rows, place.tokens
    moving_r = torch.tensor(place.moving, device=whole.x_ND.device)
    every = len(place.moving) == whole.rows
    moving_n = moving_r if every else torch.isin(whole.layout.row_of_N, moving_r).nonzero()[:, 0]

    def of_rows(old_R: Tensor, new_r: Tensor) -> Tensor:
        return new_r[rows] if every else old_R.index_copy(0, moving_r, new_r[rows])

    def of_tokens(old_N: Tensor, new_n: Tensor) -> Tensor:
        return new_n[tokens] if every else old_N.index_copy(0, moving_n, new_n[tokens])

    parts, old = batch.terms.parts.items(), whole.terms
    whole.x_ND = of_tokens(whole.x_ND, batch.x_ND)
    whole.g_ND = of_tokens(whole.g_ND, batch.g_ND)
    force_ND = batch.terms.force_ND
    if force_ND is not None and old.force_ND is not None:
        force_ND = of_tokens(old.force_ND, force_ND)
    whole.terms = Terms(
        {name: of_tokens(old.parts.get(name, part_N), part_N) for name, part_N in parts}, force_ND
    )
    whole.begun_R = of_rows(whole.begun_R, batch.begun_R)
    whole.steps_R = of_rows(whole.steps_R, batch.steps_R)
    whole.residual_R = of_rows(whole.residual_R, batch.residual_R)
    whole.work_R = of_rows(whole.work_R, batch.work_R)
    for row, reason in zip(place.moving, batch.reasons[rows], strict=True):
        whole.reasons[row] = reason
    for moment in batch.trace:
        last = whole.trace[-1] if whole.trace else moment
        components = moment.components.items()
        storage_R = moment.storage_R
        if storage_R is not None and last.storage_R is not None:
            storage_R = of_rows(last.storage_R, storage_R)
        whole.trace.append(
            Moment(
                len(whole.trace),
                of_rows(last.energy_R, moment.energy_R),
                {name: of_rows(last.components[name], part_R) for name, part_R in components},
                storage_R,
            )
        )
