"""What relaxing costs over the feed-forward network that one would take instead, of equal size.

The forward pass alone of shipped checkpoints, on a batch that is ready: `cdat-tolokers` and
`et-tolokers` on graphs with ten edges a node, beside a graph transformer with a layer for each
step; `cdat-ames` and `et-ames` on a molecule, once or many times, beside PyTorch Geometric's GIN of
four layers; `et-mnist` on pictures, beside a ViT of four. The width of each peer is the one at
which its parameters are nearest; tables that are looked up in do not count. Before is the papers'
way to make a step, the gradient of the same energy by autograd. All take turns; medians, and ratios
to the peer.

    python -m benchmarks.feedforward
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.classify import peer_of, size_of
from benchmarks.machine import describe
from benchmarks.overhead import graph_of
from benchmarks.timing import medians
from models import checkpoint
from models.architectures.et import ETImageConfig
from models.base import Architecture
from models.energies import Energy, Terms
from models.inputs.molecules import parse_smiles
from models.inputs.patches import MaskedImage
from models.layouts import Layout
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_scorer import NodeScorer
from training.tasks.anomaly.baselines import GraphTransformer
from training.tasks.complete.baselines import ViT

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
NODES, MOLECULES, PICTURES = (30, 500, 5000), (1, 64), (1, 16)
SMILES = "CC(=O)Nc1ccc(cc1)C(=O)N2CCN(CC2)c3ccc(cc3)C(F)(F)CCO"


class Differentiated(Energy):
    """The papers' way: the force by autograd of the energy."""

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy = energy

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        with torch.enable_grad():
            at_ND = g_ND.detach().requires_grad_()
            parts = self.energy(at_ND, layout, beta_RH, with_force=False).parts
            (slope_ND,) = torch.autograd.grad(sum(part_N.sum() for part_N in parts.values()), at_ND)
        return Terms({name: part_N.detach() for name, part_N in parts.items()}, -slope_ND)


@contextmanager
def by_autograd(network: Architecture) -> Iterator[None]:
    """Within, `network` makes its steps so."""
    blocks = network.blocks_in_order()
    closed = [block.energy for block in blocks]
    try:
        for block in blocks:
            block.energy = Differentiated(block.energy)
        yield
    finally:
        for block, energy in zip(blocks, closed, strict=True):
            block.energy = energy


@dataclass(frozen=True)
class Case:
    """What goes through the network, and through its peer."""

    name: str
    ours: Callable[[], Tensor]
    peer: Callable[[], Tensor]


def nodes(network: NodeScorer) -> Iterator[Case]:
    def made(dim: int) -> GraphTransformer:
        return GraphTransformer(network.config.model_copy(update={"dim": dim}))

    peer = nearest(made, range(16, 513, 4), size_of(network)).eval().to(network.device)
    for count in NODES:
        batch = network.pack([graph_of(count, len(network.config.features))])
        encoded_NP = network.features(batch)
        yield Case(
            f"{count:,} nodes",
            lambda batch=batch, x=encoded_NP: network(batch, None, x),
            lambda batch=batch, x=encoded_NP: peer(batch, None, x),
        )


def molecules(network: GraphClassifier) -> Iterator[Case]:
    peer = peer_of(network).to(network.device)
    for count in MOLECULES:
        batch = network.pack([parse_smiles(SMILES).graph] * count)
        yield Case(
            f"{count} molecules",
            lambda batch=batch: network(batch),
            lambda batch=batch: peer(batch),
        )


def pictures(network: ImageCompleter) -> Iterator[Case]:
    config, rng = cast(ETImageConfig, network.config), np.random.default_rng(0)
    peer, along = ViT.from_et_config(config).eval().to(network.device), config.size // config.patch
    for count in PICTURES:
        shape = config.size, config.size, config.channels
        each = [
            MaskedImage(rng.integers(0, 256, shape, np.uint8), rng.random((along, along)) < 0.5)
            for _ in range(count)
        ]
        batch = network.pack(each)
        yield Case(
            f"{count} pictures", lambda batch=batch: network(batch), lambda batch=batch: peer(batch)
        )


def nearest(made: Callable[[int], nn.Module], widths: range, size: int) -> nn.Module:
    """The one of some width that has most nearly as many parameters."""
    return min(map(made, widths), key=lambda network: abs(size_of(network) - size))


@torch.no_grad()
def compare(name: str, network: Architecture, case: Case) -> None:
    def before() -> Tensor:
        with by_autograd(network):
            return case.ours()

    closed = case.ours()
    torch.testing.assert_close(before(), closed, rtol=1e-3, atol=1e-3 * float(closed.abs().max()))
    works = {"peer": case.peer, "before": before, "after": case.ours}
    took = medians(works, f"{name}, {case.name}", "peer", repeats=3)
    ratios = " | ".join(f"{took[way] / took['peer']:.2f}" for way in ("before", "after"))
    times = " | ".join(f"{1e3 * took[way]:.2f}" for way in ("peer", "before", "after"))
    print(f"| {name} | {case.name} | {times} | {ratios} |", flush=True)


def main(device: str = "cpu") -> None:
    print(describe())
    print("| model | of | peer, ms | before, ms | after, ms | before / peer | after / peer |")
    print("|---|---|---|---|---|---|---|")
    for folder in sorted(CHECKPOINTS.iterdir()):
        network = checkpoint.load_checkpoint(folder, device).network
        if folder.name in ("cdat-tolokers", "et-tolokers"):
            cases = nodes(cast(NodeScorer, network))
        elif folder.name in ("cdat-ames", "et-ames"):
            cases = molecules(cast(GraphClassifier, network))
        elif isinstance(network, ImageCompleter):
            cases = pictures(network)
        else:
            continue
        for case in cases:
            compare(folder.name, network, case)


if __name__ == "__main__":
    main()
