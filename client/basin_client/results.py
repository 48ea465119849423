"""Results of requests, with numpy arrays and Pillow images. `raw` is the response as received."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from basin_client.errors import require_extra
from basin_client.explanations import Explanation
from basin_client.graphs import NodeId


@dataclass(frozen=True)
class Convergence:
    """How the energy converged: the field `convergence` of a response.

    Attributes:
        energy_rose: was the energy, or of controlled dynamics V, higher after any step than before
            it, by more than rounding? None with noise, and without steps.
    """

    energy_initial: float | None
    energy_final: float | None
    steps: int
    residual: float | None
    stop_reason: str
    energy_rose: bool | None = None
    energy_percentile: float | None = None
    out_of_distribution: bool | None = None
    trace: list[dict[str, Any]] | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> Convergence:
        names = cls.__dataclass_fields__.keys() - {"raw"}
        return cls(**{name: payload[name] for name in names if name in payload}, raw=payload)


@dataclass(frozen=True)
class Scores:
    """Scores of T nodes, in the order of the request.

    Attributes:
        node_ids: their ids, or their rows if the graph has no ids.
        score: logits (T,).
        probability: calibrated probabilities (T,).
        label: 1 where the probability is at least `threshold`, else 0, (T,).
        rank: (T,); 1 is the most suspicious node.
        tensors: further arrays that `include` asked for.
        transaction_ids: of accounts of a stored graph, the transactions as of which they are
            scored; else None.
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
    transaction_ids: list[NodeId] | None = None

    def __len__(self) -> int:
        return len(self.node_ids)

    @cached_property
    def explanations(self) -> list[Explanation | None]:
        """What moved the score of each node; None of those that were not explained."""
        results = self.raw.get("results", ())
        payloads = self.raw.get("explanations") or [each.get("explanation") for each in results]
        if not payloads:
            return [None] * len(self)
        return [None if each is None else Explanation.from_dict(each) for each in payloads]

    def to_pandas(self) -> Any:
        """Return a data frame with one row per node; `transaction_id` is a column of accounts of a
        stored graph."""
        with require_extra("pandas"):
            import pandas as pd

        names = ("score", "probability", "label", "rank")
        columns = {name: getattr(self, name) for name in names}
        ids = {"node_id": self.node_ids}
        if self.transaction_ids is not None:
            ids["transaction_id"] = self.transaction_ids
        return pd.DataFrame({**ids, **columns})

    def onto(self, graph: Any) -> None:
        """Set the attributes `score` and `probability` of the nodes of a NetworkX graph."""
        nodes = {str(node): node for node in graph.nodes}
        for row, node_id in enumerate(self.node_ids):
            attributes = graph.nodes[node_id if node_id in graph else nodes[str(node_id)]]
            attributes["score"] = float(self.score[row])
            attributes["probability"] = float(self.probability[row])


@dataclass(frozen=True)
class Prediction:
    """The classes of one molecule or graph: for each task a label, and a probability per label."""

    index: int
    labels: dict[str, str]
    probabilities: dict[str, dict[str, float]]
    convergence: Convergence
    raw: dict[str, Any] = field(repr=False)

    @cached_property
    def explanations(self) -> dict[str, Explanation]:
        """What moved the label of each task; empty if explanations were not included."""
        payloads = self.raw.get("explanation", {})
        return {task: Explanation.from_dict(payload) for task, payload in payloads.items()}


@dataclass(frozen=True)
class ItemError:
    """Why one input has no result."""

    index: int
    code: str
    detail: str
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ClassificationResult:
    """One `Prediction` or `ItemError` per input, in order."""

    results: list[Prediction | ItemError]
    raw: dict[str, Any] = field(repr=False)

    def __iter__(self) -> Iterator[Prediction | ItemError]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def to_pandas(self) -> Any:
        """Return a data frame with one row per input: for each task its label and probabilities."""
        with require_extra("pandas"):
            import pandas as pd

        rows = []
        for result in self.raw["results"]:
            error = result.get("error", {}).get("code")
            row = {"index": result["index"], "input": result.get("input"), "error": error}
            for task, prediction in result.get("predictions", {}).items():
                row[task] = prediction["label"]
                for label, probability in prediction["probabilities"].items():
                    row[f"{task}.{label}"] = probability
            rows.append(row)
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class ImageResult:
    """The class of one image, or the answer to a question about it."""

    index: int
    label: str
    probability: float
    probabilities: dict[str, float]
    convergence: Convergence
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class CompletionResult:
    """Completed images as `PIL.Image`s, and the convergence of each.

    Attributes:
        uncertainty: grey `PIL.Image`s of the absolute error to expect of each pixel, 255 being the
            step from black to white; empty unless it was included.
        box: left, top, width and height of the part that `images` show; None for all of it.
    """

    images: list[Any]
    convergence: list[dict[str, Any]]
    uncertainty: list[Any]
    box: tuple[int, int, int, int] | None
    raw: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class SampleResult:
    """Samples of a memory, in its units.

    Attributes:
        samples: an array (N, ...), or N strings for sequences; a list of these if there are several
            values of beta.
        diagnostics: of the chains; a list if there are several values of beta.
    """

    samples: Any
    diagnostics: Any
    raw: dict[str, Any] = field(repr=False)
