"""Where labelled graphs and images come from."""

from training.datasets.graphs import (
    GraphDataset,
    as_published_split,
    balanced_scaffold_split,
    k_folds,
    random_split,
    scaffold_split,
)
from training.datasets.images import IMAGE_DATASETS, ImageDataset, load_folder, load_images
from training.datasets.nodes import NodeDataset, Split, random_splits
from training.datasets.smiles import load_smiles
from training.datasets.sources import (
    NODE_DATASETS,
    data_folder,
    load_node_dataset,
    load_node_tables,
)
from training.datasets.tu import TU_DATASETS, load_tu

__all__ = [
    "IMAGE_DATASETS",
    "NODE_DATASETS",
    "TU_DATASETS",
    "GraphDataset",
    "ImageDataset",
    "NodeDataset",
    "Split",
    "as_published_split",
    "balanced_scaffold_split",
    "data_folder",
    "k_folds",
    "load_folder",
    "load_images",
    "load_node_dataset",
    "load_node_tables",
    "load_smiles",
    "load_tu",
    "random_split",
    "random_splits",
    "scaffold_split",
]
