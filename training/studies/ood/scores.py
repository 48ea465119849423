"""Three ways to tell a row from those a network was trained on; the higher, the less like them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from scipy.special import softmax
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from models.architectures.ait import AiT
from models.base import Architecture, DynamicsParams
from models.checkpoint import Checkpoint
from models.inputs.graph_batch import GraphBatch
from models.inputs.patches import PatchBatch
from models.tasks.graph_classifier import ClassificationTask
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_network import NodeNetwork
from models.tasks.node_scorer import NodeScorer
from training.metrics import split_logits
from training.studies.ood.rows import RowSet


@dataclass(frozen=True)
class RowOutputs:
    """What a network makes of rows.

    Attributes:
        percentile_R: `energy_percentile` as it is served, 0 to 100.
        probability_R: calibrated, of the label that it answers; None where it answers none.
        read_RK: what its head reads.
    """

    percentile_R: np.ndarray
    probability_R: np.ndarray | None
    head_input_RK: np.ndarray


def evaluate_rows(checkpoint: Checkpoint, rows: RowSet) -> RowOutputs:
    """Pose `rows` as a client does, with the dynamics as trained."""
    network, manifest = checkpoint.network, checkpoint.manifest
    percentile, logits, read = [], [], []
    for batch, sizes, at in rows.batches():
        with _overheard(_reader(network)) as heard:
            output = network.infer(batch, [DynamicsParams()] * len(sizes))
        final_R = sum(s.trace[-1].energy_R for s in output.solutions)
        percentile += map(manifest.energy.percentile, final_R / sizes, _compared_by(batch))
        logits.append(output.logits.double().numpy()[at])
        states = heard[0].double()
        if isinstance(network, ImageCompleter):  # the mean over the patches of each
            states = states.view(len(sizes), -1, states.shape[1]).mean(1)
        read.append(states.numpy()[at])
    confidence = _confidence(checkpoint, np.concatenate(logits))
    return RowOutputs(np.array(percentile), confidence, np.concatenate(read))


def _compared_by(batch: Any) -> Sequence[float | None]:
    """The share of each row that is hidden, or its mean log degree, where it has one."""
    if isinstance(batch, GraphBatch):
        return batch.log_degree_R
    if not isinstance(batch, PatchBatch):
        return [None] * batch.rows
    return batch.occluded_N.view(batch.rows, -1).double().mean(1).tolist()


def _reader(network: Architecture) -> nn.Module:
    """What makes the answer of states that have come to rest; of an ensemble the first one's."""
    if isinstance(network, ImageCompleter):
        return network.codec.decoder
    if isinstance(network, NodeScorer):
        return cast(NodeNetwork, network.networks[0]).head.mlp
    return network.head if isinstance(network, AiT) else cast(Any, network).head.mlp


@contextmanager
def _overheard(module: nn.Module) -> Iterator[list[Tensor]]:
    """What goes into `module` within."""
    heard: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    try:
        yield heard
    finally:
        hook.remove()


def _confidence(checkpoint: Checkpoint, logits: np.ndarray) -> np.ndarray | None:
    """The largest probability; of several tasks, the first's."""
    manifest = checkpoint.manifest
    if manifest.task == "completion":
        return None
    if manifest.task == "anomaly":
        p = manifest.calibration(logits)
        return np.maximum(p, 1 - p)
    tasks = cast(tuple[ClassificationTask, ...], cast(Any, checkpoint.network).config.tasks)
    first = split_logits(logits, tasks)[0]
    return softmax(first / manifest.temperatures[0], -1).max(-1)


@final
class Mahalanobis:
    """min_c (z - mu_c)' S^-1 (z - mu_c) of what a head reads (Lee et al. 2018, eq. 2).

    A mean for each class and one covariance for all, from training rows alone. The inverse is a
    pseudo-inverse: units that never fire have no variance.
    """

    def __init__(self, read_RK: np.ndarray, labels_R: np.ndarray) -> None:
        classes, class_R = np.unique(labels_R, return_inverse=True)
        self._means_CK = np.stack([read_RK[class_R == c].mean(0) for c in range(len(classes))])
        centred_RK = read_RK - self._means_CK[class_R]
        self._inverse_KK = np.linalg.pinv(centred_RK.T @ centred_RK / len(read_RK), hermitian=True)

    def __call__(self, read_RK: np.ndarray) -> np.ndarray:
        """Squared distance of each row to the nearest class, (R,)."""
        apart_CRK = read_RK - self._means_CK[:, None]
        return np.einsum("crk,kl,crl->cr", apart_CRK, self._inverse_KK, apart_CRK).min(0)


def score_rows(seen: RowOutputs, mahalanobis: Mahalanobis) -> dict[str, np.ndarray]:
    """By name, a score of each row (R,), of those that there are."""
    found = {
        "energy": seen.percentile_R,
        "energy_two_sided": np.abs(seen.percentile_R - 50),
        "mahalanobis": mahalanobis(seen.head_input_RK),
    }
    return found if seen.probability_R is None else found | {"max_softmax": -seen.probability_R}


def auroc(own_R: np.ndarray, other_R: np.ndarray) -> float:
    """How often a row from elsewhere has a higher score than one of its own; ties count half."""
    foreign = np.r_[np.zeros(len(own_R)), np.ones(len(other_R))]
    return float(roc_auc_score(foreign, np.r_[own_R, other_R]))
