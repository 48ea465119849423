"""ONNX Runtime in place of torch, to look at a state or to make the products of a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, final

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from models.base import Block
from models.dynamics import StepBackend
from models.energies import Energy, PreparedSum, Terms
from models.layouts import Dense, EdgeList, Layout
from models.onnx_backend.export import Form, export, form_of, products


@final
class OnnxField(PreparedSum):
    """A sum of energies whose products ONNX Runtime makes, where they are large: calls cost."""

    _LEAST: ClassVar = 1 << 21  # multiply-adds

    def __init__(
        self, leaves: Sequence[tuple[Tensor | float, Energy]], threads: int | None
    ) -> None:
        super().__init__(leaves)
        assert self.directions_FD is not None
        self._up = _session(products([self.directions_FD.T]), threads)
        self._back = _session(products(self.weighted_directions), threads)

    def features(self, g_ND: Tensor) -> Sequence[Tensor]:
        if not self._is_worth(g_ND):
            return super().features(g_ND)
        return self._run(self._up, [g_ND]).split(self.feature_widths, 1)

    def project_back(self, pulls: Sequence[Tensor]) -> Tensor:
        return (
            self._run(self._back, pulls)
            if self._is_worth(pulls[0])
            else super().project_back(pulls)
        )

    def _is_worth(self, x_NK: Tensor) -> bool:
        assert self.directions_FD is not None
        return _takes(x_NK) and len(x_NK) * self.directions_FD.numel() >= self._LEAST

    @staticmethod
    def _run(session: onnxruntime.InferenceSession, given: Sequence[Tensor]) -> Tensor:
        feeds = {f"x{i}": x_NK.contiguous().numpy() for i, x_NK in enumerate(given)}
        (found,) = cast(Any, session.run(None, feeds))
        return torch.from_numpy(found)


@final
@dataclass(frozen=True)
class OnnxSystem(StepBackend):
    """A system at whose states ONNX Runtime looks where tokens of a row all lie beside each other;
    on the edges of graphs, and where something resonates, it makes the products. What is not of
    single precision, or not on the CPU, goes to torch.

    Attributes:
        threads: of one look; as many as torch's if None.
    """

    block: Block
    threads: int | None
    sessions: dict[Form, onnxruntime.InferenceSession] = field(default_factory=dict)

    @property
    def runtime(self) -> str:
        return "onnxruntime"

    @classmethod
    def of_block(cls, block: Block, threads: int | None = None) -> OnnxSystem:
        """
        Raises:
            NotExportableError: a part of the block is not known here.
        """
        export(block, Form("dense"), steps=False)
        products = OnnxField(block.energy.leaves(), threads)
        return cls(block.energy, block.motion, block.norm, products, block, threads)

    def evaluate(
        self, x_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[Tensor, Terms]:
        form = form_of(layout)
        if form is None or form.layout == "edges" or not _takes(x_ND):
            return super().evaluate(x_ND, layout, beta_RH, with_force)
        session, feeds = self._session(form), _feeds(x_ND, layout, beta_RH)
        names = [output.name for output in session.get_outputs()]
        outputs = {
            name: torch.from_numpy(of)
            for name, of in zip(names, cast(Any, session.run(names, feeds)), strict=True)
        }
        # The force is there whether it is asked for or not: once a relaxation it is not.
        g_ND, force_ND = (outputs.pop(name).view(x_ND.shape) for name in ("g", "force"))
        parts = {name.removeprefix("energy."): of.flatten() for name, of in outputs.items()}
        return g_ND, Terms(parts, force_ND if with_force else None)

    def _session(self, form: Form) -> onnxruntime.InferenceSession:
        if form not in self.sessions:
            model = export(self.block, form, steps=False)
            self.sessions[form] = _session(model, self.threads)
        return self.sessions[form]


def _takes(x_ND: Tensor) -> bool:
    return x_ND.dtype == torch.float32 and x_ND.device.type == "cpu"


def _session(model: onnx.ModelProto, threads: int | None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    # Threads that spin between steps take time from others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Shapes differ from batch to batch: nothing is kept for the next of its kind.
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    told = model.SerializeToString()
    return onnxruntime.InferenceSession(told, options, ["CPUExecutionProvider"])


def _feeds(x_ND: Tensor, layout: Layout, beta_RH: Tensor) -> dict[str, np.ndarray]:
    """The inputs of such a graph but for `step_size`."""
    if isinstance(layout, Dense):
        given = {
            "x": x_ND.view(layout.rows, layout.length, -1),
            "sees": layout.shared_mask,
            "beta": beta_RH,
            "weight": layout.weight_RHLL,
            "bias": layout.bias_RHLL,
        }
    else:
        assert isinstance(layout, EdgeList)
        given = {
            "x": x_ND,
            "receivers": layout.receivers_E,
            "sources": layout.indices_E.long(),
            "beta": layout.of_tokens(beta_RH),
            "weight": layout.weight_EH,
            "bias": layout.bias_EH,
        }
    return {name: of.contiguous().numpy() for name, of in given.items() if of is not None}
