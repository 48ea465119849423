"""What a server answers, with numpy and Pillow in it; `raw` is all of it, as it came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from basin_client.graphs import NodeId


@dataclass(frozen=True)
class Convergence:
    """How the energy came to rest."""

    energy_initial: float | None
    energy_final: float | None
    steps: int
    residual: float | None
    stop_reason: str
    energy_percentile: float | None = None
    out_of_distribution: bool | None = None
    trace: list[dict[str, Any]] | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Convergence:
        names = cls.__dataclass_fields__.keys() - {"raw"}
        return cls(**{name: told[name] for name in names if name in told}, raw=told)


@dataclass(frozen=True)
class Scores:
    """A row for each node that was asked about, in the order asked.

    Attributes:
        node_ids: their names, or rows where they have none.
        score: logits; `probability` is calibrated; `label` is 1 from `threshold` on.
        rank: 1 is the most suspicious.
    """

    node_ids: list[NodeId]
    score: np.ndarray
    probability: np.ndarray
    label: np.ndarray
    rank: np.ndarray
    threshold: float
    convergence: Convergence
    tensors: dict[str, np.ndarray] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.node_ids)

    def to_pandas(self) -> Any:
        """A frame with a row for each node."""
        import pandas as pd

        names = ("score", "probability", "label", "rank")
        columns = {name: getattr(self, name) for name in names}
        return pd.DataFrame({"node_id": self.node_ids, **columns})

    def onto(self, graph: Any) -> None:
        """Give the nodes of a NetworkX graph the attributes `score` and `probability`."""
        names = {str(name): name for name in graph.nodes}
        for row, node in enumerate(self.node_ids):
            there = graph.nodes[node if node in graph else names[str(node)]]
            there["score"], there["probability"] = (
                float(self.score[row]),
                float(self.probability[row]),
            )


@dataclass(frozen=True)
class Prediction:
    """What one input is, by task: a label, and the probability of each."""

    index: int
    labels: dict[str, str]
    probabilities: dict[str, dict[str, float]]
    convergence: Convergence
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ItemError:
    """An input that got no answer, and why."""

    index: int
    code: str
    detail: str
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ClassificationResult:
    """One result per input, in order."""

    results: list[Prediction | ItemError]
    raw: dict[str, Any] = field(repr=False)

    def __iter__(self) -> Iterator[Prediction | ItemError]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def to_pandas(self) -> Any:
        """A frame with a row for each input; of each task the label and the probabilities."""
        import pandas as pd

        rows = []
        for told in self.raw["results"]:
            error = told.get("error", {}).get("code")
            row = {"index": told["index"], "input": told.get("input"), "error": error}
            for task, found in told.get("predictions", {}).items():
                row[task] = found["label"]
                for label, p in found["probabilities"].items():
                    row[f"{task}.{label}"] = p
            rows.append(row)
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class Recognised:
    """What one picture shows, or the answer to a question about it."""

    index: int
    label: str
    probability: float
    probabilities: dict[str, float]
    convergence: Convergence
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Completed:
    """Completions as `PIL.Image`s, each with its convergence."""

    images: list[Any]
    convergence: list[dict[str, Any]]
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Sampled:
    """Samples in the units of the memory: (N, ...), or of several temperatures a list of them; of
    sequences strings. `diagnostics` of each likewise."""

    samples: Any
    diagnostics: Any
    raw: dict[str, Any] = field(repr=False)
