"""What more steps than the trained ones do to the answers of the models that ship.

The test part of each model of nodes and graphs, with Euler's steps: ROC-AUC after the trained
number of steps, after STEPS, and where rows stop once their residual |dx/dt| / |x| is below 1e-3,
or after 512 steps of a block; and the residual after each, the median over rows. A whole
graph whose nodes are scored is one row.

    python -m benchmarks.more_steps [--models et-tolokers,cdat-ames]
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.accuracy import score_test_part
from benchmarks.machine import describe
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.paths import find_shipped

STEPS = 1, 3, 6, 12, 24, 48, 64
TOLERANCE, MOST = 1e-3, 512


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.more_steps", description=__doc__)
    parser.add_argument("--models", help="comma-separated; else all that ship")
    args = parser.parse_args()
    models = args.models.split(",") if args.models else None
    print(describe())
    columns = [*map(str, STEPS), f"residual below {TOLERANCE}", "its steps"]
    print("| model | trained steps | at them | " + " | ".join(columns) + " |")
    print("|---|---|---|" + "---|" * len(columns))
    for folder in sorted(find_shipped("checkpoints").iterdir()):
        if models is not None and folder.name not in models:
            continue
        checkpoint = load_checkpoint(folder)
        several = [DynamicsParams(), *(DynamicsParams(steps=steps) for steps in STEPS)]
        several.append(DynamicsParams(steps=MOST, tolerance=TOLERANCE))
        try:
            labels, results = score_test_part(checkpoint, several)
        except (FileNotFoundError, ValueError):
            continue  # of pictures or transactions, or its data are not here
        auc = [f"{roc_auc_score(labels, scores.score_n):.4f}" for scores in results]
        at = [f"{np.median(scores.residual_R):.2g}" for scores in results]
        blocks = len(checkpoint.network.blocks_in_order())
        rest = np.median(results[-1].steps_R) / blocks
        trained = checkpoint.manifest.knobs.steps
        print(f"| {folder.name} | {trained} | {' | '.join(auc)} | {rest:.0f} |")
        print(f"| residual | | {' | '.join(at)} | |", flush=True)


if __name__ == "__main__":
    main()
