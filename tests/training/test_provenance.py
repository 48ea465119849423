"""The data that shipped checkpoints were trained on are loaded again by their manifests."""

from __future__ import annotations

import pytest

from models.checkpoint import load_checkpoint
from models.manifest import Manifest
from models.paths import find_shipped
from training.datasets import data_folder
from training.provenance import load_graph_data, load_node_data

NODES = ("cdat-amazon", "cdat-tolokers", "et-tolokers-hybrid", "et-yelpchi-hybrid")
GRAPHS = ("cdat-ames", "cdat-bbbp", "et-ames", "et-proteins")


def _manifest(name: str) -> Manifest:
    if not data_folder().is_dir():
        pytest.skip(f"{data_folder()} is not there")
    return load_checkpoint(find_shipped("checkpoints") / name).manifest


@pytest.mark.parametrize("name", NODES)
def test_of_nodes(name: str) -> None:
    manifest = _manifest(name)
    dataset, split = load_node_data(manifest)
    assert dataset.name == manifest.training["dataset"]
    assert len(split.test) == manifest.training["test_nodes"]


@pytest.mark.parametrize("name", GRAPHS)
def test_of_graphs(name: str) -> None:
    manifest = _manifest(name)
    _, split = load_graph_data(manifest)
    assert len(split.test) == manifest.training["test_graphs"]


def test_other_data_are_refused() -> None:
    manifest = _manifest("cdat-ames")
    other = manifest.model_copy(update={"training": manifest.training | {"data_sha256": "0" * 64}})
    with pytest.raises(ValueError, match="ames here is not what it was trained on"):
        load_graph_data(other)
