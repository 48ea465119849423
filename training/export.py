"""What manifests of every kind have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.checkpoint import EnergyReference, Feature
from models.graph import Column


def describe(columns: Sequence[Column], table: np.ndarray) -> tuple[Feature, ...]:
    """What each column held in the data."""
    return tuple(
        Feature(
            name=column.name,
            minimum=float(values.min()),
            maximum=float(values.max()),
            mean=float(values.mean(dtype="float64")),
            values=column.values,
        )
        for column, values in zip(columns, table.T, strict=True)
    )


def quantiles(energies: Sequence[float]) -> EnergyReference:
    """A reference of a hundred steps."""
    levels = np.linspace(0, 1, 101)
    return EnergyReference(
        levels=tuple(levels.tolist()), values=tuple(np.quantile(energies, levels).tolist())
    )
