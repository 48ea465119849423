"""One training loop for every network, ours and the baselines, on nodes, graphs and images."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import safetensors
import safetensors.torch
import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import Tensor, nn

from training.common.hardware import precision_name
from training.common.muon import Muon

_FILE = "state.safetensors"


_APART = 1_000_003  # between seeds, which would else draw each other's batches


DEFAULT_BETAS = (0.9, 0.999)  # of AdamW, where a paper names none


class TrainConfig(Protocol):
    """What the loop takes from a recipe; recipes are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def warmup(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def check_every(self) -> int: ...
    @property
    def centralise(self) -> bool: ...


class TrainingTask(ABC):
    """Data, labels and their split, as the loop sees them: labels of the test part stay unread."""

    measure: str
    """What `validate` returns, for the log; higher is better."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one that was killed, as JSON."""

    def muon_parameters(self, network: nn.Module) -> list[nn.Parameter]:
        """What `Muon` is to train; the rest is AdamW's."""
        return []

    @abstractmethod
    def batches(self, seed: int, fabric: Fabric) -> Iterator[Any]:
        """The batches of one epoch; every process takes as many."""

    @abstractmethod
    def loss(self, model: nn.Module, step: Any) -> Tensor:
        """The loss of one batch."""

    @abstractmethod
    def validate(self, network: nn.Module) -> float:
        """How good the network is on the part to choose by."""


@dataclass(frozen=True)
class TrainResult:
    """A network at its best epoch by validation, by Lightning's name the precision it was trained
    in, and the seconds that took, those of processes that were killed too, up to their last state.
    An ensemble has an epoch of each member.
    """

    network: nn.Module
    best_epoch: int | tuple[int, ...]
    best_val: float
    precision: str
    seconds: float


def fit(
    network: nn.Module,
    problem: TrainingTask,
    recipe: TrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    run: Path | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train with AdamW, and Muon for what `problem` says, linear warm-up and cosine; keep the epoch
    with the best validation.

    With `run` the state is written there after every check, and a run that was killed goes on
    from it to the same result.

    Raises:
        ValueError: the state is another run's, or other processes have another one.
    """
    torch.manual_seed(seed)
    optimizer = build_optimizer(network, problem, recipe)
    if recipe.centralise:
        weights = _weights_to_centralize(network)
        optimizer.register_step_pre_hook(lambda *_: _centralize_gradients(weights))
    model, optimizer = fabric.setup(network, optimizer)
    identity = {
        "recipe": to_json_types(asdict(recipe)),
        "seed": seed,
        "precision": precision_name(fabric),
    }
    identity |= problem.identity()
    state = _RunState(network, optimizer, identity, run)
    # All have read the state before one writes it.
    epochs = fabric.all_gather(torch.tensor(state.epoch))
    if isinstance(epochs, Tensor) and epochs.unique().numel() > 1:
        raise ValueError(f"processes are at the epochs {epochs.tolist()}: they must share {run}")
    if not fabric.is_global_zero:
        state.run = run = None
    logger = _logger(run)
    task = progress.add_task(recipe.model, total=recipe.epochs) if progress else None

    for epoch in range(state.epoch, recipe.epochs):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(epoch, recipe)
        model.train()
        loss = torch.zeros(())
        for step in problem.batches(seed * _APART + epoch, fabric):
            loss = take_step(problem, model, optimizer, step, recipe, fabric)
        state.epoch = epoch + 1
        if state.epoch % recipe.check_every == 0 or state.epoch == recipe.epochs:
            # One process decides which epoch is best: rounding may differ between devices.
            value = fabric.broadcast(problem.validate(network))
            state.check(value)
            if logger is not None:
                logger.add_scalar("loss", loss.item(), epoch)
                logger.add_scalar(problem.measure, value, epoch)
            if progress and task is not None:
                progress.update(
                    task, completed=state.epoch, description=f"{recipe.model} val {value:.4f}"
                )
    state.restore_best()
    if progress and task is not None:
        progress.remove_task(task)
    precision, seconds = precision_name(fabric), round(state.seconds, 3)
    return TrainResult(network, state.best_epoch, state.best_val, precision, seconds)


def build_optimizer(
    network: nn.Module, problem: TrainingTask, recipe: TrainConfig
) -> torch.optim.Optimizer:
    """AdamW, or Muon for the matrices that `problem` names and AdamW for the rest."""
    values = list(network.parameters())
    matrices = problem.muon_parameters(network)
    make = partial(Muon, values, matrices) if matrices else partial(torch.optim.AdamW, values)
    return make(
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def take_step(
    problem: TrainingTask,
    model: Any,
    optimizer: Any,
    batch: Any,
    recipe: TrainConfig,
    fabric: Fabric,
) -> Tensor:
    """Train on one batch, and return its loss; model and optimizer are those of `fabric.setup`."""
    loss = problem.loss(model, batch)
    optimizer.zero_grad()
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=recipe.clip)
    optimizer.step()
    return loss


def split_between_processes(starts: Sequence[int], fabric: Fabric) -> Sequence[int]:
    """The batches of one process. All take equally many, or the others would wait for ever.

    Raises:
        ValueError: there are too few batches for every process to have one.
    """
    if len(starts) < fabric.world_size:
        raise ValueError("fewer batches than processes: use smaller batches")
    whole = len(starts) // fabric.world_size * fabric.world_size
    return starts[fabric.global_rank : whole : fabric.world_size]


def find_nearest_size(
    make: Callable[[int], nn.Module], wanted: int, widths: Sequence[int]
) -> nn.Module:
    """The network of `make(width)` with most nearly `wanted` parameters; more with the width."""

    def size(width: int) -> int:
        return count_parameters(make(width))

    with torch.device("meta"):
        above = bisect_left(widths, wanted, key=size)
        near = widths[max(above - 1, 0) : above + 1]
        width = min(near, key=lambda width: abs(size(width) - wanted))
    return make(width)


def count_parameters(network: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


_FEW_INPUTS = 8


def _weights_to_centralize(network: nn.Module) -> list[Tensor]:
    """The weights whose gradients are centralised: of linear maps with enough inputs that a mean
    means something. A map of one input would never learn.

    Of energies and motion none is: queries, keys, memories and the basis of W are bare parameters,
    in layouts of their own.
    """
    return [
        module.weight
        for module in network.modules()
        if isinstance(module, nn.Linear) and module.in_features >= _FEW_INPUTS
    ]


def _centralize_gradients(weights: Sequence[Tensor]) -> None:
    """Take the mean over its inputs from the gradient of each output (Yong et al. 2020, eq. 1)."""
    for weight in weights:
        if weight.grad is not None:
            weight.grad.sub_(weight.grad.mean(1, keepdim=True))


def to_json_types(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


def _schedule(epoch: int, recipe: TrainConfig) -> float:
    """Linear warm-up, then cosine to zero; a function of the epoch alone, so resuming is exact."""
    warm = max(1, round(recipe.warmup * recipe.epochs))
    if epoch < warm:
        return (epoch + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (epoch - warm) / max(1, recipe.epochs - warm)))


class _RunState:
    """Where a run is and its best weights so far; on disk in safetensors and JSON."""

    def __init__(
        self, network: nn.Module, optimizer: Any, identity: dict[str, Any], run: Path | None
    ) -> None:
        self.network, self.optimizer, self.identity, self.run = network, optimizer, identity, run
        self.epoch = self.best_epoch = 0
        self._began, self._before_s = time.perf_counter(), 0.0
        self.best_val = -math.inf
        self.best = self._weights()
        if run is not None and (run / _FILE).is_file():
            self._resume(run / _FILE)

    @property
    def seconds(self) -> float:
        """Of training so far."""
        return self._before_s + time.perf_counter() - self._began

    def _weights(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.network.state_dict().items()}

    def check(self, value: float) -> None:
        if value > self.best_val:
            self.best_val, self.best_epoch, self.best = value, self.epoch, self._weights()
        if self.run is not None:
            self._save(self.run)

    def restore_best(self) -> None:
        self.network.load_state_dict(self.best)

    def _save(self, run: Path) -> None:
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
            "seconds": self.seconds,
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
            what = "of another recipe, precision, split, seed or graph"
            raise ValueError(f"{path}: {what}; use another folder")
        self.epoch, self.best_epoch = progress["epoch"], progress["best_epoch"]
        self.best_val, self._before_s = progress["best_val"], progress["seconds"]

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
