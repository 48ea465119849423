"""What a request costs: what its quota is charged and its log line says, and what its time is
estimated by.

The unit is a token (a node, an edge, a patch) of one step. Before it runs a request is charged for
all passes through the network that it asks for: its own; one step for each kind of reasons, which
are read off the last state by about as much work; and those of its explanations, which take away
one part after another and ask again (`models.interpret.occlusion` counts them).
`python -m benchmarks.cost` shows the seconds per cost of each.
"""

from __future__ import annotations

from collections.abc import Collection

from models.base import Architecture, DynamicsParams
from models.inputs.graph import Graph
from models.interpret import occlusion
from service.endpoints.common.dynamics import max_total_steps

_LOOKS_OF_A_STEP = 2
"""Most that the steps of `descent` come to take each, for one that was shortened doubles the next
one's length again."""
_REASONS = frozenset({"attention", "memories", "components", "resonance"})


def estimate_cost(
    network: Architecture,
    params: DynamicsParams,
    tokens: int,
    include: Collection[str] = (),
    explained_tokens: int = 0,
) -> int:
    """Tokens x steps of a request.

    Args:
        tokens: of its inputs, edges included.
        explained_tokens: that its explanations relax anew.
    """
    steps = max_total_steps(network, params)
    if params.solver == "descent":
        steps *= _LOOKS_OF_A_STEP
    return tokens * (steps + count_reason_steps(include)) + explained_tokens * steps


def count_reason_steps(include: Collection[str]) -> int:
    """Steps that the reasons of a last state take."""
    return len(_REASONS.intersection(include))


def count_tokens(graph: Graph) -> int:
    """Nodes and edges."""
    return graph.num_nodes + graph.edge_index.shape[1]


def count_target_tokens(network: Architecture, graph: Graph, num_features: int, target: int) -> int:
    """Most tokens that the explanation of one node's score relaxes. Looks at all edges.

    Args:
        num_features: features of the node that are taken away.
    """
    tokens, neighbours = count_tokens(graph), len(occlusion.find_neighbours(graph, target))
    tried = min(neighbours, occlusion.MAX_OCCLUDED)
    return (
        occlusion.count_gradient_tokens(tokens, neighbours)
        + occlusion.count_occluded_tokens(tokens, neighbours, tried)
        + occlusion.count_occluded_tokens(tokens, num_features, num_features)
        + occlusion.count_silenced_tokens(network, tokens)
    )


def count_graph_tokens(network: Architecture, graph: Graph, tasks: int) -> int:
    """Most tokens that the explanation of one graph's classes relaxes: each node is taken away."""
    tokens, nodes = count_tokens(graph), graph.num_nodes
    tried = nodes if nodes > 1 else 0
    return occlusion.count_occluded_tokens(
        tokens, nodes, tried, tasks
    ) + occlusion.count_silenced_tokens(network, tokens, tasks)
