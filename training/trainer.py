"""One training loop for every network that scores nodes, ours and the baselines alike."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from models.graphs import GraphBatch
from training.datasets import Split
from training.sampler import NeighbourSampler

_FILE = "state.safetensors"


@dataclass(frozen=True)
class Recipe:
    """How to train one network. `config` goes to the network, the rest to the loop.

    `batch_nodes` set: each step trains on the labels of that many nodes, unset: on all of them.
    With `fanouts` a step sees only so many sampled neighbours per hop, for graphs that do not fit
    or whose labels are far apart; without, the whole graph.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 120
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    warmup: float = 0.1
    clip: float = 1.0
    batch_nodes: int | None = None
    fanouts: tuple[int, ...] | None = None
    check_every: int = 2


@dataclass(frozen=True)
class Fitted:
    """A network at its best epoch by validation ROC-AUC, and what it says of every node."""

    network: nn.Module
    logits: np.ndarray
    best_epoch: int
    best_val: float


def fit(
    network: nn.Module,
    batch: GraphBatch,
    encoded_NP: Tensor,
    labels: np.ndarray,
    split: Split,
    recipe: Recipe,
    *,
    seed: int,
    fabric: Fabric,
    run: Path | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train on `split.train`, keep the epoch with the best ROC-AUC on `split.val`.

    Weighted cross entropy, Energy Transformer eq. 12 (with the sign the text means). The labels of
    `split.test` are not read. With `run` the state is written there after every check, and a run
    that was killed goes on from it to the same result.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    model, optimizer = fabric.setup(network, optimizer)
    device = fabric.device
    batch, encoded_NP = batch.to(device), encoded_NP.to(device)
    target_N = torch.from_numpy(labels).float().to(device)
    fraud = float((labels[split.train] == 1).mean())
    weight = torch.tensor((1 - fraud) / fraud, device=device)
    identity = {
        "recipe": _plain(asdict(recipe)),
        "split": split.name,
        "seed": seed,
        "data": fingerprint(
            batch.x_NF, encoded_NP, *_edges(batch), labels, *split.parts().values()
        ),
    }
    state = _State(network, optimizer, identity, run)
    fabric.barrier()  # all have read the state before one writes it
    if not fabric.is_global_zero:
        state.run = run = None
    logger = _logger(run)
    task = progress.add_task(recipe.model, total=recipe.epochs) if progress else None

    for epoch in range(state.epoch, recipe.epochs):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(epoch, recipe)
        model.train()
        loss = torch.zeros(())
        for part, encoded, seeds, nodes in _steps(
            batch, encoded_NP, split.train, recipe, seed + epoch, fabric
        ):
            logits = model(part, None, encoded)[seeds]
            loss = nn.functional.binary_cross_entropy_with_logits(
                logits, target_N[nodes], pos_weight=weight
            )
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=recipe.clip)
            optimizer.step()
        state.epoch = epoch + 1
        if state.epoch % recipe.check_every == 0 or state.epoch == recipe.epochs:
            value = float(
                roc_auc_score(labels[split.val], _predict(network, batch, encoded_NP)[split.val])
            )
            # One process decides which epoch is best: rounding may differ between devices.
            state.check(fabric.broadcast(value))
            if logger is not None:
                logger.add_scalar("loss", loss.item(), epoch)
                logger.add_scalar("val_roc_auc", value, epoch)
            if progress and task is not None:
                progress.update(
                    task, completed=state.epoch, description=f"{recipe.model} val {value:.4f}"
                )
    state.restore_best()
    if progress and task is not None:
        progress.remove_task(task)
    logits = _predict(network, batch, encoded_NP)
    return Fitted(network, logits, state.best_epoch, state.best_val)


def fingerprint(*arrays: Tensor | np.ndarray) -> str:
    """SHA-256 of the contents and shapes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array.cpu() if isinstance(array, Tensor) else array)
        digest.update(f"{plain.dtype}{plain.shape}".encode())
        digest.update(plain.data)
    return digest.hexdigest()


def _edges(batch: GraphBatch) -> list[Tensor]:
    return [part for r in batch.relations for part in (r.indptr_N1, r.indices_E)]


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


def _schedule(epoch: int, recipe: Recipe) -> float:
    """Linear warm-up, then cosine to zero; a function of the epoch alone, so resuming is exact."""
    warm = max(1, round(recipe.warmup * recipe.epochs))
    if epoch < warm:
        return (epoch + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (epoch - warm) / max(1, recipe.epochs - warm)))


def _steps(
    batch: GraphBatch,
    encoded_NP: Tensor,
    train: np.ndarray,
    recipe: Recipe,
    seed: int,
    fabric: Fabric,
) -> Iterator[tuple[GraphBatch, Tensor, Tensor, Tensor]]:
    """(graph, encoding, seeds in it, the same nodes in the whole graph) for each step."""
    device = fabric.device
    if recipe.batch_nodes is None:
        nodes = torch.from_numpy(train).to(device)
        yield batch, encoded_NP, nodes, nodes
        return
    order = np.random.default_rng(seed).permutation(train)
    size = recipe.batch_nodes
    # Every process takes the same number of steps, or the others would wait for it for ever.
    together = size * fabric.world_size
    if len(order) >= together:
        order = order[: len(order) // together * together]
    elif fabric.world_size > 1:
        order = np.resize(order, together)
    sampler = NeighbourSampler(batch, recipe.fanouts) if recipe.fanouts else None
    for step, start in enumerate(range(0, len(order), size)):
        if step % fabric.world_size != fabric.global_rank:
            continue
        chosen = order[start : start + size]
        if sampler is None:
            nodes = torch.from_numpy(chosen).to(device)
            yield batch, encoded_NP, nodes, nodes
            continue
        part, kept = sampler.sample(chosen, seed=hash((seed, step)) % 2**32)
        nodes = torch.from_numpy(kept).to(device)
        seeds = torch.arange(len(chosen), device=device)
        yield part.to(device), encoded_NP[nodes], seeds, nodes[: len(chosen)]


@torch.no_grad()
def _predict(network: nn.Module, batch: GraphBatch, encoded_NP: Tensor) -> np.ndarray:
    network.eval()
    return network(batch, None, encoded_NP).float().cpu().numpy()


class _State:
    """Where a run is and its best weights so far; on disk in safetensors and JSON."""

    def __init__(
        self, network: nn.Module, optimizer: Any, identity: dict[str, Any], run: Path | None
    ) -> None:
        self.network, self.optimizer, self.identity, self.run = network, optimizer, identity, run
        self.epoch = self.best_epoch = 0
        self.best_val = -math.inf
        self.best = self._weights()
        if run is not None and (run / _FILE).is_file():
            self._resume(run / _FILE)

    def _weights(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.network.state_dict().items()}

    def check(self, value: float) -> None:
        if value > self.best_val:
            self.best_val, self.best_epoch, self.best = value, self.epoch, self._weights()
        if self.run is not None:
            self._write(self.run)

    def restore_best(self) -> None:
        self.network.load_state_dict(self.best)

    def _write(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        tensors = {f"network.{k}": v for k, v in self._weights().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors["rng"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["cuda_rng"] = torch.cuda.get_rng_state()
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in moments.items()}
        progress = {
            "identity": self.identity,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_val": self.best_val,
        }
        # One file holds all, moved into place whole: a kill leaves the old state or the new one.
        safetensors.torch.save_file(
            {k: v.cpu().contiguous() for k, v in tensors.items()},
            run / "state.tmp",
            {"progress": json.dumps(progress)},
        )
        (run / "state.tmp").replace(run / _FILE)

    def _resume(self, path: Path) -> None:
        with safetensors.safe_open(path, "pt") as file:
            progress = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if progress["identity"] != self.identity:
            raise ValueError(f"{path}: of another recipe, split, seed or graph; use another folder")
        self.epoch, self.best_epoch = progress["epoch"], progress["best_epoch"]
        self.best_val = progress["best_val"]

        def under(prefix: str) -> dict[str, Tensor]:
            return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}

        self.network.load_state_dict(under("network."))
        self.best = under("best.")
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in under("optimizer.").items():
            index, name = key.split(".", 1)
            moments.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        torch.set_rng_state(tensors["rng"])
        if "cuda_rng" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["cuda_rng"])


def _logger(run: Path | None) -> Any:
    if run is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run))
