"""Looks and moves of `models.fused.kernels`, for tokens that see each other along edges, or all."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, final

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from models.base import Block
from models.dynamics import (
    ControlledDynamics,
    Descent,
    EnergyLayerNorm,
    Evaluation,
    PreviousStep,
    StepBackend,
)
from models.energies import DotProductAttention, Hopfield, Terms, VonMisesFisherAttention
from models.fused import kernels, parallel
from models.layouts import Dense, EdgeList, Layout

_KINDS = {
    "relu": kernels.RELU,
    "relu2": kernels.RELU2,
    "power": kernels.POWER,
    "softmax": kernels.SOFTMAX,
}
_MUCH = 1 << 27
"""Multiply-adds of one evaluation above which all of torch's threads are used."""
_LITTLE = 1 << 23
"""The same limit for images where there are several threads: torch's wait less for each other."""
_force_parallel = ContextVar("force_parallel", default=False)
_NARROW = 1 << 17
"""Number of weights that stay in the cache; above it, without edges, other products are faster."""
_Given = tuple[Any, ...] | None


@final
@dataclass(frozen=True)
class FusedSystem(StepBackend):
    """A system of which a look is one call on the edges of graphs and on small images, as is a
    move.

    Attributes:
        other: looks and moves where this does not: on other layouts and devices, in other
            precision, and where something resonates.
        normed, attention, memory, controls: weights, as `models.fused.kernels` takes them.
    """

    other: StepBackend
    normed: tuple[Any, ...]
    attention: _Given
    memory: _Given
    controls: _Given

    @property
    def runtime(self) -> str:
        """Of the other; where this looks, products are SciPy's BLAS's."""
        return self.other.runtime

    @classmethod
    @torch.no_grad()
    def of_block(cls, block: Block, other: StepBackend) -> StepBackend:
        """`other` itself where the block has parts that are not known here."""
        norm, motion, attention, memory = block.norm, block.motion, None, None
        for weight, leaf in block.energy.leaves():
            if isinstance(leaf, DotProductAttention | VonMisesFisherAttention) and not attention:
                ends = leaf.feature_directions().unflatten(0, (2, -1))
                spherical = isinstance(leaf, VonMisesFisherAttention)
                attention = *_weighed(ends, weight), spherical, leaf.heads
            elif isinstance(leaf, Hopfield) and not memory:
                sharpness = _scalar(leaf.log_sharpness.exp())
                memory = *_weighed(leaf.memories_MD, weight), _KINDS[leaf.kind], sharpness
            else:
                return other
        if not isinstance(norm, EnergyLayerNorm) or not isinstance(
            motion, Descent | ControlledDynamics
        ):
            return other
        _one_thread()
        normed = (
            _scalar(norm.log_gamma.exp()),
            _array(norm.delta_D),
            _scalar(norm.delta_D, norm.eps),
        )
        controls = None
        if isinstance(motion, ControlledDynamics):
            prior = None if motion.prior_DD is None else _array(motion.prior_DD)
            held = _scalar(1 + motion.omega), _array(motion.basis_rD), _array(motion.strength_r)
            controls = *held, prior
        system = other.energy, other.motion, other.norm, other.energy_fn, other
        return cls(*system, normed, attention, memory, controls)

    def evaluate(
        self, x_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[Tensor, Terms]:
        return self.other.evaluate(x_ND, layout, beta_RH, with_force)

    def evaluate_with_stats(
        self,
        x_ND: Tensor,
        layout: Layout,
        beta_RH: Tensor,
        with_force: bool,
        previous: PreviousStep | None,
    ) -> Evaluation:
        if not self.takes(x_ND, layout):
            return self.other.evaluate_with_stats(x_ND, layout, beta_RH, with_force, previous)
        assert isinstance(layout, EdgeList | Dense)
        x = _numpy(x_ND)
        g, force, held = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        parts, sums = np.empty((2, len(x)), x.dtype), np.zeros((5, layout.rows))
        drift = before = g_before = x
        if previous is not None:
            drift, g_before = _numpy(previous.drift_ND), _numpy(previous.g_ND)
            before = x if previous.control_ND is None else _numpy(previous.control_ND)
        threads = torch.get_num_threads()
        if threads > 1 and self._work(x_ND, layout) <= _MUCH:
            threads = 1
        whole = threads == 1 and not _force_parallel.get()
        scratch = _SCRATCH.take(self._room(len(x)), x.dtype)
        see = kernels.evaluate_with_stats if whole else partial(parallel.see_in_parts, threads)
        see(
            (x, layout.row_of_N.numpy(), _numpy(beta_RH)),
            *_between(layout, x_ND, whole),
            self.normed,
            self.attention,
            self.memory,
            self.controls,
            with_force,
            previous is not None,
            (drift, before, g_before),
            (g, parts, force, scratch, held, sums),
        )
        _SCRATCH.give_back(scratch)
        there = ("attention", self.attention, 0), ("hopfield", self.memory, 1)
        names = {name: place for name, weights, place in there if weights is not None}
        given = torch.from_numpy
        return Evaluation(
            given(g),
            Terms(
                {name: given(parts[place]) for name, place in names.items()},
                given(force) if with_force else None,
            ),
            None if self.controls is None else given(held),
            {name: sums[place] for name, place in names.items()},
            sums[2],
            None if previous is None else sums[3],
            None if previous is None or self.controls is None else sums[4],
        )

    def step(
        self,
        x_ND: Tensor,
        layout: Layout,
        step_size_R: Tensor,
        force_ND: Tensor,
        control_ND: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if not self.takes(x_ND, layout):
            return self.other.step(x_ND, layout, step_size_R, force_ND, control_ND)
        x, force = _numpy(x_ND), _numpy(force_ND)
        held = x if control_ND is None else _numpy(control_ND)
        moved, drift = np.empty_like(x), np.empty_like(x)
        rows = layout.row_of_N.numpy(), _numpy(step_size_R)
        kernels.move(x, *rows, force, control_ND is not None, held, moved, drift)
        return torch.from_numpy(moved), torch.from_numpy(drift)

    def _room(self, nodes: int) -> int:
        if self.attention is None:
            return 0
        return kernels.room_for(nodes, self.attention[4], self.attention[1].shape[1])

    def takes(self, x_ND: Tensor, layout: Layout) -> bool:
        """Edges, or all of a row of few weights, without a prior, of the weights' precision, on the
        CPU; of images few and many, see `_LITTLE`."""
        delta = self.normed[1]
        if not isinstance(layout, EdgeList | Dense) or layout.prior is not None:
            return False
        if x_ND.device.type != "cpu" or x_ND.dtype != _DTYPES[delta.dtype]:
            return False
        if isinstance(layout, EdgeList):
            return True
        if self._up > _NARROW or layout.weighs:
            return False
        one = torch.get_num_threads() == 1
        return one or not _LITTLE < self._work(x_ND, layout) <= _MUCH

    @property
    def _up(self) -> int:
        """Weights of queries, keys and memories."""
        return sum(weights[0].size for weights in (self.attention, self.memory) if weights)

    def _work(self, x_ND: Tensor, layout: EdgeList | Dense) -> int:
        """Multiply-adds of a look."""
        pairs = layout.num_edges if isinstance(layout, EdgeList) else len(x_ND) * layout.length
        along = 0 if self.attention is None else 3 * self.attention[1].shape[1]
        return 2 * len(x_ND) * self._up + pairs * along


@contextmanager
def force_parallel_path() -> Iterator[None]:
    """Force the parallel path for small inputs, so that it is compiled at start-up.

    It still runs on one thread: no further thread is started.
    """
    token = _force_parallel.set(True)
    try:
        yield
    finally:
        _force_parallel.reset(token)


def _between(layout: EdgeList | Dense, x_ND: Tensor, whole: bool) -> tuple[Any, Any, Any, Any]:
    """Edges, pairs, weights and biases of `kernels.look`, or where not `whole` of what looks in
    parts."""
    if isinstance(layout, Dense):
        hidden = layout.hidden_rLL
        return None, (layout.length, _like(x_ND, hidden)), None, None
    edges = layout.indptr_N1, layout.indices_E
    if not whole:
        edges = *edges, layout.t_indptr_N1, layout.t_indices_E, layout.t_edge_E
    weight, bias = _like(x_ND, layout.weight_EH), _like(x_ND, layout.bias_EH)
    return tuple(each.numpy() for each in edges), None, weight, bias


@final
class _Scratch:
    """Memory of one look for the next: fresh pages would take a quarter of the time on large
    graphs. The largest is not kept."""

    _MOST = 1 << 26  # bytes
    _LINE = 64  # of the cache: what begins within one is read in two

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # one, or of several threads a few

    def take(self, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """(`count`,), of whatever is in it."""
        size = count * dtype.itemsize
        try:
            kept = self._free.pop()
        except IndexError:
            kept = self._fresh(size)
        if kept.nbytes < size:
            kept = self._fresh(size)
        return kept[: len(kept) - len(kept) % dtype.itemsize].view(dtype)

    def _fresh(self, size: int) -> np.ndarray:
        whole = np.empty(size + self._LINE, np.uint8)
        first = -whole.ctypes.data % self._LINE
        return whole[first : first + size]

    def give_back(self, taken: np.ndarray) -> None:
        if 0 < taken.nbytes <= self._MOST and not self._free:
            self._free.append(taken.view(np.uint8))


_SCRATCH = _Scratch()
_DTYPES = {np.dtype("float32"): torch.float32, np.dtype("float64"): torch.float64}


def _array(of: Tensor) -> np.ndarray:
    """A copy, in C order."""
    return of.detach().cpu().numpy().copy()


def _scalar(of: Tensor, value: float | None = None) -> Any:
    """`of`, or a value of its precision."""
    array = of.detach().cpu().numpy()
    return array.dtype.type(array if value is None else value)


def _weighed(of: Tensor, weight: Tensor | float) -> tuple[np.ndarray, np.ndarray, Any]:
    """It, turned; it, as often as it weighs; and what that is."""
    return _array(of.mT), _array(weight * of), _scalar(of, float(weight))


def _numpy(of: Tensor) -> np.ndarray:
    return of.contiguous().numpy()


def _like(x_ND: Tensor, pairs_EH: Tensor | None) -> np.ndarray | None:
    return None if pairs_EH is None else _numpy(pairs_EH.to(x_ND.dtype))


@cache
def _one_thread() -> None:
    """Of the BLAS that numba calls: threads of its own would be in the way of others."""
    importlib.import_module("scipy.linalg.cython_blas")  # numba's, which else is loaded later
    ThreadpoolController().limit(limits=1, user_api="blas")
