"""On what models run: a device, and whose kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from models import checkpoint
from models.dynamics import System
from models.layouts import Dense
from service.served import Model, served
from service.settings import Settings


@dataclass(frozen=True)
class Machine:
    """A torch `device`, whether ONNX Runtime looks at states, and by how many threads: all cores if
    None.

    It looks where tokens all see each other, as patches do. On the edges of graphs its scatters
    take twice as long as `models.layouts.kernels`.
    """

    device: str = "cpu"
    onnx: bool = False
    threads: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Machine:
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = {"auto": _has_onnx(), "torch": False, "onnx": True}
        return cls(device, wanted[settings.backend], settings.threads)

    def ready(self, path: Path) -> Model:
        """The checkpoint at `path`, which has run once.

        Raises:
            CheckpointError: it cannot be trusted.
        """
        model = served(checkpoint.load(path, self.device))
        blocks = model.network.blocks_in_order()
        for block, system in zip(blocks, self._systems(model), strict=True):
            block.prepared = system  # the weights change no more
        model.warm_up()
        return model

    def _systems(self, model: Model) -> Sequence[System]:
        blocks, layouts = model.network.blocks_in_order(), model.layouts()
        if self.onnx and self.device == "cpu" and all(isinstance(of, Dense) for of in layouts):
            from models.onnx_step import NotExportableError, OnnxSystem  # an extra

            try:
                return [OnnxSystem.of_block(block, self.threads) for block in blocks]
            except NotExportableError:
                pass  # `GET /models` tells whose kernels it has
        return [block.system() for block in blocks]


def _has_onnx() -> bool:
    return None not in (find_spec("onnxruntime"), find_spec("onnx"))


def missing(settings: Settings) -> str | None:
    """What the settings ask for and this machine has not."""
    device = settings.device
    if device.startswith("cuda") and (
        int(device.partition(":")[2] or 0) >= torch.cuda.device_count()
    ):
        return "BASIN_DEVICE: there is no such GPU here that torch can use"
    if settings.backend == "onnx" and not _has_onnx():
        return "BASIN_BACKEND: pip install 'basin[cpu]'"
    return None
