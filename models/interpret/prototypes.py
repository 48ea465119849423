"""What a network has learned, as images: its memories, attention and positions.

Tiles are (..., h, w, C), float, 0 black to 1 white; `axes` names all but the last three.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from models.architectures.ait import AiT, AiTLayer
from models.base import Architecture, Block
from models.energies import DotProductAttention, Hopfield
from models.tasks.image_completer import ImageCompleter
from models.tasks.window_completer import RelativeBias, WindowCompleter


@dataclass(frozen=True)
class Gallery:
    """Tiles, what they are of, what black and white mean, and how many belong into a row."""

    tiles: np.ndarray
    axes: tuple[str, ...]
    scale: str
    columns: int


def list_galleries(network: Architecture) -> dict[str, Callable[[], Gallery]]:
    """What there is to show of `network`, by name; none of it is made before it is asked for."""
    if isinstance(network, ImageCompleter):
        parts = [_parts(block) for block in network.blocks_in_order()]
        memories = [part for every in parts for part in every if isinstance(part, Hopfield)]
        heads = [part for every in parts for part in every if isinstance(part, DotProductAttention)]
        codec = network.codec
        along = codec.size // codec.patch
        galleries: dict[str, Callable[[], Gallery]] = {}
        if memories:
            galleries["memories"] = lambda: _memories(network, memories)
        if heads:
            galleries["attention"] = lambda: _attention(network, heads)
        return galleries | {
            "positions": lambda: build_position_gallery(codec.position_LD, (along, along))
        }
    if isinstance(network, WindowCompleter):
        return {"positions": lambda: _offsets(network)} if len(network.biases) else {}
    if isinstance(network, AiT):
        c = network.config
        galleries = {"positions": lambda: build_position_gallery(network.places_LD, c.grid)}
        if not c.workspace or c.stem:  # behind convolutions a token stands for no patch of pixels
            return galleries
        return {"memories": lambda: _attractors(network)} | galleries
    return {}


@torch.no_grad()
def build_position_gallery(position_LD: Tensor, grid: tuple[int, int]) -> Gallery:
    """Cosine similarity of the position of each patch to those of all patches, which lie on `grid`
    (Energy Transformer figure 2): black is -1, white 1."""
    unit_LD = normalize(position_LD.double(), dim=-1)
    cosine_LL = (unit_LD @ unit_LD.T).clamp(-1, 1)
    tiles = ((1 + cosine_LL) / 2).view(*grid, *grid, 1)
    scale = "cosine similarity, black -1 to white 1"
    return Gallery(tiles.cpu().numpy(), ("row", "column"), scale, grid[1])


@torch.no_grad()
def _offsets(network: WindowCompleter) -> Gallery:
    """What each head adds to the logits of two tokens by their offset."""
    wide = 2 * network.codec.along - 1
    bias_BHP = torch.stack([cast(RelativeBias, bias).bias_HP for bias in network.biases]).double()
    low, high = bias_BHP.amin(-1, keepdim=True), bias_BHP.amax(-1, keepdim=True)
    tiles = ((bias_BHP - low) / (high - low).clamp(min=1e-12)).unflatten(-1, (wide, wide, 1))
    scale = "bias of an offset, each tile from its lowest to its highest"
    return Gallery(tiles.cpu().numpy(), ("block", "head"), scale, bias_BHP.shape[1])


_PIXELS = "pixels as the decoder reads them, cut off at black and white"


@torch.no_grad()
def _memories(network: ImageCompleter, energies: list[Hopfield]) -> Gallery:
    """The memories xi of each Hopfield network through the decoder, as if they were tokens
    (Energy Transformer figures 2 and 5)."""
    memories_BMD = torch.stack([energy.memories_MD for energy in energies])
    columns = _square(memories_BMD)
    return Gallery(_decoded(network, memories_BMD), ("block", "memory"), _PIXELS, columns)


@torch.no_grad()
def _attention(network: ImageCompleter, energies: list[DotProductAttention]) -> Gallery:
    """The rows of W^Q and W^K of each head through the decoder (figure 6)."""
    both = [torch.stack([energy.query_HYD, energy.key_HYD]) for energy in energies]
    axes, columns = ("block", "query or key", "head", "row"), energies[0].head_dim
    return Gallery(_decoded(network, torch.stack(both)), axes, _PIXELS, columns)


@torch.no_grad()
def _attractors(network: AiT) -> Gallery:
    """What the memory of each workspace stands for: the patch y, standardised, whose embedding
    W y comes nearest to each attractor without the mean of all, by the pseudo-inverse of W.

    An attractor lives behind a LayerNorm, layers and places that no patch has, so this is a hint
    of what it looks for and no more; each tile is stretched to its own range for that reason.
    """
    c = network.config
    inverse_PD = torch.linalg.pinv(network.embed.weight.double())
    directions = []
    for layer in network.layers:
        workspace, lift = cast(AiTLayer, layer).workspace, cast(AiTLayer, layer).lift
        assert workspace is not None
        attractors_MD = lift(workspace.memory_MD).double()
        directions.append((attractors_MD - attractors_MD.mean(0)) @ inverse_PD.T)
    patch_BMP = torch.stack(directions)
    patch_BMP = patch_BMP * network.std_C.double().repeat_interleave(c.patch**2)
    low, high = patch_BMP.amin(-1, keepdim=True), patch_BMP.amax(-1, keepdim=True)
    patch_BMP = (patch_BMP - low) / (high - low).clamp(min=1e-12)
    tiles = patch_BMP.unflatten(-1, (c.shape[0], c.patch, c.patch)).movedim(-3, -1)
    scale = "direction of pixels, each tile from its lowest to its highest"
    return Gallery(tiles.cpu().numpy(), ("layer", "memory"), scale, _square(patch_BMP))


def _decoded(network: ImageCompleter, x_D: Tensor) -> np.ndarray:
    """Vectors (..., D) of the token space as patches (..., p, p, C)."""
    codec = network.codec
    y_NP = codec.decode_patches(x_D.flatten(0, -2)).clamp(0, 1)
    tiles = y_NP.view(*x_D.shape[:-1], codec.channels, codec.patch, codec.patch)
    return tiles.movedim(-3, -1).cpu().numpy()


def _square(vectors_BMD: Tensor) -> int:
    """Columns that make a square of all tiles."""
    return math.ceil(math.sqrt(vectors_BMD.shape[0] * vectors_BMD.shape[1]))


def _parts(block: Block) -> list[torch.nn.Module]:
    return list(block.energy.modules())
