"""Decode the image and the mask of a `POST /complete` request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.inputs.image_files.data import ImageData
from models.inputs.image_files.decode import decode_image
from service.endpoints.complete.masks import unknown_of
from service.endpoints.complete.parse import CompletionRequest
from service.imaging.errors import image_errors_at


@dataclass(frozen=True)
class DecodedRequest:
    """An image, and which of its pixels (H, W) are to be filled."""

    image: ImageData
    unknown: np.ndarray


def decode_request(request: CompletionRequest) -> DecodedRequest:
    """
    Raises:
        Problem: `invalid-image`, for pixels that cannot be decoded or a mask that says nothing.
    """
    with image_errors_at("/image"):
        image = decode_image(request.image)
    if request.mask is None:
        with image_errors_at("/image"):
            return DecodedRequest(image, unknown_of(request.mask_mode, image))
    with image_errors_at("/mask"):
        return DecodedRequest(image, unknown_of(request.mask_mode, decode_image(request.mask)))
