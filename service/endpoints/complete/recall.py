"""A memory in the place of a model: it completes images of the shape of those it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.inputs.inpainting.fill import Windows, scale_to_one
from models.memories import MemoryCard
from models.tasks.completer import CompletionConfig
from models.tasks.memory_completer import MemoryCompleter, MemoryConfig
from service.endpoints.common.memory_schemas import WORK_PER_COST, MemoryRef
from service.endpoints.complete.decoding import DecodedRequest
from service.endpoints.complete.parse import CompletionRequest
from service.errors import FieldError, make_problem, pointer
from service.settings import Settings
from service.storage.memories import MemoryStore
from service.validation.schema_errors import make_request_problem

COMPARISON_STEPS = 9
"""Time of comparing an image with all that is stored, in steps of that image."""
_UNSUPPORTED = {
    "attention": "attention",
    "explanation": "explanation of its answers",
    "uncertainty": "uncertainty",
}


@dataclass(frozen=True)
class RecalledMemory:
    """A stored memory and the network that completes one image from it."""

    ref: MemoryRef
    network: MemoryCompleter

    name = "complete:memory"
    """In metrics and in the queue, where clients' names would be too many. No checkpoint has a
    colon in its name."""
    energy_reference = None

    @property
    def config(self) -> CompletionConfig:
        return self.network.config

    @property
    def cost_per_step(self) -> float:
        """Cost of a step: all numbers of all patterns are multiplied."""
        return self.numbers / WORK_PER_COST

    @property
    def numbers(self) -> int:
        """Numbers of all patterns, K x D."""
        return self.ref.patterns * self.ref.dim

    @property
    def origin(self) -> dict[str, Any]:
        """What the response names as its source."""
        return {"memory": self.ref.model_dump()}


def require_fitting_memory(upload: CompletionRequest, store: MemoryStore) -> None:
    """Refuse, by the description of the memory alone, what cannot be completed from it.

    Raises:
        Problem: there is no such memory, it does not hold images of this size, or the request has
            parameters or parts of the answer that there are not with a memory.
    """
    assert upload.memory is not None
    _require_supported(upload)
    card = store.get_card(upload.memory)
    if card.kind != "images":
        rule = (
            f"This memory is of kind `{card.kind}`; an image is completed from a memory of kind "
            "`images`. GET /memories lists the kinds."
        )
        raise make_problem("invalid-request", "/memory", "wrong_kind", rule)
    _require_shape(upload.image.shape, card)


def _require_supported(upload: CompletionRequest) -> None:
    ignored = sorted(MemoryConfig.model_validate({}).ignored_params)
    faults = [
        FieldError(
            pointer("dynamics", name),
            "not_read",
            f"A memory has no attention that `{name}` could act on. Leave it out, or choose a "
            "model in place of the memory.",
        )
        for name in ignored
        if getattr(upload.dynamics, name) is not None
    ]
    faults += [
        FieldError(
            "/include",
            "not_told",
            f"This memory has no {what}: choose a model that has it, or leave out `{name}`.",
        )
        for name, what in _UNSUPPORTED.items()
        if name in upload.include
    ]
    if faults:
        raise make_request_problem(faults)


def _require_shape(shape: tuple[int, ...], card: MemoryCard) -> None:
    if shape == card.shape[:2]:
        return
    rule = (
        f"The image has {shape[1]} x {shape[0]} pixels; this memory completes images of "
        f"{card.shape[1]} x {card.shape[0]}, the size of those it holds. Send an image of "
        "that size, or store images of this one."
    )
    raise make_problem("invalid-image", "/image", "wrong_shape", rule)


def recall_memory(name: str, store: MemoryStore, opened: DecodedRequest) -> RecalledMemory:
    """
    Raises:
        Problem: since `require_fitting_memory` the memory was deleted, or replaced by another.
    """
    card, memory = store.get(name)
    _require_shape(opened.image.shape, card)  # and a shape of two or three is of images
    channels = min(opened.image.pixels.shape[2], card.shape[2] if len(card.shape) == 3 else 1)
    windows = Windows(scale_to_one(opened.image.pixels)[None], opened.hole.hidden[None])
    pixels, hidden = fit_channels(windows, channels)
    network = MemoryCompleter(memory, pixels, hidden[0]).eval()
    return RecalledMemory(MemoryRef.from_memory(memory, name, card.shape), network)


def require_max_work(work: int, settings: Settings) -> None:
    """Refuse a completion that would take too long, before anything is compared."""
    if work > settings.max_sample_work:
        rule = (
            f"This request takes {work} operations ((steps + 1) x rows of all samples + "
            f"{COMPARISON_STEPS} x rows of one, x stored images x numbers of each); at most "
            f"{settings.max_sample_work} (BASIN_MAX_SAMPLE_WORK) are allowed. Lower `steps` or "
            "`num_samples`, or store fewer images."
        )
        raise make_problem("invalid-request", "/dynamics/steps", "too_much_work", rule)


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
