"""A graph scored in parts gets the scores of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from basin.bulk import BulkError
from basin.bulk.plan import Plan
from basin.bulk.run import run_in_process, score
from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.base import DynamicsParams
from models.inputs.graph import UNKNOWN
from models.resonance import Resonance
from models.tasks.node_scorer import NodeScorer
from tests.support.bulk_models import (
    CONFIGS,
    make_trees,
    random_graph,
    save_model,
    score_whole,
    start,
)


@pytest.mark.parametrize("architecture", [ET, CDAT])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_equal_the_whole(tmp_path: Path, architecture: type[NodeScorer], name: str) -> None:
    graph = random_graph()
    model = save_model(tmp_path, architecture, graph, **CONFIGS[name])
    for parts, params in (
        (1, DynamicsParams()),
        (7, DynamicsParams(steps=4, beta_scale=1.5, step_size=0.2)),
    ):
        expected, expected_convergence = score_whole(model, graph, params)
        run = start(tmp_path / f"{parts}", model, graph, params, parts)
        logits, convergence = score(*run, run_in_process)
        np.testing.assert_allclose(logits, expected, atol=2e-5)
        assert convergence.keys() == expected_convergence.keys()
        if architecture is CDAT:  # the work of control is not stored in bulk
            assert convergence["energy_rose"] is None
            expected_convergence["energy_rose"] = None
        for name, value in expected_convergence.items():
            is_float = isinstance(value, float)
            assert convergence[name] == (
                pytest.approx(value, rel=1e-4, abs=1e-4) if is_float else value
            )


def test_labels_are_read_as_in_the_whole_graph(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(-1, 2, 90).astype(np.int8)
    labels[:60] = UNKNOWN
    graph, params = replace(random_graph(), labels=labels), DynamicsParams()
    model = save_model(tmp_path, ET, graph, make_trees, hops=2)
    expected, _ = score_whole(model, graph, params)
    plan = Plan.from_model(model, "a graph", params, 7, labels=True)
    logits, _ = score(tmp_path / "run", plan.start(tmp_path / "run", graph), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    without, _ = score(*start(tmp_path / "none", model, random_graph(), params, 7), run_in_process)
    np.testing.assert_allclose(without, score_whole(model, random_graph(), params)[0], atol=2e-5)
    assert (np.abs(without - logits) > 0.01).any()


def test_labels_are_refused_where_nothing_reads_them(tmp_path: Path) -> None:
    model = save_model(tmp_path, ET, random_graph())
    with pytest.raises(BulkError, match="reads no labels: leave out --label"):
        Plan.from_model(model, "a graph", DynamicsParams(), 2, labels=True)


def test_resonance_turned_off(tmp_path: Path) -> None:
    """The dynamics are not those of training, so that no energy is out of distribution."""
    graph = random_graph()
    resonance = {"strength": 0.7, "vigilance": 0.1}
    model = save_model(tmp_path, CDAT, graph, resonance=resonance)
    with pytest.raises(BulkError, match="Resonance is not supported"):
        Plan.from_model(model, "a graph", DynamicsParams(), 2)
    params = DynamicsParams(resonance=Resonance.model_validate({"strength": 0.0}))
    expected, expected_convergence = score_whole(model, graph, params)
    logits, convergence = score(*start(tmp_path / "run", model, graph, params, 2), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert convergence["out_of_distribution"] is None
    assert expected_convergence["out_of_distribution"] is None


def test_more_parts_than_nodes_and_no_edges(tmp_path: Path) -> None:
    graph = replace(random_graph(3, 0), edge_type=np.zeros(0, np.int64))
    model = save_model(tmp_path, CDAT, random_graph())
    expected, _ = score_whole(model, graph, DynamicsParams())
    logits, _ = score(*start(tmp_path / "run", model, graph, DynamicsParams(), 50), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
