"""What moved an answer: neighbours, features, atoms, memories.

Each part is taken away by itself and the answer asked for again (occlusion): what it was minus what
it is then is the part's effect. Then those that support the answer most are taken away together,
and so are as many at random (deletion): an explanation is faithful where the first moves the answer
further. Everything is asked of the network itself, of variants of the input, in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from models.base import Architecture, DynamicsParams, StepControl
from models.energies import Hopfield
from models.inputs.graph import Graph
from models.interpret.reasons import TOP_K, MemoryActivations
from models.sampling import RunInterruptedError
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.node_scorer import NodeScorer

MAX_OCCLUDED, MAX_MEMORIES, NUM_RANDOM_SETS = 32, 10, 8
"""Most neighbours and memories that are taken away one by one, and random sets to compare with."""
BATCH_ENTRIES = 1 << 18
"""Most tokens, and pairs of them that see each other, of one batch of variants."""
_MIN_TOKENS = 256  # of a batch: a smaller one takes as long
_GRADIENT_PASSES = 3  # forward and backward over one pass, in time

MemoryId = tuple[int, int]
"""A block and one of its memories."""


@dataclass(frozen=True)
class Perturbation:
    """An input with some of it taken away, and memories without which it is to be answered."""

    graph: Graph
    silenced: tuple[MemoryId, ...] = ()


ForwardFunc = Callable[[Sequence[Perturbation]], np.ndarray]
"""What is to be explained, (V, T): of each variant, by task."""


@dataclass(frozen=True)
class Attribution:
    """The parts of one kind that moved the answer to one task.

    Attributes:
        parts: how many there are.
        tried: those that were taken away by themselves, and `effects`, what came of it.
        supports, opposes: (part, effect) of those for and against the answer, the strongest first.
        moved: by how much the answer loses without all of `supports`; None where there are none.
        random: by how much it loses without as many at random, the mean over `DRAWS` draws; None
            where every draw would be the same.
    """

    num_parts: int
    occluded: Sequence[int]
    effects: np.ndarray
    supports: list[tuple[int, float]]
    opposes: list[tuple[int, float]]
    deletion_effect: float | None
    random_deletion_effect: float | None


def attribute(
    value: ForwardFunc,
    whole_T: np.ndarray,
    sign_T: np.ndarray,
    without: Callable[[Sequence[int]], Perturbation],
    parts: int,
    tried: Sequence[int],
    seed: int = 0,
) -> list[Attribution]:
    """For each task what moved its answer.

    Args:
        whole_T: the value of the input as it is.
        sign_T: 1 where the answer is that the value is high, -1 where that it is low.
        without: the input without these parts; `parts` is their number.
        tried: the parts to take away one by one, each below `parts`. At most half of all are named.
    """
    if not len(tried):
        return [Attribution(parts, (), np.empty(0), [], [], None, None) for _ in whole_T]
    effect_CT = np.nan_to_num(whole_T - value([without([part]) for part in tried]))
    most = min(TOP_K, max(parts // 2, 1))
    rng = np.random.default_rng(seed)
    found = []
    for task, (whole, sign) in enumerate(zip(whole_T, sign_T, strict=True)):
        effect_C = effect_CT[:, task]
        supports, opposes = (
            [(tried[at], float(effect_C[at])) for at in order[:most] if side * effect_C[at] > 0]
            for side in (sign, -sign)
            for order in [np.argsort(-side * effect_C, kind="stable")]
        )
        moved = random = None
        if supports:
            draws = NUM_RANDOM_SETS if len(supports) < parts else 0
            sets = [[part for part, _ in supports]] + [
                rng.choice(parts, len(supports), replace=False).tolist() for _ in range(draws)
            ]
            lost_V = whole - value([without(each) for each in sets])[:, task]
            moved = float(sign * lost_V[0])
            random = float(sign * lost_V[1:].mean()) if draws else None
        found.append(Attribution(parts, tried, effect_C, supports, opposes, moved, random))
    return found


def count_occluded_tokens(tokens: int, parts: int, tried: int, tasks: int = 1) -> int:
    """Most tokens that `attribute` has the network relax, of inputs of `tokens` tokens: those
    without one part together, and for each task those without several. Known before it runs, so
    that explanations can be charged what they take."""
    if not tried:
        return 0
    sets = _count_sets(parts)
    return max(tried * tokens, _MIN_TOKENS) + tasks * max(sets * tokens, _MIN_TOKENS)


def count_silenced_tokens(network: Architecture, tokens: int, tasks: int = 1) -> int:
    """As `count_occluded_tokens`, where the parts are the memories of `network`: each set of
    silenced memories is a batch of its own."""
    memories = sum(
        len(leaf.memories_MD)
        for block in network.blocks_in_order()
        for _, leaf in block.energy.leaves()
        if isinstance(leaf, Hopfield)
    )
    if not memories:
        return 0
    passes = min(memories, MAX_MEMORIES) + tasks * _count_sets(memories)
    return passes * max(tokens, _MIN_TOKENS)


def count_gradient_tokens(tokens: int, neighbours: int) -> int:
    """As `count_occluded_tokens`, for what `select_neighbours` computes."""
    return _GRADIENT_PASSES * max(tokens, _MIN_TOKENS) if neighbours > MAX_OCCLUDED else 0


def _count_sets(parts: int) -> int:
    """Sets of parts that `attribute` takes away together: the strongest, and those at random."""
    return 1 + (NUM_RANDOM_SETS if parts > 1 else 0)


def build_score_func(
    network: NodeScorer, params: DynamicsParams, target: int, control: StepControl
) -> ForwardFunc:
    """The score of a node, (V, 1); variants keep their nodes."""

    def read(logits_N: Tensor, rows: int) -> np.ndarray:
        return logits_N.view(rows, -1)[:, target : target + 1].double().numpy()

    return _value(network, params, control, read, 1)


def build_margin_func(
    network: GraphClassifier, params: DynamicsParams, labels: Sequence[int], control: StepControl
) -> ForwardFunc:
    """By how much the logit of `labels`, one a task, is above all others', (V, T): the log of the
    odds, uncalibrated."""

    def read(logits_RC: Tensor, rows: int) -> np.ndarray:
        parts = [part.double().numpy() for part in network.split_logits(logits_RC)]
        return np.stack(
            [compute_margins(p_RC, at) for p_RC, at in zip(parts, labels, strict=True)], 1
        )

    return _value(network, params, control, read, len(labels))


def compute_margins(logits_RC: np.ndarray, label: int) -> np.ndarray:
    """Of each row how far `label` is above all others together, (R,)."""
    return logits_RC[:, label] - logsumexp(np.delete(logits_RC, label, 1), 1)


def find_neighbours(graph: Graph, node: int) -> np.ndarray:
    """Nodes with an edge to or from `node`, of any relation, without itself."""
    source, receiver = np.asarray(graph.edge_index)
    other = np.concatenate([receiver[source == node], source[receiver == node]])
    return np.setdiff1d(other, [node]).astype(np.int64)


def remove_neighbour_edges(graph: Graph, node: int, others: Sequence[int]) -> Graph:
    """`graph` without the edges between `node` and `others`; all nodes stay."""
    source, receiver = np.asarray(graph.edge_index)
    gone = (source == node) & np.isin(receiver, others) | (receiver == node) & np.isin(
        source, others
    )
    return _with_edges(graph, ~gone)


def replace_features(
    graph: Graph, node: int, columns: Sequence[int], instead_F: np.ndarray
) -> Graph:
    """`graph` with these features of `node` as they are on average."""
    x = np.array(graph.x, np.float32)
    x[node, columns] = instead_F[columns]
    return replace(graph, x=x)


def remove_nodes(graph: Graph, nodes: Sequence[int]) -> Graph:
    """`graph`, which is no part of a larger one, without these nodes and their edges."""
    assert graph.outside is None
    stay = np.ones(graph.num_nodes, bool)
    stay[nodes] = False
    both_stay_E = np.logical_and.reduce(stay[np.asarray(graph.edge_index)])
    graph = _with_edges(graph, both_stay_E)
    place = np.cumsum(stay) - 1
    return replace(graph, x=graph.x[stay], edge_index=place[graph.edge_index])


@torch.inference_mode(False)  # within one nothing remembers what it was computed from
def compute_edge_gradients(
    network: NodeScorer, graph: Graph, params: DynamicsParams, node: int
) -> np.ndarray:
    """d score / d log w of the weight w that attention gives to the edges between `node` and each
    other node, (N,): a first guess of their effects, from one gradient through all steps.

    It knows nothing of what neighbours do to the features that a node is described by, and takes
    the steps of training, whatever `knobs.solver` says.
    """
    batch = network.pack([graph]).to(network.device)
    heads, edges = network.config.heads, batch.relations
    bias = [batch.x_NF.new_zeros(e.num_edges, heads).requires_grad_() for e in edges]
    weighed = tuple(e.weighed(bias_EH=b) for e, b in zip(edges, bias, strict=True))
    with torch.no_grad():
        encoded_NP = network.features(batch)
    with torch.enable_grad():
        logits_N = network(batch.with_relations(weighed), [params], encoded_NP)
        grads = torch.autograd.grad(logits_N[node], bias, allow_unused=True)
    slope_N = batch.x_NF.new_zeros(graph.num_nodes, dtype=torch.float64)
    for relation, grad_EH in zip(edges, grads, strict=True):
        if grad_EH is None:  # there is no attention to weigh
            continue
        grad_E = grad_EH.double().sum(1)
        i, j = relation.receivers_E, relation.indices_E.long()
        slope_N.index_add_(0, j[i == node], grad_E[i == node])
        slope_N.index_add_(0, i[j == node], grad_E[j == node])
    return slope_N.cpu().numpy()


def select_neighbours(
    network: NodeScorer, graph: Graph, params: DynamicsParams, node: int, others: np.ndarray
) -> list[int]:
    """Places among `others`, the neighbours of `node`: all, or of more than `TRIED` those with the
    largest `slopes`."""
    if len(others) <= MAX_OCCLUDED:
        return list(range(len(others)))
    slope_N = np.nan_to_num(compute_edge_gradients(network, graph, params, node))
    return np.argsort(-np.abs(slope_N[others]), kind="stable")[:MAX_OCCLUDED].tolist()


def list_memories(fired: Sequence[MemoryActivations]) -> list[MemoryId]:
    """Every memory of every block."""
    return [(block, m) for block, f in enumerate(fired) for m in range(len(f.mean_share_M))]


def select_memories(fired: Sequence[MemoryActivations], place: int | None = None) -> list[int]:
    """Places among `memories_of` of those with the largest shares: of one of the tokens asked for,
    or of the row."""
    shares = [f.mean_share_M if place is None else f.share_KM[place] for f in fired]
    share_A = np.concatenate(shares) if shares else np.empty(0)
    best = np.argsort(-share_A, kind="stable")[:MAX_MEMORIES]
    return best[share_A[best] > 0].tolist()


N = TypeVar("N", bound=Architecture)


class MemoryOccluder(Generic[N]):
    """A network without some of its memories; all other tensors are shared with the whole one.

    It is copied once, where first a memory is to be missing: that takes longer than an answer.
    """

    def __init__(self, network: N) -> None:
        self._whole = network

    @cached_property
    def _copy(self) -> N:
        tensors = (*self._whole.parameters(), *self._whole.buffers())
        return deepcopy(self._whole, {id(tensor): tensor for tensor in tensors})

    def occlude(self, silent: Collection[MemoryId]) -> N:
        """The network without these memories, until it is asked for without others."""
        if not silent:
            return self._whole
        blocks = zip(self._copy.blocks_in_order(), self._whole.blocks_in_order(), strict=True)
        for place, (block, whole) in enumerate(blocks):
            gone = [memory for at, memory in silent if at == place]
            leaves = zip(block.energy.leaves(), whole.energy.leaves(), strict=True)
            for (_, leaf), (_, of_whole) in leaves:
                if isinstance(leaf, Hopfield) and isinstance(of_whole, Hopfield):
                    stay = torch.ones_like(of_whole.memories_MD[:, 0], dtype=torch.bool)
                    stay[gone] = False
                    leaf.memories_MD = nn.Parameter(of_whole.memories_MD.detach()[stay])
        return self._copy


def _value(
    network: Architecture,
    params: DynamicsParams,
    control: StepControl,
    read: Callable[[Tensor, int], np.ndarray],
    tasks: int,
) -> ForwardFunc:
    """
    Raises:
        RunInterruptedError: `control` gave a reason.
    """

    silence = MemoryOccluder(network)

    def value(variants: Sequence[Perturbation]) -> np.ndarray:
        value_VT = np.empty((len(variants), tasks))
        for silent in dict.fromkeys(variant.silenced for variant in variants):
            heard = silence.occlude(silent)
            mine = [at for at, variant in enumerate(variants) if variant.silenced == silent]
            for some in _batches(network, mine, variants):
                batch = heard.pack([variants[at].graph for at in some])
                output = heard.infer(batch, [params] * len(some), control)
                if (why := control.stop_reason()) is not None:
                    raise RunInterruptedError(why)
                value_VT[some] = read(output.logits.cpu(), len(some))
        return value_VT

    return value


def _batches(
    network: Architecture, places: Sequence[int], variants: Sequence[Perturbation]
) -> Iterator[list[int]]:
    """As many at a time as memory should hold; a large one by itself."""
    held: list[int] = []
    size = 0
    for at in places:
        graph = variants[at].graph
        nodes, edges = graph.num_nodes, np.shape(graph.edge_index)[1]
        pairs = nodes + 2 * edges
        if isinstance(network, GraphClassifier):
            pairs = network.tokenizer.max_pairs(nodes, edges)
        if held and size + pairs > BATCH_ENTRIES:
            yield held
            held, size = [], 0
        held.append(at)
        size += pairs
    if held:
        yield held


def _with_edges(graph: Graph, stay_E: np.ndarray) -> Graph:
    kind, attr = graph.edge_type, graph.edge_attr
    return replace(
        graph,
        edge_index=np.asarray(graph.edge_index)[:, stay_E],
        edge_type=None if kind is None else np.asarray(kind)[stay_E],
        edge_attr=None if attr is None else attr[stay_E],
    )
