"""Where labelled graphs and images come from."""

from training.datasets.graphs import (
    GraphDataset,
    as_published,
    balanced_scaffold_split,
    k_folds,
    random_split,
    scaffold_split,
)
from training.datasets.images import IMAGES, ImageDataset, load_folder, load_images
from training.datasets.nodes import NodeDataset, Split, random_splits
from training.datasets.smiles import load_smiles
from training.datasets.sources import DATASETS, data_folder, load, load_tables
from training.datasets.tu import TU, load_tu

__all__ = [
    "DATASETS",
    "IMAGES",
    "TU",
    "GraphDataset",
    "ImageDataset",
    "NodeDataset",
    "Split",
    "as_published",
    "balanced_scaffold_split",
    "data_folder",
    "k_folds",
    "load",
    "load_folder",
    "load_images",
    "load_smiles",
    "load_tables",
    "load_tu",
    "random_split",
    "random_splits",
    "scaffold_split",
]
