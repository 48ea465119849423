"""Decode the image and the mask of a `POST /complete` request."""

from __future__ import annotations

from dataclasses import dataclass

from models.inputs.image_files.data import ImageData
from models.inputs.image_files.decode import decode_image
from service.endpoints.complete.masks import Hole, find_hole
from service.endpoints.complete.parse import CompletionRequest
from service.imaging.errors import image_errors_at


@dataclass(frozen=True)
class DecodedRequest:
    """An image, and what of it is to be filled."""

    image: ImageData
    hole: Hole


def decode_request(request: CompletionRequest) -> DecodedRequest:
    """
    Raises:
        Problem: `invalid-image`, for pixels that cannot be decoded or a mask that says nothing.
    """
    with image_errors_at("/image"):
        image = decode_image(request.image)
    if request.mask is None:
        with image_errors_at("/image"):
            return DecodedRequest(image, find_hole(request.mask_mode, image))
    with image_errors_at("/mask"):
        return DecodedRequest(image, find_hole(request.mask_mode, decode_image(request.mask)))
