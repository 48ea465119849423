"""GET /models/{name}/memories: what networks have learned, as pictures."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from models import checkpoint
from models.interpret.prototypes import list_galleries
from service.endpoints.models.schemas import GalleryBody
from service.imaging.encode import make_grid
from tests.service.endpoints.anomaly.test_bad_input import check

GAP = 2
SHOWN = [
    ("et-tile", "memories", (4, 4, 3), [2, 10]),
    ("et-tile", "attention", (4, 4, 3), [2, 2, 2, 4]),
    ("et-tile", "positions", (4, 4, 1), [4, 4]),
    ("et-grey", "memories", (4, 4, 1), [2, 10]),
    ("et-pane", "positions", (7, 7, 1), [2, 2]),
    ("ait-glyph", "memories", (4, 4, 3), [2, 5]),
    ("ait-glyph", "positions", (2, 3, 1), [2, 3]),
    ("ait-scene", "memories", (5, 5, 3), [2, 5]),
]


@pytest.mark.parametrize(("name", "show", "tile", "shape"), SHOWN)
def test_a_picture_has_every_tile(client, checkpoints, name, show, tile, shape):
    path = f"/models/{name}/memories?show={show}"
    response = client.get(path)
    assert response.headers["content-type"] == "image/png"
    image = Image.open(io.BytesIO(response.content))
    told = GalleryBody.model_validate_json(image.text["basin"])  # type: ignore[attr-defined]
    pixels = np.asarray(image).reshape(image.height, image.width, -1)
    assert (told.tile, told.shape, told.show) == (tile, shape, show)
    tiles = list_galleries(checkpoint.load_checkpoint(checkpoints / name).network)[
        show
    ]().tiles.reshape(-1, *tile)
    assert told.tiles == len(tiles) == np.prod(shape)
    assert (told.minimum, told.maximum) == (float(tiles.min()), float(tiles.max()))
    for i, expected in enumerate(tiles):
        top = i // told.columns * (tile[0] + GAP)
        left = i % told.columns * (tile[1] + GAP)
        found = pixels[top : top + tile[0], left : left + tile[1]]
        np.testing.assert_array_equal(found, np.rint(255 * expected).astype(np.uint8))


def test_tiles_of_a_single_row_stay_in_it():
    tiles = np.arange(6, dtype=np.uint8)[:, None, None].repeat(4, 2)
    assert make_grid(tiles, 6).shape == (1, 6 * (4 + GAP) - GAP)
    assert make_grid(tiles).shape == (2 * (1 + GAP) - GAP, 3 * (4 + GAP) - GAP)


def test_as_json(client):
    response = client.get("/models/et-tile/memories", headers={"accept": "application/json"})
    told = GalleryBody.model_validate_json(response.content, strict=True)
    image = Image.open(io.BytesIO(client.get("/models/et-tile/memories").content))
    beside = json.loads(image.text["basin"])  # type: ignore[attr-defined]
    assert beside | {"request_id": ""} == response.json() | {"request_id": ""}
    assert told.model.name == "et-tile"
    assert (told.axes, told.shape, told.columns) == (["block", "memory"], [2, 10], 5)
    assert image.size == (5 * 6 - 2, 4 * 6 - 2)
    assert told.request_id == response.headers["x-request-id"]


def test_what_cannot_be_shown(client):
    def show(name, query="", **headers):
        return client.get(f"/models/{name}/memories{query}", headers=headers)

    for name in ("et-small", "cdat-mol"):
        problem = check(show(name), 404, "nothing-to-show", "nothing_to_show", "/show")
        assert problem.detail == "This model does not read images, so it has none to show."
    problem = check(show("ait-scene", "?show=attention"), 404, "nothing-to-show")
    assert problem.detail.endswith("Its values of `show` are memories, positions.")
    check(show("et-tile", "?show=dreams"), 422, "invalid-request", "not_allowed", "/show")
    check(show("et-tile", "?show="), 422, "invalid-request", "not_allowed", "/show")
    check(show("none"), 404, "unknown-model", "unknown_model")
    check(show("et-tile", accept="image/webp"), 406, "not-acceptable")


def test_it_is_described(client):
    described = client.get("/openapi.json").json()["paths"]["/models/{name}/memories"]["get"]
    [show] = [each for each in described["parameters"] if each["name"] == "show"]
    assert show["schema"]["enum"] == ["memories", "attention", "positions"]
    assert set(described["responses"]["200"]["content"]) == {"application/json", "image/png"}
    refusals = {"401", "403", "404", "406", "422", "429", "500", "503"}
    assert set(described["responses"]) == {"200", *refusals}
