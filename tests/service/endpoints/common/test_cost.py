"""Explanations and reasons are charged for the passes that they take, before they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import checkpoint
from models.base import RUN_ALONE, DynamicsParams
from models.inputs.graph import Graph
from models.inputs.molecules import parse_smiles
from models.interpret import occlusion
from service.endpoints.anomaly.infer import pack_if_large, score, workload_of
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.classify.infer import classify
from service.endpoints.common.cost import (
    count_graph_tokens,
    count_reason_steps,
    count_target_tokens,
    count_tokens,
)
from service.endpoints.common.dynamics import max_total_steps
from service.endpoints.common.schemas import Dynamics
from service.registry.handles import Classifier, Scorer, handle_for
from tests.support.paths import CHECKPOINTS

NODES, EDGES = 200, 900  # so many that no pass is as short as the least that is charged
KNOBS = Dynamics.model_validate({}), DynamicsParams()


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    model = handle_for(checkpoint.load_checkpoint(CHECKPOINTS / "cdat-tolokers"))
    assert isinstance(model, Scorer)
    return model


def _task(model: Scorer, targets: list[int], *include: str) -> ScoreInputs:
    """A graph whose first node has many neighbours, the second few, and the third none."""
    rng = np.random.default_rng(0)
    ends = rng.integers(3, NODES, (2, EDGES))
    ends[0, :60], ends[0, 60:64] = 0, 1
    graph = Graph(rng.random((NODES, len(model.features)), np.float32), ends)
    return ScoreInputs(model, graph, None, np.array(targets), *KNOBS, include=frozenset(include))


class _Passes:
    """Counts the tokens of the graphs that a network packs, and its gradients."""

    def __init__(self, patch: pytest.MonkeyPatch, network: type[Any]) -> None:
        self.tokens = self.gradients = 0
        pack, gradients = network.pack, occlusion.compute_edge_gradients

        def count(of: Any, graphs: Any) -> Any:
            self.tokens += sum(map(count_tokens, graphs))
            return pack(of, graphs)

        def count_gradient(*args: Any) -> Any:
            self.gradients += 1
            return gradients(*args)

        patch.setattr(network, "pack", count)
        patch.setattr(occlusion, "compute_edge_gradients", count_gradient)


@pytest.mark.parametrize("targets", [[0], [1], [2], [0, 1, 2]])
def test_a_score_is_charged_for_the_passes_of_its_explanations(
    scorer: Scorer, targets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _task(scorer, targets, "explanation")
    plain_cost = workload_of(replace(task, include=frozenset())).cost
    passes = _Passes(monkeypatch, type(scorer.network))
    score(task, pack_if_large(task), RUN_ALONE)
    steps, size = max_total_steps(scorer.network, task.params), NODES + EDGES
    assert passes.gradients == targets.count(0), "more neighbours than are tried"
    tokens = passes.tokens + 2 * size * passes.gradients  # the way back, beside the one forth
    assert plain_cost == size * steps
    assert tokens * steps <= workload_of(task).cost <= 1.3 * tokens * steps
    assert workload_of(task).cost > 20 * plain_cost
    assert workload_of(task).size > size, "variants of the graph are in memory side by side"
    assert workload_of(task).size <= occlusion.BATCH_ENTRIES


def test_a_class_is_charged_for_the_passes_of_its_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = handle_for(checkpoint.load_checkpoint(CHECKPOINTS / "cdat-ames"))
    assert isinstance(model, Classifier)
    graph = parse_smiles("C" * 150).graph
    passes = _Passes(monkeypatch, type(model.network))
    classify(model, [graph], DynamicsParams(), RUN_ALONE, {"explanation"})
    charged = count_graph_tokens(model.network, graph, len(model.tasks))
    assert passes.tokens <= charged <= 1.3 * passes.tokens
    assert charged > 150 * count_tokens(graph)


def test_a_short_pass_of_an_explanation_is_charged_as_what_it_takes(scorer: Scorer) -> None:
    """A pass over two nodes takes no less time than one over a hundred."""
    pair = Graph(np.zeros((2, len(scorer.features)), np.float32), np.array([[0], [1]]))
    charged = count_target_tokens(scorer.network, pair, len(scorer.features), 0)
    assert charged >= 256 * (occlusion.MAX_MEMORIES + occlusion.NUM_RANDOM_SETS + 1)


def test_reasons_are_charged_a_step_of_each_kind(scorer: Scorer) -> None:
    kinds = ["attention", "memories", "components"]
    plain, costly = _task(scorer, [1]), _task(scorer, [1], "trace", *kinds)
    size = NODES + EDGES
    assert workload_of(costly).cost - workload_of(plain).cost == size * len(kinds)
    assert count_reason_steps({"trace", "explanation", "uncertainty"}) == 0
    assert workload_of(costly).size == workload_of(plain).size
