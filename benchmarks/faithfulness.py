"""How far an answer moves as what its explanation names is deleted, against as much at random.

Neighbours of test workers of tolokers, in neighbourhoods such as a client sends, and atoms of
molecules of AMES (BASIN_DATA). Each method orders the parts by how much they support the answer;
the curve is what the answer loses, in logits, without the first k of them, the mean over inputs.
The figures go to docs/figures, the table is printed as docs/explanations.md has it.

    python -m benchmarks.faithfulness [inputs] [folder]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.curves import chart
from models import checkpoint
from models.base import DynamicsParams
from models.dynamics import RUN_ALONE
from models.inputs.graph import Graph
from models.inputs.graph_batch import pack_graphs
from models.inputs.molecules import parse_smiles
from models.interpret import occlusion
from models.interpret.occlusion import ForwardFunc, Perturbation
from models.interpret.reasons import BatchReasons
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.node_scorer import NodeScorer
from training.datasets import load_node_dataset
from training.datasets.sources import data_folder
from training.tasks.anomaly.neighbor_sampler import NeighborSampler

ROOT = Path(__file__).parents[1]
DELETED, AT, DRAWS = 8, 5, 8
Curves = dict[str, np.ndarray]


def curves_of(
    value: ForwardFunc,
    whole: float,
    sign: float,
    without: Callable[[Sequence[int]], Perturbation],
    parts: int,
    supports: dict[str, np.ndarray],
    rng: np.random.Generator,
) -> Curves:
    """What the answer loses without the first 0 to `DELETED` parts, by method and at random."""
    orders = {name: np.argsort(-one, kind="stable") for name, one in supports.items()}
    draws = [rng.permutation(parts) for _ in range(DRAWS)]

    def curve(order: np.ndarray) -> np.ndarray:
        sets = [order[:count].tolist() for count in range(1, DELETED + 1)]
        lost = sign * (whole - value([without(each) for each in sets])[:, 0])
        return np.concatenate([[0.0], lost])

    found = {name: curve(order) for name, order in orders.items()}
    return found | {"random": np.mean([curve(order) for order in draws], 0)}


def of_scores(network: NodeScorer, threshold_logit: float, inputs: int) -> list[Curves]:
    """Test workers with at least twice as many neighbours as are deleted."""
    dataset = load_node_dataset("tolokers")
    whole = pack_graphs([dataset.graph])
    test = dataset.official[0].test
    degree = whole.relations[0].degree_N.numpy()
    rng = np.random.default_rng(0)
    workers = rng.permutation(test[degree[test] >= 2 * DELETED])[:inputs]
    sampler, params, found = NeighborSampler(whole, (2 * DELETED, 8)), DynamicsParams(), []
    for seed, worker in enumerate(workers):
        batch, _ = sampler.sample(np.array([worker]), seed=seed)
        edges = batch.relations[0]
        index = np.stack([edges.indices_E.numpy(), edges.receivers_E.numpy()])
        graph = Graph(batch.x_NF.numpy(), index)
        value = occlusion.build_score_func(network, params, 0, RUN_ALONE)
        [[score]] = value([Perturbation(graph)])
        sign = 1.0 if score >= threshold_logit else -1.0
        others = occlusion.find_neighbours(graph, 0)

        def without(parts: Sequence[int], graph=graph, others=others) -> Perturbation:
            return Perturbation(occlusion.remove_neighbour_edges(graph, 0, others[list(parts)]))

        alone = value([without([part]) for part in range(len(others))])[:, 0]
        packed = network.pack([graph])
        rest = BatchReasons(network, network.infer(packed, [params]), [params])
        seen = rest.explain_row(0, {"attention"}, np.array([0])).attention[-1]
        weight = dict(zip(seen.key_P.tolist(), seen.weight_PH.mean(1), strict=True))
        supports = {
            "occlusion": sign * (score - alone),
            "gradient": sign * occlusion.compute_edge_gradients(network, graph, params, 0)[others],
            "attention": np.array([weight.get(int(other), 0.0) for other in others]),
        }
        found.append(curves_of(value, score, sign, without, len(others), supports, rng))
    return found


def of_molecules(network: GraphClassifier, inputs: int) -> list[Curves]:
    """Molecules with at least twice as many atoms as are deleted."""
    smiles = pd.read_csv(data_folder() / "molecules" / "AMES.csv")["smiles"].tolist()
    rng = np.random.default_rng(0)
    graphs = []
    for place in rng.permutation(len(smiles)):
        graph = parse_smiles(smiles[place]).graph
        if graph.num_nodes >= 2 * DELETED:
            graphs.append(graph)
        if len(graphs) == inputs:
            break
    params, found = DynamicsParams(), []
    for graph in graphs:
        logits_RC = network.infer(network.pack([graph]), [params]).logits.double().numpy()
        label = int(logits_RC[0].argmax())
        value = occlusion.build_margin_func(network, params, [label], RUN_ALONE)
        whole = float(occlusion.compute_margins(logits_RC, label)[0])

        def without(parts: Sequence[int], graph=graph) -> Perturbation:
            return Perturbation(occlusion.remove_nodes(graph, list(parts)))

        nodes = graph.num_nodes
        alone = value([without([node]) for node in range(nodes)])[:, 0]
        supports = {
            "occlusion": whole - alone,
            "gradient": _times_input(network, graph, params, label),
        }
        found.append(curves_of(value, whole, 1.0, without, nodes, supports, rng))
    return found


def _times_input(
    network: GraphClassifier, graph: Graph, params: DynamicsParams, label: int
) -> np.ndarray:
    """Gradient of the margin by x(1) times x(1), of each node."""
    batch = network.pack([graph])
    x_ND = network.embed(batch).detach().requires_grad_()
    logits_C = network(batch, [params], x_ND)[0]
    rest = torch.cat([logits_C[:label], logits_C[label + 1 :]])
    (grad_ND,) = torch.autograd.grad(logits_C[label] - rest.logsumexp(0), x_ND)
    return (grad_ND * x_ND).sum(1).detach()[batch.node_n].double().numpy()


def _report(name: str, what: str, found: list[Curves], folder: Path) -> None:
    means = {method: np.mean([one[method] for one in found], 0) for method in found[0]}
    lines = [f"| {name}, {len(found)} inputs | 1 | {AT} | {DELETED} | over random at {AT} |"]
    lines.append("|---|---|---|---|---|")
    for method, curve in means.items():
        lost = np.array([one[method][AT] for one in found])
        against = np.array([one["random"][AT] for one in found])
        better = "" if method == "random" else f"{100 * (lost > against).mean():.0f} %"
        lines.append(
            f"| {method} | {curve[1]:.3f} | {curve[AT]:.3f} | {curve[DELETED]:.3f} | {better} |"
        )
    print("\n".join(lines), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    listed = {method: curve.tolist() for method, curve in means.items()}
    title = f"{name}: what an answer loses"
    figure = chart(title, f"{what} deleted", "logits", listed)
    (folder / f"faithfulness-{name}.svg").write_text(figure)


def main() -> None:
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "figures"
    if not data_folder().exists():
        print(f"skipped: no data at {data_folder()}")
        return
    scorer = checkpoint.load_checkpoint(ROOT / "checkpoints" / "cdat-tolokers")
    classifier = checkpoint.load_checkpoint(ROOT / "checkpoints" / "cdat-ames").network
    assert isinstance(scorer.network, NodeScorer)
    assert isinstance(classifier, GraphClassifier)
    grid = np.linspace(-20, 20, 40_001)
    above = scorer.manifest.calibration(grid) >= scorer.manifest.threshold
    threshold = float(grid[above.argmax()])
    runs = {
        "cdat-tolokers": ("neighbours", partial(of_scores, scorer.network, threshold)),
        "cdat-ames": ("atoms", partial(of_molecules, classifier)),
    }
    for name, (what, run) in runs.items():
        _report(name, what, run(inputs), folder)


if __name__ == "__main__":
    main()
