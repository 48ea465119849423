"""How each network is trained on each dataset: plain functions of a recipe, nothing to parse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.task import NodeTrainConfig

HYBRID = "hybrid"
"""The variant of a recipe with trees that the network reads."""

WITH_LABELS = "labels"
"""The variant of a hybrid that reads labels of neighbours."""


@dataclass(frozen=True)
class TableModel:
    """A model of a table by its name there: `et`, `et:labels`, or `et:labels*3`, an ensemble of
    three networks."""

    base: str
    variant: str = ""
    members: int = 1

    @classmethod
    def from_name(cls, name: str) -> TableModel:
        """Raises ValueError: the number of networks is not one from 2 on."""
        kind, star, members = name.partition("*")
        base, _, variant = kind.partition(":")
        if star and not (members.isdecimal() and int(members) > 1):
            raise ValueError(f"{name}: after * comes how many networks, 2 or more, as in et*3")
        return cls(base, variant, int(members) if star else 1)

    def __str__(self) -> str:
        kind = f"{self.base}:{self.variant}" if self.variant else self.base
        return f"{kind}*{self.members}" if self.members > 1 else kind


ABLATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "no-w": {"coupling_rank": 0},
    "no-inhibition": {"inhibition": False},
    "no-attention": {"attention": False},
    "no-hopfield": {"hopfield": False},
}


_HYBRID_HOPS = 3  # trees gain from deviations over three hops, and from no more of them
_HARDLY_LABELLED = 500  # training nodes
_LARGE_GRAPH = 2_000_000  # edges as given
DEFAULT_FANOUTS = (16, 16)


def node_train_config(
    model: str, dataset: str, train_nodes: int, variant: str = "none", *, edges: int = 0
) -> NodeTrainConfig:
    """The recipe of `model` ("cdat" or "et") by the number of labelled training nodes; `variant` is
    one of `ABLATIONS`, `HYBRID` or `WITH_LABELS`.

    A step sees the whole graph, or, where it has millions of `edges`, sampled neighbourhoods.

    Chosen by validation ROC-AUC on the first splits of each dataset; test labels had no part in it
    (docs/decisions/0005-recipes.md).

    Raises:
        ValueError: for an unknown model or variant, or an ablation that the model does not have.
    """
    if model not in DYNAMICS:
        raise ValueError(f"unknown model {model!r}; known are {', '.join(DYNAMICS)}")
    if variant not in (variants := (*ABLATIONS, HYBRID, WITH_LABELS)):
        known = ", ".join(variants)
        raise ValueError(f"unknown variant {variant!r}; known are {known}")
    config = ABLATIONS.get(variant, {})
    if model != "cdat" and {"coupling_rank", "inhibition"} & config.keys():
        raise ValueError(f"{variant} is an ablation of cdat; {model} has neither")
    table = _FEW_LABELS if train_nodes < _HARDLY_LABELLED else _MANY_LABELS
    chosen = table.get(dataset.removesuffix("-single"), table["any"])
    if edges > _LARGE_GRAPH:
        chosen = replace(
            chosen, batch_nodes=chosen.batch_nodes or 512, fanouts=chosen.fanouts or DEFAULT_FANOUTS
        )
    if variant in (HYBRID, WITH_LABELS):
        config = {"hops": max(chosen.config["hops"], _HYBRID_HOPS), "deviation_hops": _HYBRID_HOPS}
        trees = _TREES.get(dataset.removesuffix("-single"), BoostingConfig())
        trees = BoostingConfig() if train_nodes < _HARDLY_LABELLED else trees
        chosen = replace(chosen, trees=trees, labels=variant == WITH_LABELS)
    return replace(chosen, model=model, config=DYNAMICS[model] | chosen.config | config)


def smoke_node_config(chosen: NodeTrainConfig) -> NodeTrainConfig:
    """The same recipe for a look whether everything runs: a few epochs of a small network."""
    small = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 32, "hidden": 16, "encoder": 16}
    return replace(chosen, epochs=6, config=chosen.config | small)


DYNAMICS: dict[str, dict[str, Any]] = {
    # relu2 rather than CDAT's relu: better on validation everywhere, and V falls without corners.
    # Attention on the sphere is bounded, Hopfield is not: at even weights it is drowned.
    "cdat": {"step_size": 0.5, "beta": 1.0, "balance": 0.95, "hopfield_kind": "relu2"},
    "et": {"step_size": 0.1},
}

_MANY = NodeTrainConfig(
    "",
    {"hops": 2, "bins": 8, "hop_bins": 4, "encoder": 256, "hidden": 256, "dropout": 0.4},
    epochs=30,
    learning_rate=1e-3,
    weight_decay=0.1,
    batch_nodes=512,
)
_FEW = NodeTrainConfig(
    "",
    {"hops": 2, "bins": 4, "hop_bins": 4, "dropout": 0.2, "state_dropout": 0.2},
    epochs=120,
    weight_decay=0.0,
    sparsity=0.1,
)


def _with(base: NodeTrainConfig, config: dict[str, Any], **loop: Any) -> NodeTrainConfig:
    return replace(base, config=base.config | config, **loop)


# YelpChi's components are small: sampled neighbourhoods are nearly whole, and far cheaper.
_MANY_LABELS = {
    "any": _MANY,
    "tolokers": _with(_MANY, {"hops": 4, "bins": 4}, batch_nodes=1024),
    "amazon": _with(
        _MANY,
        {"hops": 1, "bins": 16, "hop_bins": 2, "distinct": True},
        learning_rate=3e-3,
        sparsity=0.03,
    ),
    "yelpchi": _with(
        _MANY,
        {
            **{"bins": 16, "hop_bins": 32, "encoder": 512, "dim": 128, "hidden": 64},
            "state_dropout": 0.4,
        },
        fanouts=DEFAULT_FANOUTS,
    ),
}
_TREES = {"yelpchi": BoostingConfig(rounds=400, leaves=31)}
"""Where another size than the usual one is better by ROC-AUC on validation nodes."""

_FEW_LABELS = {
    "any": _FEW,
    "amazon": _with(_FEW, {"hops": 0, "bins": 16, "distinct": True}, sparsity=0.3),
    "yelpchi": _with(_FEW, {}, batch_nodes=512, fanouts=DEFAULT_FANOUTS),
}
