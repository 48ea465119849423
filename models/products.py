"""Products with weights, by the faster of the libraries that torch was built with.

torch multiplies floats by MKL, which leaves half of a processor idle that is not Intel's and has
AVX-512: oneDNN, in torch as well, takes it all. Only where no gradient is wanted, and from a size
on where looking its kernel up is worth it. The choice depends on the processor and the shapes
alone, so that the same request has the same bits on two servers of a kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

_LEAST = 1 << 21  # multiply-adds below which a call costs more than it saves


def _wide(info: Path = Path("/proc/cpuinfo")) -> bool:
    """Is this such a processor, and a torch that has both?"""
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if op is None or not (torch.backends.mkl.is_available() and info.is_file()):
        return False
    text = info.read_text()
    return "GenuineIntel" not in text and "avx512f" in text


_ONEDNN = _wide()


def linear(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """x W^T + b, (..., F); `torch.nn.functional.linear`."""
    if (
        not _ONEDNN
        or torch.is_grad_enabled()
        or x_ND.numel() * len(weight_FD) < _LEAST
        or x_ND.dtype != torch.float32
        or weight_FD.dtype != torch.float32
        or x_ND.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
    ):
        return nn.functional.linear(x_ND, weight_FD, bias_F)
    product: Any = torch.ops.mkldnn._linear_pointwise
    return product(x_ND, weight_FD, bias_F, "none", [], "")


@final
class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
