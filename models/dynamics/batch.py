"""Relaxations on one energy that take their steps as one batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from models.dynamics.relaxation import Relaxation, RowParams, StopReason, TracePoint
from models.energies import Terms

_OF_ROWS = (
    "evaluated_R",
    "steps_R",
    "residual_R",
    "squared_norm_R",
    "control_work_R",
    "energy_R",
    "rose_R",
    "momentum_steps_R",
    "step_scale_R",
)
_IDLE = 8  # compact once one row in eight has stopped


def batch_key(relaxation: Relaxation) -> Hashable | None:
    """Relaxations of equal company can step together; one of None, as where it is watched, steps
    alone. Where steps are shortened others would have to wait, so these are by themselves."""
    kind = relaxation.layout.kind
    alone = kind is None or relaxation.on_step is not None
    descends = bool(relaxation.params.descent_R.any())
    system = id(relaxation.system.energy)
    return None if alone else (system, kind, relaxation.x_ND.dtype, descends)


def should_compact(relaxation: Relaxation) -> bool:
    """Whether enough rows have stopped, or all, that the others should be compacted."""
    return _IDLE * (relaxation.rows - len(relaxation.moving_rows)) >= relaxation.rows


@dataclass
class _Place:
    """Which rows of a relaxation are in the batch, and where.

    `past` holds the moments of former batches, and where the same rows were in those.
    """

    relaxation: Relaxation
    rows: list[int]
    at: slice
    tokens: slice
    past: list[tuple[list[TracePoint], slice]] = field(default_factory=list)


@final
class RelaxationBatch:
    """Relaxations that join between two steps, and leave as soon as none of their rows moves.

    Rows that have stopped are dropped from the batch when another joins, or once they are an eighth
    of it. What comes of a row does not depend on the others, but for how sums are rounded.
    """

    def __init__(self) -> None:
        self._new: list[Relaxation] = []
        self._places: list[_Place] = []
        self._batch: Relaxation | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._places)

    @property
    def num_tokens(self) -> int:
        """Of all that relax here."""
        return sum(len(relaxation.x_ND) for relaxation in self.members)

    @property
    def members(self) -> list[Relaxation]:
        return [*(place.relaxation for place in self._places), *self._new]

    def add(self, relaxation: Relaxation) -> None:
        self._new.append(relaxation)

    def remove(self, relaxation: Relaxation) -> None:
        """It keeps the state that it has come to."""
        if relaxation in self._new:
            self._new.remove(relaxation)
            return
        (place,) = [place for place in self._places if place.relaxation is relaxation]
        assert self._batch is not None
        _take(place, self._batch)
        self._places.remove(place)
        for row in range(place.at.start, place.at.stop):
            self._batch.stop_reasons[row] = StopReason.CANCELLED

    def step(self) -> list[Relaxation]:
        """Move every row that still moves, once. Those whose rows have all stopped have left."""
        batch = self._batch
        if batch is None or self._new or should_compact(batch):
            batch = self._regroup()
        batch.step()
        over = [place for place in self._places if all(batch.stop_reasons[place.at])]
        for place in over:
            self._places.remove(place)
            _take(place, batch)
        if not self._places:
            self._batch = None
        return [place.relaxation for place in over]

    def _regroup(self) -> Relaxation:
        """A batch of the rows that still move, and of those that are new.

        Nothing has changed where there is no room for it.
        """
        old, parts = self._batch, list[Relaxation]()
        places, stopped = list[_Place](), list[_Place]()
        rows = tokens = 0

        def placed(relaxation: Relaxation, which: list[int], length: int) -> _Place:
            nonlocal rows, tokens
            at = slice(rows, rows + len(which)), slice(tokens, tokens + length)
            rows, tokens = at[0].stop, at[1].stop
            places.append(_Place(relaxation, which, *at))
            return places[-1]

        if old is not None:
            lengths = torch.bincount(old.layout.row_of_N, minlength=old.rows).tolist()
            kept: list[int] = []
            for place in self._places:
                there = range(place.at.start, place.at.stop)
                moving = [row for row in there if old.stop_reasons[row] is None]
                which = [place.rows[row - place.at.start] for row in moving]
                again = placed(place.relaxation, which, sum(lengths[row] for row in moving))
                if len(moving) < len(there):
                    stopped.append(place)
                else:
                    again.past = [*place.past, (old.trace, place.at)]
                kept += moving
            parts = [_part(old, *run) for run in _runs(kept)]
        for relaxation in self._new:
            placed(relaxation, list(range(relaxation.rows)), len(relaxation.x_ND))
            parts.append(_part(relaxation, 0, relaxation.rows))
        batch = parts[0] if len(parts) == 1 else _joined(parts)
        if old is not None:
            for place in stopped:
                _take(place, old)
        self._batch, self._places, self._new = batch, places, []
        return batch


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges."""
    ends = [place for place, (a, b) in enumerate(pairwise(rows), 1) if b != a + 1]
    bounds = pairwise([0, *ends, len(rows)]) if rows else ()
    return [(rows[start], rows[stop - 1] + 1) for start, stop in bounds]


def _part(whole: Relaxation, first: int, last: int) -> Relaxation:
    """Some rows of a relaxation as one of their own, from here on."""
    rows, terms, layout, params = slice(first, last), whole.terms, whole.layout, whole.params

    def of_tokens(of_N: Tensor) -> Tensor:
        return of_N

    if last - first < whole.rows:
        ends = torch.tensor([first, last], device=layout.row_of_N.device)
        tokens = slice(*torch.searchsorted(layout.row_of_N, ends).tolist())
        layout, params = layout.part(first, last), _params([params], rows)

        def of_tokens(of_N: Tensor) -> Tensor:
            return of_N[tokens]

    return Relaxation(
        whole.system,
        layout,
        params,
        of_tokens(whole.x_ND),
        of_tokens(whole.g_ND),
        Terms(
            {name: of_tokens(part_N) for name, part_N in terms.parts.items()},
            None if terms.force_ND is None else of_tokens(terms.force_ND),
        ),
        **{name: getattr(whole, name)[rows] for name in _OF_ROWS},
        gradient_step_ND=None
        if whole.gradient_step_ND is None
        else of_tokens(whole.gradient_step_ND),
        noise_generators=whole.noise_generators[rows],
        stop_reasons=whole.stop_reasons[rows],
    )


def _joined(parts: Sequence[Relaxation]) -> Relaxation:
    """The rows of several as one."""

    def cat(name: str) -> Any:
        return _cat([getattr(part, name) for part in parts])

    first = parts[0]
    names = dict.fromkeys(name for part in parts for name in part.terms.parts)
    forces = [part.terms.force_ND for part in parts if part.terms.force_ND is not None]
    return Relaxation(
        first.system,
        first.layout.joined([part.layout for part in parts[1:]]),
        _params([part.params for part in parts]),
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
        **{name: cat(name) for name in _OF_ROWS},
        gradient_step_ND=_cat(
            [
                part.x_ND if part.gradient_step_ND is None else part.gradient_step_ND
                for part in parts
            ]
        )
        if any(part.gradient_step_ND is not None for part in parts)
        else None,
        noise_generators=[generator for part in parts for generator in part.noise_generators],
        stop_reasons=[reason for part in parts for reason in part.stop_reasons],
    )


def _params(several: Sequence[RowParams], rows: slice = slice(None)) -> RowParams:
    """Of all rows, or of some."""
    arrays = [field.name for field in fields(RowParams) if field.name != "seeds"]
    return RowParams(
        **{name: _cat([getattr(params, name)[rows] for params in several]) for name in arrays},
        seeds=tuple(seed for params in several for seed in params.seeds[rows]),
    )


def _cat(several: Sequence[Any]) -> Any:
    """Tensors, or arrays, one after the other."""
    if isinstance(several[0], Tensor):
        return torch.cat(list(several))
    return np.concatenate(several)


def _take(place: _Place, batch: Relaxation) -> None:
    """What became of the rows of a relaxation in `batch`, and all its moments so far."""
    whole, rows, tokens = place.relaxation, place.at, place.tokens
    every = len(place.rows) == whole.rows
    row_of_N = whole.layout.row_of_N
    moving_r = torch.tensor(place.rows, device=row_of_N.device)
    moving_n = moving_r if every else torch.isin(row_of_N, moving_r).nonzero()[:, 0]

    def of_rows(old_R: np.ndarray, new_r: np.ndarray, at: slice = rows) -> np.ndarray:
        if every:
            return new_r[at]
        found_R = old_R.copy()
        found_R[place.rows] = new_r[at]
        return found_R

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
    if batch.gradient_step_ND is not None:
        before_ND = whole.x_ND if whole.gradient_step_ND is None else whole.gradient_step_ND
        whole.gradient_step_ND = of_tokens(before_ND, batch.gradient_step_ND)
    for name in _OF_ROWS:
        setattr(whole, name, of_rows(getattr(whole, name), getattr(batch, name)))
    for row, reason in zip(place.rows, batch.stop_reasons[rows], strict=True):
        whole.stop_reasons[row] = reason
    for trace, at in [*place.past, (batch.trace, place.at)]:
        for moment in trace:
            last = whole.trace[-1] if whole.trace else moment
            components = moment.components.items()
            storage_R = moment.storage_R
            if storage_R is not None and last.storage_R is not None:
                storage_R = of_rows(last.storage_R, storage_R, at)
            whole.trace.append(
                TracePoint(
                    len(whole.trace),
                    of_rows(last.energy_R, moment.energy_R, at),
                    {
                        name: of_rows(last.components[name], part_R, at)
                        for name, part_R in components
                    },
                    storage_R,
                )
            )
