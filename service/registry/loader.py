"""On what models run: a device, and whose kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import structlog
import torch

from models import checkpoint
from models.base import Block
from models.dynamics import StepBackend
from models.fused.system import FusedSystem, force_parallel_path
from service.registry.handles import Model, handle_for
from service.settings import Settings


class BackendUnavailableError(Exception):
    """The settings ask for what this machine has not; the message says what."""


@dataclass(frozen=True)
class ModelLoader:
    """Loads checkpoints for one device and backend.

    Attributes:
        device: a torch device.
        onnx: ONNX Runtime evaluates states wherever it has a graph for the model.
        threads: of ONNX Runtime; all cores if None.
    """

    device: str = "cpu"
    onnx: bool = False
    threads: int | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> ModelLoader:
        """
        Raises:
            BackendUnavailableError: there is no such GPU, or no ONNX Runtime.
        """
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        _, _, place = device.partition(":")
        if device != "cpu" and int(place or 0) >= torch.cuda.device_count():
            raise BackendUnavailableError(
                "BASIN_DEVICE: there is no such GPU here that torch can use"
            )
        is_installed = None not in (find_spec("onnxruntime"), find_spec("onnx"))
        if settings.backend == "onnx" and not is_installed:
            raise BackendUnavailableError("BASIN_BACKEND: pip install 'basin-server[cpu]'")
        # Where both have several threads, they get in each other's way.
        onnx = {"auto": is_installed and settings.threads == 1, "torch": False, "onnx": True}
        by_onnx = onnx[settings.backend] and device == "cpu"
        return cls(device, by_onnx, settings.threads)

    def load(self, path: Path) -> Model:
        """The checkpoint at `path`, which has run.

        Raises:
            CheckpointError: it cannot be trusted.
        """
        model = handle_for(checkpoint.load_checkpoint(path, self.device))
        if self.onnx:
            try:
                self._by_onnx(model)
                return model
            except Exception as error:  # whatever it is, torch can
                log = structlog.get_logger()
                log.info("no ONNX graph", model=model.name, reason=repr(error))
        self._prepare(model, Block.build_backend)
        return model

    def _by_onnx(self, model: Model) -> None:
        from models.onnx_backend.system import OnnxSystem  # an extra

        self._prepare(model, partial(OnnxSystem.of_block, threads=self.threads))

    def _prepare(self, model: Model, system_of: Callable[[Block], StepBackend]) -> None:
        """Its weights change no more; run it once each way: what tells of attention and components
        goes past what is made ready, and what is much is for several threads."""
        blocks = model.network.blocks_in_order()
        systems = [system_of(block) for block in blocks]  # any of which may not be had
        model.warm_up()
        for block, system in zip(blocks, systems, strict=True):
            on_cpu = self.device == "cpu"
            block.prepared_backend = FusedSystem.of_block(block, system) if on_cpu else system
        model.warm_up()
        if self.threads != 1 and any(isinstance(b.prepared_backend, FusedSystem) for b in blocks):
            with force_parallel_path():
                model.warm_up()
