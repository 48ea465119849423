"""AdamW for most of what is learned, and Muon for the matrices inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_RMS = 0.2  # about that of an update of AdamW
_QUINTIC = (3.4445, -4.7750, 2.0315)


@final
class Muon(torch.optim.AdamW):
    """Steps of which all singular values are about one, for `matrices` (..., A, B), each by itself.

    The momentum of a matrix (Nesterov's, 0.95) is replaced by the nearest of orthogonal rows or
    columns, by five steps of Newton and Schulz (Jordan et al. 2024), times 0.2 sqrt(max(A, B)): so
    its entries are as large as AdamW's, and both have one learning rate and one weight decay (Liu
    et al. 2025, section 2.2). torch's Muon knows neither stacks of matrices nor AdamW beside it.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], matrices: Sequence[nn.Parameter], **adamw: Any
    ) -> None:
        inside = {id(p) for p in matrices}
        others = [p for p in parameters if id(p) not in inside]
        super().__init__([{"params": others}, {"params": list(matrices)}], **adamw)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        group = self.param_groups[1]
        for p in group["params"]:
            if p.grad is not None:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                step = orthogonal(self._momentum(p)) * (_RMS * max(p.shape[-2:]) ** 0.5)
                p.sub_(group["lr"] * step)
                p.grad = None  # nothing is left of it for AdamW
        super().step(closure)

    def _momentum(self, p: Tensor) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # AdamW asks for it when a state is loaded
        mean = state["momentum"].lerp_(p.grad, 1 - _MOMENTUM)
        return p.grad.lerp(mean, _MOMENTUM)


def orthogonal(x: Tensor) -> Tensor:
    """Each matrix of `x` (..., A, B) with its singular values brought to about one, 0.7 to 1.2."""
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT
