"""What a checkpoint was trained on, found again from its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from models.manifest import Manifest
from training.datasets import (
    IMAGE_DATASETS,
    TU_DATASETS,
    GraphDataset,
    ImageDataset,
    NodeDataset,
    Split,
    balanced_scaffold_split,
    data_folder,
    k_folds,
    load_images,
    load_node_dataset,
    load_smiles,
    load_tu,
    random_split,
    random_splits,
    scaffold_split,
)
from training.datasets.cifar import load_cifar10
from training.datasets.clevr import load_clevr
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.triangle import load_triangle

_PICTURES: dict[str, Callable[[Path | None], LabeledImageDataset]] = {
    "cifar10": load_cifar10,
    "triangle": lambda _: load_triangle(),
    "sort-of-clevr": lambda _: load_clevr(),
}


def load_node_data(manifest: Manifest, folder: Path | None = None) -> tuple[NodeDataset, Split]:
    """The graph that scores were learned on, and its split.

    Raises:
        FileNotFoundError: the data are not here.
        ValueError: they are not those that the manifest tells.
    """
    dataset = load_node_dataset(_read_field(manifest, "dataset").removesuffix("-single"), folder)
    name = _read_field(manifest, "split")
    kind, _, number = name.rpartition("-")
    if kind == "official":
        split = dataset.official[int(number)]
    else:
        split = random_splits(dataset, float(kind), int(number) + 1)[-1]
    _require(manifest, dataset.fingerprint(split))
    return dataset, split


def load_graph_data(manifest: Manifest, folder: Path | None = None) -> tuple[GraphDataset, Split]:
    """The graphs or molecules that classes were learned on, and their split; raises as above."""
    name, split = _read_field(manifest, "dataset"), _read_field(manifest, "split")
    if name in TU_DATASETS:
        dataset = load_tu(name, folder)
    else:
        tasks = cast(list[dict[str, str]], manifest.config["tasks"])
        table = find_molecule_table(name, folder)
        dataset = load_smiles(table, "smiles", [task["name"] for task in tasks])
    if split.startswith("fold-"):
        _, fold, _, folds = split.split("-")
        chosen = k_folds(dataset, int(folds))[int(fold)]
    elif split == "scaffold":
        chosen = scaffold_split(dataset)
    else:
        kind, _, seed = split.rpartition("-")
        draw = random_split if kind == "random" else balanced_scaffold_split
        chosen = draw(dataset, int(seed))
    _require(manifest, dataset.fingerprint(chosen))
    return dataset, chosen


def load_image_data(manifest: Manifest, folder: Path | None = None) -> ImageDataset:
    """The images that completion was learned on; raises as above."""
    name = _read_field(manifest, "dataset")
    if name not in IMAGE_DATASETS:
        raise ValueError(f"{manifest.name}: {name!r} is a folder of images that is not told")
    dataset = load_images(name, folder)
    _require(manifest, dataset.fingerprint)
    return dataset


def load_labeled_image_data(manifest: Manifest, folder: Path | None = None) -> LabeledImageDataset:
    """The pictures that answers were learned on, as drawn or as published; raises as above."""
    dataset = _PICTURES[_read_field(manifest, "dataset")](folder)
    _require(manifest, dataset.fingerprint)
    return dataset


def find_molecule_table(name: str, folder: Path | None = None) -> Path:
    """The table `name`.csv, in small letters or not, in `folder`/molecules.

    Raises:
        FileNotFoundError: saying where it was looked for.
    """
    place = (folder or data_folder()) / "molecules"
    for path in sorted(place.glob("*.csv")):
        if path.stem.lower() == name.lower():
            return path
    raise FileNotFoundError(f"put {name}.csv into {place}, or set BASIN_DATA")


def _read_field(manifest: Manifest, name: str) -> str:
    return str(manifest.training[name])


def _require(manifest: Manifest, fingerprint: str) -> None:
    # Early checkpoints do not tell.
    if manifest.training.get("data_sha256", fingerprint) != fingerprint:
        dataset = _read_field(manifest, "dataset")
        raise ValueError(f"{manifest.name}: {dataset} here is not what it was trained on")
