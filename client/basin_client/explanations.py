"""What moved an answer, in one shape for all routes: `include=["explanation"]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from basin_client.graphs import NodeId

Kind = Literal["neighbour", "feature", "node", "memory"]
_KINDS: dict[str, Kind] = {
    "neighbours": "neighbour",
    "features": "feature",
    "nodes": "node",
    "memories": "memory",
}


@dataclass(frozen=True)
class ExplanationPart:
    """One part of an input, or of a model, and what taking it away does.

    Attributes:
        kind: `neighbour` of a node that is scored (an earlier transaction, where transactions are),
            `feature` of it, `node` of a graph that is classified (an atom of a molecule), or
            `memory` of a Hopfield network.
        name: id of the neighbour, name of the feature, number of the node, or block and memory.
        effect: what was explained, less what it is without this part, in `Explanation.unit`.
        supports: does it speak for the label?
        value: of a feature.
        instead: of a feature: the mean in training, which `value` was replaced by.
    """

    kind: Kind
    name: NodeId | tuple[int, int]
    effect: float
    supports: bool
    value: float | None = None
    instead: float | None = None


@dataclass(frozen=True)
class Deletion:
    """How faithful an explanation is: all parts of a kind that support the label taken away
    together, and as many at random.

    Attributes:
        removed: how many parts support it.
        moved: by how much the answer loses support without them.
        random: by how much it loses without as many at random, the mean over `draws` sets; None
            where there is no choice.
    """

    removed: int
    moved: float | None
    random: float | None
    draws: int


@dataclass(frozen=True)
class Explanation:
    """What moved one answer.

    Attributes:
        target: what the answer is about: the id of a node, or a task of a classification.
        label: the answer, 1 or 0 of a score, or the class.
        unit: of `value` and of effects: `score`, or `log_odds` of the class, both uncalibrated.
        value: what was explained, before anything was taken away.
        probability: calibrated, of what `value` measures: that a node is suspicious, whatever its
            label, or that an input is of class `label`.
        parts: at most five of each kind for the label, and five against it; the strongest of all
            kinds first.
        deletions: by kind; None where no part of it supports the label.
        svg: drawing of a molecule, its atoms by their effects; None of what is no molecule.
        raw: as received, with how many parts there are and how many were taken away by themselves.
    """

    method: str
    target: NodeId
    label: int | str
    unit: Literal["score", "log_odds"]
    value: float
    probability: float
    parts: list[ExplanationPart]
    deletions: dict[Kind, Deletion | None]
    svg: str | None = field(repr=False)
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> Explanation:
        """Convert an `explanation` of a JSON response, or one of `explanations` beside tensors."""
        kinds: dict[Kind, dict[str, Any]] = {
            kind: payload[key] for key, kind in _KINDS.items() if payload[key] is not None
        }
        parts = [
            _to_part(kind, part, side == "supports")
            for kind, causes in kinds.items()
            for side in ("supports", "opposes")
            for part in causes[side]
        ]
        names = ("method", "target", "label", "unit", "value", "probability", "svg")
        return cls(
            **{name: payload[name] for name in names},
            parts=sorted(parts, key=lambda part: -abs(part.effect)),
            deletions={
                kind: None if causes["deletion"] is None else Deletion(**causes["deletion"])
                for kind, causes in kinds.items()
            },
            raw=payload,
        )

    def to_pandas(self) -> Any:
        """Return a data frame with one row per part."""
        import pandas as pd

        names = ("kind", "name", "effect", "supports", "value", "instead")
        rows = [[getattr(part, name) for name in names] for part in self.parts]
        return pd.DataFrame(rows, columns=list(names))


def _to_part(kind: Kind, part: dict[str, Any], supports: bool) -> ExplanationPart:
    if kind == "memory":
        return ExplanationPart(kind, (part["block"], part["memory"]), part["effect"], supports)
    name = part[{"neighbour": "node_id", "feature": "feature", "node": "node"}[kind]]
    numbers = part.get("value"), part.get("instead")
    return ExplanationPart(kind, name, part["effect"], supports, *numbers)
