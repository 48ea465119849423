"""How completers of windows are trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

CORES = ("et", "vit", "unet", "none")
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        **{"size": 32, "patch": 4, "dim": 96, "heads": 4, "head_dim": 24},
        **{"memories": 128, "blocks": 2, "steps": 2},
    },
    "large": {
        **{"size": 64, "patch": 4, "dim": 192, "heads": 6, "head_dim": 32},
        **{"memories": 256, "blocks": 3, "steps": 2},
    },
    "smoke": {
        **{"size": 16, "patch": 4, "dim": 24, "heads": 2, "head_dim": 12},
        **{"memories": 16, "blocks": 1, "steps": 2},
    },
}
"""`small` for a CPU, `large` for a GPU, `smoke` to see it run."""
_BATCH_WINDOWS = {"small": 32, "large": 1024}
_EPOCHS = {"small": 1800, "large": 112}


@dataclass(frozen=True)
class PhotoTrainConfig:
    """How to train one network on windows of photographs; `config` goes to the network.

    An epoch is `epoch_batches` batches of `batch_windows` windows, drawn anew, of which a
    `jpeg_share` is of photographs compressed as JPEG. Muon trains the matrices of energies and
    layers.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 100
    epoch_batches: int = 25
    batch_windows: int = 32
    masks: int = 32_000
    val_windows: int = 500
    jpeg_share: float = 0.0
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup: float = 0.02
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)
    check_every: int = 4

    @property
    def centralise(self) -> bool:
        return False


def photo_train_config(
    core: str,
    size: str,
    *,
    epochs: int | None = None,
    batch_windows: int | None = None,
    jpeg_share: float | None = None,
    smoke: bool = False,
) -> PhotoTrainConfig:
    """The recipe of a network of one of `SIZES`.

    Raises:
        ValueError: for a model or a size that is not known.
    """
    if core not in CORES:
        raise ValueError(f"unknown model {core!r}; known are {', '.join(CORES)}")
    if size not in _BATCH_WINDOWS:
        raise ValueError(f"unknown size {size!r}; known are {', '.join(_BATCH_WINDOWS)}")
    recipe = PhotoTrainConfig(
        core, SIZES[size], epochs=_EPOCHS[size], batch_windows=_BATCH_WINDOWS[size]
    )
    if smoke:
        recipe = PhotoTrainConfig(
            core,
            SIZES["smoke"],
            epochs=2,
            epoch_batches=2,
            batch_windows=8,
            masks=40,
            val_windows=16,
        )
    given = {"epochs": epochs, "batch_windows": batch_windows, "jpeg_share": jpeg_share}
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})
