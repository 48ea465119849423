"""Pictures with holes for POST /complete, and what comes back."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
from PIL import Image

from tests.support.image_files import FILES, saved

SHAPE = (20, 30)
HOLE = np.zeros(SHAPE, bool)
HOLE[4:9, 5:12] = True  # of one window
IMAGE, MASK = FILES["png"], saved(HOLE.astype(np.uint8) * 255)
NOISY = {"noise": 0.5, "seed": 7}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body(image: bytes = IMAGE, mask: bytes | None = MASK, **rest):
    return {"image": text(image), **({} if mask is None else {"mask": text(mask)}), **rest}


def send(client, image=IMAGE, mask=MASK, headers=None, **rest):
    return client.post("/complete", json=body(image, mask, **rest), headers=headers)


def completed(client, image=IMAGE, mask=MASK, **rest):
    response = send(client, image, mask, **rest)
    assert response.status_code == 200, response.text
    return response.json()


def as_form(client, image=IMAGE, mask=MASK, headers=None, **rest):
    fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in rest.items()}
    files = {"image": ("a.png", image), "mask": ("b.png", mask)}
    return client.post("/complete", data=fields, files=files, headers=headers)


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def pictures(answer) -> list[np.ndarray]:
    return [opened(base64.b64decode(image["b64_png"])) for image in answer["images"]]


def told(answer):
    """How the only completion came to rest."""
    [image] = answer["images"]
    return image["convergence"]


def hole(shape: tuple[int, int], *box: int) -> np.ndarray:
    """A rectangle (top, left, bottom, right) of hidden pixels."""
    hidden = np.zeros(shape, bool)
    top, left, bottom, right = box
    hidden[top:bottom, left:right] = True
    return hidden


def freely(height: int, width: int) -> np.ndarray:
    """A hole drawn by hand, as wide as it goes."""
    rows, columns = np.mgrid[:height, :width]
    around = np.hypot(rows - height / 2, columns - width / 3)
    stroke = np.abs(rows - height / 2 - 40 * np.sin(columns / 50)) < 6
    return (around < height / 8 + 10 * np.sin(columns / 7)) | stroke
