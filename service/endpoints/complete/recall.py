"""A memory in the place of a model: it completes images of the shape of those it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.inputs.inpainting.fill import Windows, scale_to_one
from models.memories import Memory, MemoryCard
from models.tasks.completer import CompletionConfig
from models.tasks.memory_completer import MemoryCompleter
from service.endpoints.common.memory_schemas import WORK_PER_COST, MemoryRef
from service.endpoints.complete.decoding import DecodedRequest
from service.errors import make_problem


@dataclass(frozen=True)
class RecalledMemory:
    """A stored memory and the network that completes one image from it."""

    ref: MemoryRef
    network: MemoryCompleter

    name = "memory"  # in metrics and in the queue, where clients' names would be too many
    energy_reference = None

    @property
    def config(self) -> CompletionConfig:
        return self.network.config

    @property
    def cost_per_step(self) -> float:
        """Cost of a step: all numbers of all patterns are multiplied."""
        return self.ref.patterns * self.ref.dim / WORK_PER_COST

    @property
    def origin(self) -> dict[str, Any]:
        """What the response names as its source."""
        return {"memory": self.ref.model_dump()}


def recall_memory(
    name: str, find: Callable[[str], tuple[MemoryCard, Memory]], opened: DecodedRequest
) -> RecalledMemory:
    """
    Args:
        find: reads a memory by its id.

    Raises:
        Problem: there is no such memory, or it is not one of images of this size.
    """
    card, memory = find(name)
    if card.kind != "images":
        rule = (
            f"This memory is of kind `{card.kind}`; an image is completed from a memory of kind "
            "`images`. GET /memories lists the kinds."
        )
        raise make_problem("invalid-request", "/memory", "wrong_kind", rule)
    height, width = opened.image.shape
    if (height, width) != card.shape[:2]:
        rule = (
            f"The image has {width} x {height} pixels; this memory completes images of "
            f"{card.shape[1]} x {card.shape[0]}, the size of those it holds. Send an image of "
            "that size, or store images of this one."
        )
        raise make_problem("invalid-image", "/image", "wrong_shape", rule)
    channels = card.shape[2] if len(card.shape) == 3 else 1
    windows = Windows(scale_to_one(opened.image.pixels)[None], opened.hole.hidden[None])
    pixels, hidden = fit_channels(windows, channels)
    network = MemoryCompleter(memory, pixels, hidden[0]).eval()
    return RecalledMemory(MemoryRef.from_memory(memory, name, card.shape), network)


def fit_channels(windows: Windows, channels: int) -> Windows:
    """Windows of as many channels as a network reads: grayscale repeated for three, or each channel
    as a window of its own for one."""
    pixels, hidden = windows
    image = pixels.shape[-1]
    if image < channels:
        pixels = np.repeat(pixels, channels, axis=-1)
    elif image > channels:
        pixels = np.concatenate(np.split(pixels, image, axis=-1))
        hidden = np.concatenate([hidden] * image)
    return Windows(pixels, hidden)
