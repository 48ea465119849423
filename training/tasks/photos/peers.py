"""What a completer of windows would have in place of an energy: a ViT, a U-Net, or nothing.

All answer as `ETWindow` does: pixels and, as one more channel, the logarithm of the absolute error
to expect, (R, C + 1, S, S). The ViT, and the one with nothing, share its codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.architectures.et import ETWindow
from models.inputs.windows import FIRST_LOG_ERROR, WindowBatch, WindowCodec, standardise
from models.tasks.window_completer import RelativeBias, WindowConfig
from training.trainer import count_parameters, find_nearest_size


class TransformerLayer(nn.Module):
    """Attention before a feed-forward, with a bias of the offset in the logits as ET's."""

    def __init__(self, dim: int, heads: int, hidden: int, along: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.bias = RelativeBias(heads, along)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x_RLD: Tensor) -> Tensor:
        rows, length, _ = x_RLD.shape
        qkv = self.qkv(self.n1(x_RLD)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, self.bias().to(q.dtype)[None])
        mixed = mixed.transpose(1, 2).reshape(rows, length, -1)
        x_RLD = x_RLD + self.out(mixed).to(x_RLD.dtype)
        return x_RLD + self.down(F.gelu(self.up(self.n2(x_RLD)))).to(x_RLD.dtype)


@final
class TokenPeer(nn.Module):
    """ET's codec around `layers` of a transformer; around nothing if there are none."""

    def __init__(self, config: WindowConfig, layers: int, hidden: int = 1) -> None:
        super().__init__()
        c = config
        self.codec = WindowCodec(c.size, c.patch, c.channels, c.dim, c.stem, c.features)
        self.layers = nn.Sequential(
            *(TransformerLayer(c.dim, c.heads, hidden, self.codec.along) for _ in range(layers))
        )

    def forward(self, batch: WindowBatch) -> Tensor:
        x_RLD = self.codec.encode(batch).unflatten(0, (batch.rows, -1))
        return torch.cat(self.codec.decode(self.layers(x_RLD).flatten(0, 1), batch), 1)


class _Convolutions(nn.Sequential):
    """Two 3 x 3 convolutions, each before a norm over groups and GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.GELU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.GELU(),
        )


@final
class UNet(nn.Module):
    """Ronneberger et al. 2015 with four scales, of `width`, twice, three and four times that."""

    def __init__(self, config: WindowConfig, width: int) -> None:
        super().__init__()
        channels, widths = config.channels, [width, 2 * width, 3 * width, 4 * width]
        self.down = nn.ModuleList(
            _Convolutions(a, b) for a, b in zip([channels + 1, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            _Convolutions(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.read = nn.Conv2d(width, channels, 1)
        self.doubt = nn.Conv2d(width, 1, 1)
        for head in (self.read, self.doubt):
            for parameter in head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, batch: WindowBatch) -> Tensor:
        inputs, deviation = standardise(batch, self.read.weight.dtype)
        y, passed = inputs, list[Tensor]()
        for place, layer in enumerate(self.down):
            y = layer(F.max_pool2d(y, 2) if place else y)
            passed.append(y)
        passed.pop()
        for layer in self.up:
            y = layer(torch.cat([F.interpolate(y, scale_factor=2), passed.pop()], 1))
        residual = self.read(y).to(deviation.dtype) * deviation
        log_error = self.doubt(y.detach()).to(deviation.dtype) + deviation.log() + FIRST_LOG_ERROR
        return torch.cat([batch.pixels_RCSS + batch.hidden_R1SS * residual, log_error], 1)


def build_network(core: str, config: WindowConfig) -> nn.Module:
    """`et`, or a peer of as many parameters: `vit` of as many layers as ET takes steps, `unet`;
    `none` has ET's codec alone.

    Raises:
        ValueError: for another `core`.
    """
    if core == "et":
        return ETWindow(config)
    if core == "none":
        return TokenPeer(config, 0)
    peers: dict[str, Callable[[int], nn.Module]] = {
        "vit": lambda hidden: TokenPeer(config, config.blocks * config.steps, hidden),
        "unet": lambda width: UNet(config, 4 * width),
    }
    if core not in peers:
        raise ValueError(f"unknown model {core!r}; known are et, none, {', '.join(peers)}")
    with torch.device("meta"):
        wanted = count_parameters(ETWindow(config))
    return find_nearest_size(peers[core], wanted, range(1, 4096))
