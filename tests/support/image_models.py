"""Small networks with random weights that look at pictures, and requests to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from models import checkpoint
from models.architectures.ait import AiT, AiTConfig
from models.inputs.questions import ANSWERS, QUESTION_WIDTH
from models.manifest import EnergyReference, Manifest
from tests.support.completion import text
from tests.support.image_files import saved

GLYPHS = ("star", "ring", "cross")
SHAPES = {"ait-glyph": (3, 8, 12), "ait-grey": (1, 8, 8), "ait-scene": (3, 15, 15)}
TEMPERATURE = 2.0
SEEN = np.random.default_rng(5).integers(0, 256, (15, 15, 3), np.uint8)
OTHER = np.random.default_rng(6).integers(0, 256, (15, 15, 3), np.uint8)
SCENE = saved(SEEN)
SHAPE = "What is the shape of the red object?"
CLOSEST = {"asked": "shape of the closest", "colour": "blue"}


def save_recognisers(folder: Path) -> None:
    """`ait-glyph` (RGB) and `ait-grey`, which classify, and `ait-scene`, which answers questions on
    one object and on its relations."""
    for name, shape in SHAPES.items():
        asks = name == "ait-scene"
        labels = ANSWERS if asks else GLYPHS
        small = {"dim": 12, "heads": 2, "head_dim": 4, "memories": 5, "blocks": 2, "mlp": 16}
        config = AiTConfig.model_validate(
            {
                **small,
                "shape": shape,
                "patch": 5 if asks else 4,
                "question": QUESTION_WIDTH if asks else 0,
                "tasks": ({"name": "what", "labels": labels},),
                "slot_dim": 8,
                "slot_heads": 2,
                "share": 0.5,
                "steps": 3,
                "step_size": 0.3,
            }
        )
        pixels = np.random.default_rng(4).integers(0, 200, (9, *shape), np.uint8)
        network = AiT.from_images(config, pixels, 4)
        manifest = Manifest(
            name=name,
            version="4.0",
            architecture=network.name,
            task=network.task,
            config=network.config.model_dump(mode="json"),
            knobs=checkpoint.read_trained_params(network),
            features=(),
            temperatures=(TEMPERATURE,),
            energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(0.0, 5.0, 30.0)),
            training={"data": "random"},
            metrics={"test_accuracy_by_kind": {"non-relational": 0.5, "relational": 0.5}},
        )
        checkpoint.save_checkpoint(folder / name, network, manifest, "# A test model\n")


def look(client: Any, *images: bytes, headers: Any = None, **rest: Any) -> Any:
    """To the route that the rest belongs to."""
    sent = [text(image) for image in images]
    body = {"image": sent if len(sent) > 1 else sent[0], **rest}
    return client.post(path(rest), json=body, headers=headers)


def looked(client: Any, *images: bytes, **rest: Any) -> Any:
    response = look(client, *images, **rest)
    assert response.status_code == 200, response.text
    return response.json()


def form(client: Any, *images: bytes, headers: Any = None, **rest: Any) -> Any:
    fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in rest.items()}
    files = [("image", (f"{i}.png", image)) for i, image in enumerate(images)]
    return client.post(path(rest), data=fields, files=files, headers=headers)


def path(rest: dict[str, Any]) -> str:
    return "/images/answer" if "question" in rest else "/images/classify"


def only(answer: Any) -> Any:
    [result] = answer["results"]
    return result
