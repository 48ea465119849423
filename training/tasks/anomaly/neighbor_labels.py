"""What a hybrid makes of labels of neighbours: fitted to those of the training nodes."""

from __future__ import annotations

import numpy as np
import torch

from models.inputs.graph import UNKNOWN
from models.inputs.graph_batch import GraphBatch
from models.inputs.label_columns import describe_labels
from models.manifest import Calibration
from models.tasks.node_scorer import NodeScorer
from training.datasets import Split
from training.tasks.anomaly.stacked_trees import (
    BoostingConfig,
    fit_part_weights,
    fit_stacked_trees,
)

_ENOUGH = 50  # validation nodes of the rarer label for weights of their own


def show_training_labels(labels: np.ndarray, split: Split) -> np.ndarray:
    """The labels of the training nodes, int8 (N,), all others unknown."""
    known_N = np.full(len(labels), UNKNOWN, np.int8)
    known_N[split.train] = labels[split.train]
    return known_N


def append_label_columns(
    table_NC: np.ndarray, batch: GraphBatch, labels: np.ndarray, split: Split
) -> np.ndarray:
    """The columns that trees read, and those by labels of neighbours that were trained on."""
    known_N = torch.from_numpy(show_training_labels(labels, split))
    shown = GraphBatch(batch.x_NF, batch.relations, labels_N=known_N)
    prior = float(labels[split.train].mean())
    return np.concatenate([table_NC, describe_labels(shown, prior).numpy()], 1)


def fit_label_trees(
    network: NodeScorer,
    batch: GraphBatch,
    logits_N: np.ndarray,
    labels: np.ndarray,
    split: Split,
    config: BoostingConfig,
    calibration: Calibration,
    seed: int,
) -> np.ndarray:
    """Add trees that read labels of neighbours to a hybrid, and choose what each part weighs.

    A training node reads the labels of other training nodes, as any other node does. The weights
    are of the lowest cross entropy on the validation nodes, those with a training node within two
    steps and the others apart; so that `calibration`, which is of the score without labels, holds
    with them too.

    Args:
        network: without such trees yet.
        logits_N: of the network alone.

    Returns:
        The logits of all nodes (N,) where the labels of the training nodes are known.
    """
    table_NC = network.features.compute_table(batch)
    columns = network.features.count_node_columns(len(batch.relations))
    read_NC = append_label_columns(table_NC[:, :columns].numpy(), batch, labels, split)
    is_exact_C = network.features.mark_means(len(batch.relations))
    trees = fit_stacked_trees(read_NC, labels, split.train, config, seed, is_exact_C)
    network.add_label_trees(trees, float(labels[split.train].mean()))
    known_N = torch.from_numpy(show_training_labels(labels, split))
    shown = GraphBatch(batch.x_NF, batch.relations, labels_N=known_N)
    scores_N, by_labels = network.read_parts(shown, table_NC)
    assert scores_N is not None
    assert by_labels is not None
    parts_NE = np.stack([logits_N, scores_N.numpy(), by_labels.score_N.numpy()], 1)
    is_seen_N = by_labels.is_seen_N.numpy()
    for group in (False, True):
        nodes = split.val[is_seen_N[split.val] == group]
        frauds = labels[nodes].sum()
        if min(frauds, len(nodes) - frauds) < _ENOUGH:
            nodes = split.val
        weights = fit_part_weights(parts_NE[nodes], labels[nodes])
        weights[-1] -= calibration.intercept
        weights /= calibration.slope
        network.label_weights[int(group)] = torch.from_numpy(weights.astype(np.float32))
    mixed_N = network.mix(torch.from_numpy(logits_N), scores_N, by_labels)
    return mixed_N.numpy()
