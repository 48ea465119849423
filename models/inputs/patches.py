"""Images as patches: images with holes, a batch of them, and the way to tokens and back.

Beside the suffixes of `models.layouts`: C channels, L patches of an image (N = R L), P numbers of a
patch. Images are uint8 (S, S, C) outside and float, 0 black to 1 white, (R, C, S, S) inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from models.nn.layer_norm import EnergyLayerNorm

_DEVIATION = 0.3  # of MASK before training
_LEAST = 1 / 256  # of the variance that an image is standardised by; a sixteenth of the spread
_SLOWEST = 100  # of the waves that positions are before training, in patches to a radian


@dataclass(frozen=True)
class MaskedImage:
    """pixels uint8 (S, S, C) and occluded bool (S / patch, S / patch): the patches to complete.

    What the pixels of an occluded patch are has no part in anything.
    """

    pixels: np.ndarray
    occluded: np.ndarray


@final
class PatchBatch:
    """R images of L patches each, 0 to 1, and which of them are replaced by MASK.

    No dataclass: Lightning's mixed precision would copy one at every step.
    """

    def __init__(self, patches_NP: Tensor, occluded_N: Tensor, rows: int) -> None:
        self.patches_NP, self.occluded_N, self.rows = patches_NP, occluded_N, rows

    @property
    def patches_per_image(self) -> int:
        return len(self.occluded_N) // self.rows

    @property
    def row_of_N(self) -> Tensor:
        return self.row_of_outputs.repeat_interleave(self.patches_per_image)

    @property
    def row_of_outputs(self) -> Tensor:
        return torch.arange(self.rows, device=self.occluded_N.device)

    @property
    def hidden_share_R(self) -> Tensor:
        """Share of the patches of each image that are replaced by MASK."""
        return self.occluded_N.view(self.rows, -1).float().mean(1)

    def to(self, device: torch.device | str) -> PatchBatch:
        return PatchBatch(self.patches_NP.to(device), self.occluded_N.to(device), self.rows)


def collate_masked_images(images: Sequence[MaskedImage], patch: int) -> PatchBatch:
    """Images of one size as a batch."""
    pixels = torch.from_numpy(np.stack([image.pixels for image in images]))
    occluded = torch.from_numpy(np.stack([image.occluded for image in images]))
    return build_patch_batch(pixels, occluded.flatten(1), patch)


def build_patch_batch(images_RSSC: Tensor, occluded_RL: Tensor, patch: int) -> PatchBatch:
    """Images, uint8, as a batch on the device they lie on."""
    images_RCSS = images_RSSC.permute(0, 3, 1, 2).float() / 255
    return PatchBatch(patchify(images_RCSS, patch), occluded_RL.flatten(), len(images_RSSC))


def patchify(images_RCHW: Tensor, patch: int) -> Tensor:
    """Non-overlapping patches (N, P), row by row, each with its channels in turn."""
    channels, height, width = images_RCHW.shape[1:]
    cut = images_RCHW.reshape(-1, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * patch**2)


def unpatchify(patches_NP: Tensor, channels: int, size: int) -> Tensor:
    """The images (R, C, S, S) that `patchify` cut."""
    patch = round((patches_NP.shape[1] / channels) ** 0.5)
    along = size // patch
    cut = patches_NP.reshape(-1, along, along, channels, patch, patch)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, size, size)


def measure_hidden_shares(mask_SS: np.ndarray, patch: int) -> np.ndarray:
    """(S / patch, S / patch): the share of each patch that a mask, bool (S, S), hides."""
    along = len(mask_SS) // patch
    return np.asarray(mask_SS.reshape(along, patch, along, patch).mean((1, 3)))


def patch_mask_to_pixels(occluded: np.ndarray, patch: int) -> np.ndarray:
    """bool (..., S, S): the pixels of occluded patches (..., S / patch, S / patch)."""
    return occluded.repeat(patch, -1).repeat(patch, -2)


def composite(images_RSSC: np.ndarray, mask_RSS: np.ndarray, pixels_RCSS: Tensor) -> np.ndarray:
    """uint8 (R, S, S, C): completed pixels where the mask is, the image byte for byte elsewhere."""
    completed = (255 * pixels_RCSS).round().clamp(0, 255).to(torch.uint8)
    return np.where(mask_RSS[..., None], completed.permute(0, 2, 3, 1).cpu().numpy(), images_RSSC)


def build_sincos_positions(along: int, dim: int) -> Tensor:
    """Sine and cosine of the row and of the column of each patch at dim // 4 frequencies, (L, D).

    Those of Vaswani et al. 2017, section 3.5, in two dimensions as He et al. 2022 have them: what
    is a patch further on is the same rotation at every place.
    """
    count = dim // 4
    frequency = float(_SLOWEST) ** -(torch.arange(count) / max(count, 1))
    places = torch.arange(along)[:, None] * frequency
    of_place = torch.cat([places.sin(), places.cos()], 1)
    rows, columns = of_place.repeat_interleave(along, 0), of_place.repeat(along, 1)
    return nn.functional.pad(torch.cat([rows, columns], 1), (0, dim - 4 * count))


@final
class PatchCodec(nn.Module):
    """Between the image plane and the token space, Energy Transformer appendix B and algorithm 1.

    A token is W_enc (y - mean) / std + delta_enc of its patch y, or MASK where that is occluded,
    plus a learned position delta_pos. A token x is read as mean + std (W_dec LayerNorm(x) +
    delta_dec). mean and std are of each channel on the training images.

    The paper draws all of it from N(0, 0.02). Here W_enc and W_dec follow the number of their
    inputs, which is about the same at its P and D, MASK has a deviation of 0.3, or it would drown
    beside patches of 0.6 at first, and positions begin as waves, or who a neighbour is would have
    to be learned at each place anew (docs/decisions/0010-images.md).

    With a `contrast` above 0, mean and std are of each image where what is known of it is even.
    Let w be the variance of its known pixels, in units of std^2 and over the channels, divided by
    contrast^2, and no less than 1/256: below 1, std sqrt(w) and m + w (mean - m) take the place of
    std and mean, m being the mean of the known pixels. So a clear sky is seen as other images
    are, and what is off in it is off by as much less as it is more even.
    """

    mean_C: Tensor
    std_C: Tensor

    def __init__(
        self, size: int, patch: int, channels: int, dim: int, contrast: float = 0.0
    ) -> None:
        super().__init__()
        self.size, self.patch, self.channels, self.contrast = size, patch, channels, contrast
        self.num_patches, self.patch_dim = (size // patch) ** 2, channels * patch**2
        self.register_buffer("mean_C", torch.full((channels,), 0.5))
        self.register_buffer("std_C", torch.full((channels,), 0.5))
        self.encoder = nn.Linear(self.patch_dim, dim)
        self.mask_D = nn.Parameter(torch.randn(dim) * _DEVIATION)
        self.position_LD = nn.Parameter(build_sincos_positions(size // patch, dim))
        self.norm = EnergyLayerNorm(dim)
        self.decoder = nn.Linear(dim, self.patch_dim)

    def fit(self, images: np.ndarray) -> None:
        """Take mean and std from images, uint8 (n, S, S, C)."""
        shades = np.arange(256) / 255
        count_CK = np.zeros((self.channels, 256))
        for part in np.array_split(images, 1 + len(images) // 1000):
            flat = part.reshape(-1, self.channels).T
            count_CK += [np.bincount(values, minlength=256) for values in flat]
        share_CK = count_CK / count_CK.sum(1, keepdims=True)
        mean_C = share_CK @ shades
        std_C = (share_CK * (shades - mean_C[:, None]) ** 2).sum(1) ** 0.5
        self.mean_C.copy_(torch.from_numpy(mean_C))
        self.std_C.copy_(torch.from_numpy(std_C).clamp(min=1 / 255))  # one shade has no spread

    def get_training_scale(self) -> tuple[Tensor, Tensor]:
        """mean and std of each number of a patch, (P,)."""
        both = self.mean_C, self.std_C
        mean_P, std_P = (values.repeat_interleave(self.patch**2) for values in both)
        return mean_P, std_P

    def encode(self, batch: PatchBatch) -> Tensor:
        """x(1) (N, D)."""
        mean, std = self.compute_scale(batch)
        y_NP = (batch.patches_NP.to(self.mask_D.dtype) - mean) / std
        # Under mixed precision the encoder answers in half; the states stay in full.
        x_ND = self.encoder(y_NP).to(self.mask_D.dtype)
        x_ND = torch.where(batch.occluded_N[:, None], self.mask_D, x_ND)
        return x_ND + self.position_LD.repeat(batch.rows, 1)

    def compute_scale(self, batch: PatchBatch) -> tuple[Tensor, Tensor]:
        """mean and std by which each number is standardised, (P,) or by image (N, P)."""
        mean_P, std_P = self.get_training_scale()
        if self.contrast == 0:
            return mean_P, std_P
        known_RL1 = (~batch.occluded_N).view(batch.rows, -1, 1).to(std_P.dtype)
        y_RLP = ((batch.patches_NP.to(std_P.dtype) - mean_P) / std_P).view(*known_RL1.shape[:2], -1)
        y_RLCp = y_RLP.unflatten(-1, (self.channels, -1)) * known_RL1[..., None]
        count_R1 = known_RL1.sum(1).clamp(min=1) * self.patch**2
        m_RC = y_RLCp.sum((1, 3)) / count_R1
        off_RLCp = (y_RLCp - m_RC[:, None, :, None]) * known_RL1[..., None]
        variance_R1 = (off_RLCp.square().sum((1, 3)) / count_R1).mean(1, keepdim=True)
        w_R1 = (variance_R1 / self.contrast**2).clamp(_LEAST, 1)
        w_R1 = torch.where(known_RL1.any(1), w_R1, 1.0)  # else there is nothing to go by
        m_RP = ((1 - w_R1) * m_RC).repeat_interleave(self.patch**2, 1)
        mean_RP, std_RP = mean_P + std_P * m_RP, std_P * w_R1.sqrt()
        return mean_RP[batch.row_of_N], std_RP[batch.row_of_N]

    def decode(self, x_ND: Tensor, batch: PatchBatch) -> Tensor:
        """Pixels (R, C, S, S) of what `batch` was encoded to and has become, 0 to 1 but for what
        the decoder overshoots."""
        mean, std = self.compute_scale(batch)
        return unpatchify(mean + std * self._standardised(x_ND), self.channels, self.size)

    def decode_patches(self, x_ND: Tensor) -> Tensor:
        """The patches (N, P) that tokens, or what lies among them, stand for in most images."""
        mean_P, std_P = self.get_training_scale()
        return mean_P + std_P * self._standardised(x_ND)

    def _standardised(self, x_ND: Tensor) -> Tensor:
        return self.decoder(self.norm(x_ND)).to(self.mask_D.dtype)
