"""Half-hidden digits completed from stored ones, as `POST /complete` does with `memory`.

The memory has the first 2,000 training digits of MNIST; the first 1,000 test digits have their
lower half, their right half, or 24 of their 49 patches of 4 x 4 pixels hidden. PSNR over the hole,
mean over digits, beside the mean of the stored digits, the nearest of them, Laplace's equation, and
`et-mnist`, which was trained on MNIST's training digits with half of the patches hidden.

    python -m benchmarks.recall             # the table
    python -m benchmarks.recall --choose    # PSNR by the rule for the default beta, training digits
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.inpaint import REPO, Network
from benchmarks.machine import describe
from models.base import DynamicsParams
from models.inputs.inpainting.fill import Answers, Windows, fill_whole
from models.inputs.inpainting.laplace import fill_harmonic
from models.memories import Memory
from models.tasks.memory_completer import MAX_DEFAULT_BETA, NEAREST, MemoryCompleter
from training.datasets.memories import load_mnist_part

_STORED, _TESTED = 2_000, 1_000
_CHOSEN_BY = slice(10_000, 11_000)  # training digits that are not stored
_RULES = (2, 3, 4, 6, 8, 12, 16)
Fill = Callable[[np.ndarray, np.ndarray], np.ndarray]


def draw_masks(count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names of masks and what they hide of each of `count` digits, bool (count, 28, 28)."""
    for name, part in (("lower half", np.s_[14:]), ("right half", np.s_[:, 14:])):
        mask = np.zeros((28, 28), bool)
        mask[part] = True
        yield name, np.broadcast_to(mask, (count, 28, 28))
    order = np.random.default_rng(0).random((count, 49)).argsort(1).reshape(count, 7, 7)
    yield "half of the patches", (order < 24).repeat(4, 1).repeat(4, 2)


def recall(memory: Memory, **params: float) -> Fill:
    """Fill as the server does, with these `dynamics`."""

    def fill(image: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        def complete(windows: Windows, _: object) -> Answers:
            network = MemoryCompleter(memory, windows.pixels, windows.hidden[0]).compare()
            batch = network.pack([network.make_item(windows.pixels[0], windows.hidden[0])])
            output = network.infer(batch, [DynamicsParams(**params)])
            return Answers(*network.read_outputs(output.logits))

        return fill_whole(image, hidden, complete).values[:, 0]

    return fill


def fill_laplace(image: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    flat = image.reshape(-1, 1) / 255
    return fill_harmonic(np.flatnonzero(hidden), hidden.shape, lambda known: flat[known])[:, 0]


def measure(digits: np.ndarray, hidden: np.ndarray, fill: Fill) -> tuple[float, float]:
    """Mean PSNR over the hole, and milliseconds of a digit."""
    psnrs, began = [], time.perf_counter()
    for digit, mask in zip(digits, hidden, strict=True):
        blank = np.where(mask, np.uint8(0), digit)[..., None]
        off = np.rint(255 * fill(blank, mask)) / 255 - digit[mask] / 255
        psnrs.append(-10 * np.log10(max(np.square(off).mean(), 1e-10)))
    return float(np.mean(psnrs)), (time.perf_counter() - began) / len(digits) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--choose", action="store_true", help="by the rule for the default beta")
    args = parser.parse_args()
    train, test = load_mnist_part("train")[0], load_mnist_part("t10k")[0][:_TESTED]
    stored = train[:_STORED]
    memory, mean = Memory.from_items("images", stored), stored.mean(0) / 255
    if args.choose:
        digits = train[_CHOSEN_BY]
        # beta_scale is a factor on the default, which stands in for each rule.
        fills = {f"{r} / d^2": recall(memory, beta_scale=r / NEAREST) for r in _RULES}
        fills |= {f"beta {beta}": recall(memory, beta=beta) for beta in (0.3, 0.5, 0.7, 1.0, 2.0)}
    else:
        digits = test
        network = Network(REPO / "checkpoints" / "et-mnist")
        fills = {
            "mean of the stored": lambda image, hidden: mean[hidden],
            "laplace": fill_laplace,
            "nearest stored": recall(memory, beta=MAX_DEFAULT_BETA),
            "memory": recall(memory),
            "et-mnist": lambda image, hidden: network.fill(image, hidden).values[:, 0],
        }
    masks = dict(draw_masks(len(digits)))
    print(f"| | {' | '.join(masks)} | ms a digit |\n|---|{'---|' * (len(masks) + 1)}")
    for name, fill in fills.items():
        figures = [measure(digits, hidden, fill) for hidden in masks.values()]
        cells = [f"{psnr:.2f}" for psnr, _ in figures]
        print(f"| {name} | {' | '.join(cells)} | {np.mean([ms for _, ms in figures]):.1f} |")
    print(f"\n{len(digits)} digits, {memory.num_patterns} stored. {describe()}.")


if __name__ == "__main__":
    main()
