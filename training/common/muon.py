"""The Muon optimizer for weight matrices, and AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_UPDATE_RMS = 0.2  # about the RMS of an AdamW update
_NEWTON_SCHULZ_STEPS = 5
_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of Jordan et al. 2024


@final
class Muon(torch.optim.AdamW):
    """Train `matrices` by orthogonalized momentum, and the other parameters by AdamW.

    The Nesterov momentum (0.95) of each matrix is replaced by the nearest matrix with orthogonal
    rows or columns, by five Newton-Schulz steps (Jordan et al. 2024), times 0.2 sqrt(max(A, B)).
    Its entries are then as large as those of an AdamW update, so both share one learning rate and
    one weight decay (Liu et al. 2025, section 2.2). `torch.optim.Muon` supports neither stacks of
    matrices nor AdamW for the remaining parameters.

    Args:
        parameters: all parameters of the network.
        matrices: those of them that Muon trains, each (..., A, B); leading dimensions are stacks.
        **adamw: arguments of `torch.optim.AdamW`.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], matrices: Sequence[nn.Parameter], **adamw: Any
    ) -> None:
        matrix_ids = {id(p) for p in matrices}
        others = [p for p in parameters if id(p) not in matrix_ids]
        super().__init__([{"params": others}, {"params": list(matrices)}], **adamw)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        group = self.param_groups[1]
        for p in group["params"]:
            if p.grad is not None:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                scale = _UPDATE_RMS * max(p.shape[-2:]) ** 0.5
                p.sub_(group["lr"] * (orthogonalize(self._update_momentum(p)) * scale))
                p.grad = None  # AdamW skips parameters without a gradient
        super().step(closure)

    def _update_momentum(self, p: Tensor) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
            state["step"] = torch.zeros(())  # AdamW.load_state_dict requires it
        momentum = state["momentum"].lerp_(p.grad, 1 - _MOMENTUM)
        return p.grad.lerp(momentum, _MOMENTUM)


def orthogonalize(x: Tensor) -> Tensor:
    """Move the singular values of each matrix of `x` (..., A, B) close to one, to 0.7 to 1.2."""
    is_wide = x.shape[-2] <= x.shape[-1]
    x = x if is_wide else x.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if is_wide else x.mT
