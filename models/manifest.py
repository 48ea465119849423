"""The manifest of a checkpoint: everything about it but its weights, as manifest.json."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from models.inputs.transactions.recipe import TransactionRecipe
from models.manifest_digest import has_intact_digest
from models.resonance import ResolvedResonance

MANIFEST = "manifest.json"
_MAX_BYTES = 4 << 20
_LOG = logging.getLogger(__name__)


class CheckpointError(Exception):
    """The folder is not a checkpoint this version can trust; the message says why."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Feature(_Part):
    """One feature as the network was trained to see it; `values` where it is a category."""

    name: str
    minimum: float
    maximum: float
    mean: float
    values: tuple[str, ...] | None = None


class Calibration(_Part):
    """probability = 1 / (1 + exp(-slope * logit - intercept)), Platt 1999, from validation."""

    slope: float
    intercept: float

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities, float64, of raw logits."""
        z = self.slope * np.asarray(logits, dtype=np.float64) + self.intercept
        return 0.5 * (1 + np.tanh(z / 2))


def find_budget_threshold(probabilities: np.ndarray, count: int) -> float | None:
    """Return the lowest of the `count` highest probabilities, so that at most `count` reach it.

    Equal probabilities all reach a threshold or none: fewer do where more than `count` are equal;
    None where that leaves none.
    """
    ranked = np.sort(probabilities)[::-1]
    if count >= len(ranked):
        return float(ranked[-1])
    above = ranked[:count][ranked[:count] > ranked[count]]
    return float(above[-1]) if len(above) else None


_CENTRAL = (0.5, 99.5)
"""Percentiles that are nothing to speak of, in percent; docs/out-of-distribution.md says why."""


class HiddenReference(_Part):
    """Quantiles as above of images of which this share is hidden: of patches, or of pixels."""

    share: float = Field(ge=0, le=1)
    values: tuple[float, ...]


class DegreeReference(_Part):
    """Quantiles of the energy of graphs with this mean log degree."""

    log_degree: float = Field(ge=0, description="mean of log(1 + degree), summed over relations")
    values: tuple[float, ...]


class EnergyReference(_Part):
    """Quantiles of the final energy per node or token: of inputs like those of the training.

    The energy of an image with holes says above all how much of it is hidden, and that of a graph
    how many neighbours its nodes have, so there are those of several shares or degrees too.
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]
    by_hidden: tuple[HiddenReference, ...] = Field(
        default=(), description="in order of their shares"
    )
    by_degree: tuple[DegreeReference, ...] = Field(
        default=(), description="in order of their degrees; graphs whose nodes are scored"
    )

    def percentile(self, energy_per_node: float, given: float | None = None) -> float:
        """Share of the training's with lower energy, in percent.

        Args:
            given: the share that is hidden, or the mean log degree. The energy is compared with
                those of inputs with the same, interpolated between the two references around it;
                below the first and above the last reference with that one.
        """
        has_some = bool(self.by_hidden or self.by_degree)
        values = self._between(given) if has_some and given is not None else self.values
        return 100 * float(np.interp(energy_per_node, values, self.levels))

    def _between(self, given: float) -> np.ndarray:
        given_S, values_SQ = self._table
        above = int(np.clip(np.searchsorted(given_S, given), 1, len(given_S) - 1))
        low, high = given_S[above - 1], given_S[above]
        weight = float(np.clip((given - low) / (high - low), 0, 1))
        return (1 - weight) * values_SQ[above - 1] + weight * values_SQ[above]

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        given = [part.share for part in self.by_hidden]
        given += [part.log_degree for part in self.by_degree]
        return np.array(given), np.array([part.values for part in self._parts])

    @property
    def _parts(self) -> tuple[HiddenReference | DegreeReference, ...]:
        return *self.by_hidden, *self.by_degree

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if {len(values) for values in (self.values, *(p.values for p in self._parts))} != {
            len(self.levels)
        }:
            raise ValueError("each level has one value")
        for name, given in (
            ("by_hidden", [part.share for part in self.by_hidden]),
            ("by_degree", [part.log_degree for part in self.by_degree]),
        ):
            if len(given) == 1 or given != sorted({*given}):
                raise ValueError(f"{name} must be in order, and two or more")
        if self.by_hidden and self.by_degree:
            raise ValueError("there are references by_hidden or by_degree, not both")
        return self

    @staticmethod
    def out_of_distribution(percentile: float) -> bool:
        """Is it outside the central 99 %? Of rows like the training's one in a hundred is."""
        return not _CENTRAL[0] <= percentile <= _CENTRAL[1]


class NeighborhoodDefaults(_Part):
    """How much of a stored graph is read to score some of its nodes, unless a request says.

    Chosen on the graph of the training: nodes get the label that all of it gives them.
    """

    hops: int = Field(ge=0, description="edges between a target and the farthest node, either way")
    max_neighbors: int = Field(ge=1, description="neighbours that are followed of each node")
    labels_equal: float = Field(
        ge=0, le=1, description="share of nodes with the label that the whole graph gives them"
    )
    nodes: int = Field(ge=1, description="nodes that this was measured on")
    energy: EnergyReference = Field(description="of neighbourhoods of nodes to train on")


class TrainedKnobs(_Part):
    """The dynamics the network was trained with; `beta` per block and head."""

    steps: int
    step_size: float
    beta: tuple[tuple[float, ...], ...]
    resonance: ResolvedResonance | None = None


class DailyScores(_Part):
    """The highest probabilities of a day, on average over the validation part."""

    inputs: float = Field(gt=0, description="of a day, labelled or not")
    ranks: tuple[float, ...] = Field(
        min_length=1, description="places in order, ascending; of equal inputs the last one"
    )
    probabilities: tuple[float, ...] = Field(description="at these places, descending")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if len(self.ranks) != len(self.probabilities):
            raise ValueError("daily: ranks and probabilities differ in length")
        return self

    def find_threshold(self, alerts: float) -> float:
        """Return the probability that no more than `alerts` inputs of a day reach, on average;
        interpolated between places. Above all of them where already the first is more often."""
        if alerts < self.ranks[0]:
            return float(np.nextafter(self.probabilities[0], 2))
        return float(np.interp(alerts, self.ranks, self.probabilities))


class Decision(_Part):
    """How the threshold of a label was chosen, and what it gave on the validation part."""

    rule: Literal["macro_f1", "budget", "daily_budget", "precision", "cost"]
    value: float | None = Field(
        None, description="share, alerts of a day, precision or cost ratio of the rule"
    )
    threshold: float
    alert_share: float = Field(description="of all inputs, labelled or not, that had label 1")
    precision: float | None = Field(description="of labelled inputs; null where none had label 1")
    recall: float
    loss: float | None = Field(
        default=None,
        description="with rule `cost`, of 1,000 labelled inputs, in costs of a missed fraud: "
        "alerts times the cost ratio, and missed frauds",
    )
    daily: DailyScores | None = Field(
        default=None, description="for `daily_budget`; null where times are no timestamps"
    )


class Manifest(_Part):
    """Everything about a checkpoint but its weights."""

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    version: str = Field(pattern=r"^[0-9A-Za-z.+-]{1,32}$")
    architecture: str
    task: Literal["anomaly", "classification", "images", "completion"]
    config: dict[str, JsonValue]
    knobs: TrainedKnobs
    features: tuple[Feature, ...]
    edge_features: tuple[Feature, ...] = ()
    threshold: float = Field(
        default=0.5, description="label is 1 from this probability on; anomalies"
    )
    calibration: Calibration = Field(
        default=Calibration(slope=1.0, intercept=0.0),
        description="of the logit of a node; anomalies",
    )
    decision: Decision | None = Field(default=None, description="behind `threshold`; anomalies")
    neighborhood: NeighborhoodDefaults | None = Field(
        default=None, description="what of a stored graph is read; anomalies"
    )
    transactions: TransactionRecipe | None = Field(
        default=None, description="how rows of a table of transactions become features"
    )
    temperatures: tuple[float, ...] = Field(
        default=(),
        description="T of each task of a classifier: softmax(logits / T)",
    )
    energy: EnergyReference
    training: dict[str, JsonValue] = Field(description="data, split, protocol, seed, recipe")
    metrics: dict[str, JsonValue] = Field(description="figures by part of the data")
    files: dict[str, str] = Field(default_factory=dict, description="SHA-256 of each file")
    versions: dict[str, str] = Field(default_factory=dict)
    digest: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="of this file (`models/manifest_digest.py`); none before version 0.2.0",
    )


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint without reading its other files.

    Raises:
        CheckpointError: there is none, or it is malformed, damaged or edited.
    """
    path = folder / MANIFEST
    return verify_manifest(path, read_manifest_bytes(path))


def read_manifest_bytes(path: Path) -> bytes:
    """Raises CheckpointError if there is no file, or one that is too large."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: there is no {MANIFEST}")
    if path.stat().st_size > _MAX_BYTES:
        raise CheckpointError(f"{path}: larger than {_MAX_BYTES} bytes")
    return path.read_bytes()


def verify_manifest(path: Path, raw: bytes) -> Manifest:
    """Return the manifest in `raw`, the bytes of the file at `path`.

    One without a digest, as before version 0.2.0, has a warning in the log.

    Raises:
        CheckpointError: it is malformed, or does not match its digest.
    """
    manifest = parse_manifest(path, raw)
    if manifest.digest is None:
        _LOG.warning(
            "%s has no digest, so damage to it is not noticed. If it is as it should be, seal it: "
            "basin seal %s",
            *(path, path.parent),
        )
    elif not has_intact_digest(raw):
        raise CheckpointError(
            f"{path} does not match its digest: it was damaged or edited. Restore it or, if the "
            f"edit is yours, seal it: basin seal {path.parent}"
        )
    return manifest


def parse_manifest(path: Path, raw: bytes) -> Manifest:
    """Return the manifest in `raw`, whatever its digest is.

    Raises:
        CheckpointError: it is malformed.
    """
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{path}: {where}: {first['msg']}") from error
    for name in manifest.files:
        if Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointError(f"{path}: {name!r} is not a plain file name")
    return manifest
