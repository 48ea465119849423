"""What a node scorer reads: hop means, spread, degree, and bins fitted without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.inputs.features import NodeFeatures
from models.inputs.graph import Graph
from models.inputs.graph_batch import pack_graphs
from models.kernels import edge_attention


def _path() -> Graph:
    """0 - 1 - 2 and an isolated 3, one feature."""
    return Graph(np.array([[1.0], [3.0], [5.0], [9.0]], np.float32), np.array([[0, 1], [1, 2]]))


def test_table() -> None:
    table = NodeFeatures(1, hops=2, bins=2, hop_bins=2).compute_table(pack_graphs([_path()]))
    two, one = np.log(3), np.log(2)
    # x, log degree, mean of both over neighbours, their deviation, mean over two hops
    expected = [
        [1, one, 3, two, 0, 0, 3, one],
        [3, two, 3, one, 2, 0, 3, two],
        [5, one, 3, two, 0, 0, 3, one],
        [9, 0, 0, 0, 0, 0, 0, 0],
    ]
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-12)


def test_deviations_over_several_hops() -> None:
    """Two steps from the ends of the path are both ends, each with half of the weight."""
    star = Graph(np.array([[0.0], [4.0], [10.0]], np.float32), np.array([[0, 0], [1, 2]]))
    features = NodeFeatures(1, hops=2, bins=2, hop_bins=2, deviation_hops=2)
    table = features.compute_table(pack_graphs([star])).numpy()
    two, one = np.log(3), np.log(2)
    # x, log degree; then mean and deviation of both, one step away and two
    expected = [
        [0, two, 7, one, 3, 0, 0, two, 0, 0],
        [4, one, 0, two, 0, 0, 7, one, 3, 0],
        [10, one, 0, two, 0, 0, 7, one, 3, 0],
    ]
    np.testing.assert_allclose(table, expected, atol=1e-7)


def test_bins_are_linear_between_quantiles_and_clipped_beyond() -> None:
    x = np.arange(5, dtype=np.float32)[:, None]
    features = NodeFeatures(1, hops=0, bins=2, hop_bins=2).fit(
        pack_graphs([Graph(x, np.zeros((2, 0), np.int64))])
    )
    assert features.lower_P.tolist() == [0, 2]  # the constant degree has no bin
    asked = np.array([[1.0], [3.0], [-100.0], [100.0]], np.float32)
    encoded = features(pack_graphs([Graph(asked, np.zeros((2, 0), np.int64))]))
    assert encoded.tolist() == [[0.5, 0.0], [1.0, 0.5], [0.0, 0.0], [1.0, 1.0]]


def test_a_value_that_prevails() -> None:
    """Mostly zero: the quantiles see nothing else, the distinct values do."""
    x = np.r_[np.zeros(10), np.arange(1, 11)].astype(np.float32)[:, None]
    batch = pack_graphs([Graph(x, np.zeros((2, 0), np.int64))])
    plain = NodeFeatures(1, hops=0, bins=4, hop_bins=4).fit(batch)
    distinct = NodeFeatures(1, hops=0, bins=4, hop_bins=4, distinct=True).fit(batch)
    assert plain.lower_P.tolist() == [0, 1, 5]
    assert distinct.lower_P.tolist() == [0, 1, 2, 5, 8]
    nearly = np.r_[np.zeros(99), [7]].astype(np.float32)[:, None]
    only = NodeFeatures(1, hops=0, bins=4, hop_bins=4).fit(
        pack_graphs([Graph(nearly, np.zeros((2, 0), np.int64))])
    )
    assert (only.lower_P.tolist(), only.width_P.tolist()) == ([0], [7])


def test_a_graph_in_a_batch_reads_as_alone() -> None:
    rng = np.random.default_rng(0)
    graphs = [
        Graph(rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, n, (2, 2 * n)))
        for n in (5, 1, 8)
    ]
    features = NodeFeatures(3, hops=3, bins=4, hop_bins=2).fit(pack_graphs(graphs))
    together = features(pack_graphs(graphs))
    alone = torch.cat([features(pack_graphs([graph])) for graph in graphs])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("hops", "deviation_hops"), [(0, 1), (1, 1), (3, 0), (3, 1), (3, 2)])
def test_kernels_tell_what_torch_does(
    hops: int, deviation_hops: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    edges, kinds = rng.integers(0, 200, (2, 900)), rng.integers(0, 2, 900)
    x = rng.standard_normal((200, 3)).astype(np.float32)
    x[7, 1] = np.nan
    batch = pack_graphs([Graph(x, edges, kinds)], num_relations=2)
    features = NodeFeatures(3, hops, bins=4, hop_bins=4, deviation_hops=deviation_hops)
    monkeypatch.setattr(edge_attention, "_PARALLEL_WORK", 0)
    monkeypatch.setattr(edge_attention.torch, "get_num_threads", lambda: threads)
    table, expected = features.compute_table(batch), features._compute_table_torch(batch)
    # A spread of nothing is the root of what rounding leaves.
    torch.testing.assert_close(table, expected, rtol=1e-12, atol=1e-7, equal_nan=True)
    features.column_P = torch.arange(expected.shape[1])
    features.lower_P = torch.full((expected.shape[1],), 0.1, dtype=torch.float64)
    features.width_P = torch.full((expected.shape[1],), 0.3, dtype=torch.float64)
    encoded = ((table - 0.1) / 0.3).clamp(0, 1).float()
    torch.testing.assert_close(features.encode(table), encoded, rtol=0, atol=0, equal_nan=True)
