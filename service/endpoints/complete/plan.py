"""Plan the windows of an image that `POST /complete` fills, within the limits of the settings."""

from __future__ import annotations

import numpy as np

from models.inputs.image_files.data import ImageError
from models.inputs.inpainting.plan import (
    MAX_PIXELS,
    HoleTooLargeError,
    Plan,
    Tiling,
    WholeImage,
    plan_windows,
)
from service.endpoints.common.envelope import require_supported_params
from service.endpoints.common.include import require_supported_includes
from service.endpoints.complete.decoding import DecodedRequest
from service.endpoints.complete.infer import WHOLE, CompleteInputs
from service.endpoints.complete.parse import CompletionRequest
from service.endpoints.complete.recall import RecalledMemory
from service.imaging.errors import image_errors_at
from service.registry.handles import Completer
from service.registry.registry import Registry


def find_completer(upload: CompletionRequest, registry: Registry, default: str) -> Completer:
    """Return the model that completes an image, by default the one of this name.

    Raises:
        Problem: there is no such model, or it does not read or give what is asked of it.
    """
    model = registry.get_of_kind(Completer, upload.model or default)
    require_supported_params(upload.dynamics, model.config)
    require_supported_includes(model.network, upload.include)
    return model


def plan_completion(
    upload: CompletionRequest, opened: DecodedRequest, tiling: Tiling, max_windows: int
) -> Plan:
    """Return the windows that cover the hole of an image.

    Raises:
        Problem: the hole takes more than `max_windows` for all samples, or has too many pixels.
    """
    with image_errors_at("/mask" if upload.mask else "/image"):
        return _plan_holes(opened.hole.hidden, tiling, max_windows, upload.num_samples)


def make_inputs(
    upload: CompletionRequest,
    opened: DecodedRequest,
    model: Completer | RecalledMemory,
    plan: Plan | WholeImage,
) -> CompleteInputs:
    """Return what to complete, with which model, in which windows."""
    return CompleteInputs(
        model,
        opened.image,
        plan,
        upload.num_samples,
        upload.dynamics.to_params(),
        upload.include,
        opened.hole.weights,
        _find_box(opened.hole.hidden) if upload.region == "hole" else WHOLE,
    )


def _plan_holes(hidden_HW: np.ndarray, tiling: Tiling, max_windows: int, num_samples: int) -> Plan:
    """
    Raises:
        ImageError: the holes take more than `max_windows` for all samples, or have too many pixels.
    """
    try:
        return plan_windows(hidden_HW, tiling, max_windows // num_samples)
    except HoleTooLargeError as error:
        limit = f"{max_windows} windows (BASIN_MAX_WINDOWS)"
        if error.limit == "pixels":
            limit = f"{MAX_PIXELS} pixels beside known ones"
        fewer = "" if num_samples == 1 else ", lower `num_samples`"
        rule = (
            f"This image takes more than {limit} to complete. Mark fewer pixels{fewer}, or send a "
            "smaller image."
        )
        raise ImageError("too_much_work", rule, "invalid-request") from error


def _find_box(hidden_HW: np.ndarray) -> tuple[slice, slice]:
    """The smallest rectangle with all hidden pixels, as rows and columns."""
    rows, columns = (np.flatnonzero(hidden_HW.any(axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
