"""What the checkpoints of every task have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from models.base import Architecture, DynamicsParams
from models.checkpoint import read_trained_params
from models.inputs.graph import Column
from models.manifest import EnergyReference, Feature, Manifest
from training.datasets import Split
from training.trainer import TrainConfig, TrainResult, to_json_types

_AT_A_TIME = 64


class Data(Protocol):
    """What a manifest tells of a dataset."""

    @property
    def name(self) -> str: ...
    @property
    def note(self) -> str: ...


class Run(Protocol):
    """What a manifest tells of a run."""

    @property
    def result(self) -> TrainResult: ...
    @property
    def train_config(self) -> TrainConfig: ...


def build_manifest(
    network: Architecture,
    data: Data,
    split: Split,
    run: Run,
    *,
    name: str,
    seed: int,
    unit: str,
    fingerprint: str,
    protocol: str,
    **particular: Any,
) -> Manifest:
    """The manifest of `network`, trained on `data` by `run`; `unit` is what a split is of.

    `particular` are the fields that are the task's own, features, energy and metrics among them.
    """
    return Manifest(
        name=name,
        version="1",
        architecture=network.name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=read_trained_params(network),
        training={
            "dataset": data.name,
            "note": data.note,
            "split": split.name,
            **{f"{part}_{unit}": len(items) for part, items in split.parts().items()},
            "data_sha256": fingerprint,
            "seed": seed,
            "epoch": to_json_types(run.result.best_epoch),
            "precision": run.result.precision,
            "recipe": to_json_types(asdict(run.train_config)),
            "protocol": protocol,
        },
        **particular,
    )


def describe_columns(
    columns: Sequence[Column], values_of_each: Iterable[np.ndarray]
) -> tuple[Feature, ...]:
    """What each column held in the data."""
    return tuple(
        Feature(
            name=column.name,
            minimum=float(values.min()),
            maximum=float(values.max()),
            mean=float(values.mean(dtype="float64")),
            values=column.values,
        )
        for column, values in zip(columns, values_of_each, strict=True)
    )


def compute_energy_reference(
    network: Architecture, examples: Sequence[Any], tokens: Sequence[int] | int
) -> EnergyReference:
    """Quantiles of the final energy per token, summed over the blocks."""
    totals: list[np.ndarray] = []
    for start in range(0, len(examples), _AT_A_TIME):
        part = examples[start : start + _AT_A_TIME]
        output = network.infer(network.pack(part), [DynamicsParams()] * len(part))
        totals.append(np.sum([s.trace[-1].energy_R for s in output.solutions], 0))
    return energy_quantiles(np.concatenate(totals, dtype=np.float64) / tokens)


def energy_quantiles(energies: Sequence[float] | np.ndarray) -> EnergyReference:
    """A reference of a hundred steps."""
    levels = np.linspace(0, 1, 101)
    return EnergyReference(
        levels=tuple(levels.tolist()), values=tuple(np.quantile(energies, levels).tolist())
    )
