"""What `solver: descent` promises, and what it costs.

First, by HTTP: requests to every model that ships, in turn, with inputs, steps (1 to 64), step size
(a tenth of the trained one to ten times) and beta (a hundredth of the trained one to a hundred
times) drawn by chance, each sent with Euler's steps and with `descent`. Printed are the shares of
requests in which the energy, or V of CDAT, rose in a step (`energy_rose`) or the dynamics diverged,
and the median of the ratios of the two times.

Then, where the data are: the test part of each model, with the trained number of steps. Printed are
the share of outputs that are the same to the last bit, and ROC-AUC by either solver.

    python -m benchmarks.descent [--requests 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.accuracy import score_test_part
from benchmarks.machine import describe
from benchmarks.server import serving
from benchmarks.soak import ATOMS
from models.base import DynamicsParams, Solver
from models.checkpoint import load_checkpoint
from models.paths import find_shipped

SOLVERS: tuple[Solver, Solver] = ("euler", "descent")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.descent", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(describe())
    with serving() as client:
        compare_requests(client, args.requests, np.random.default_rng(args.seed))
    compare_answers()


def compare_requests(client: httpx.Client, count: int, rng: np.random.Generator) -> None:
    """Ask each request with both solvers, and print what came of it by model."""
    models = [
        client.get(f"/models/{model['name']}").raise_for_status().json()
        for model in client.get("/models").raise_for_status().json()["models"]
    ]
    results = defaultdict[str, list[tuple[Any, ...]]](list)
    for number in range(count):
        model = models[number % len(models)]
        body = _vary(model["example"], rng)
        trained = model["knobs"]
        dynamics = {
            "steps": int(rng.integers(1, 65)),
            "step_size": trained["step_size"] * 10 ** rng.uniform(-1, 1),
            "beta_scale": 10 ** rng.uniform(-2, 2),
        }
        answers = [_ask(client, model["route"], body, dynamics | {"solver": s}) for s in SOLVERS]
        results[model["name"]].append(tuple(value for answer in answers for value in answer))
    print(
        "| model | requests | rose, Euler | diverged | rose, descent | diverged "
        "| time over Euler's |"
    )
    print("|---|---|---|---|---|---|---|")
    everything = [row for rows in results.values() for row in rows]
    for name, rows in [*sorted(results.items()), ("all", everything)]:
        plain, descent = np.array(rows).reshape(-1, 2, 3).swapaxes(0, 1)
        ratio = np.median(descent[:, 2] / plain[:, 2])
        flags = [f"{int(flag)}" for part in (plain, descent) for flag in part[:, :2].sum(0)]
        print(f"| {name} | {len(rows)} | {' | '.join(flags)} | {ratio:.2f} |")


def _ask(
    client: httpx.Client, route: str, body: dict[str, Any], dynamics: dict[str, Any]
) -> tuple[bool, bool, float]:
    """Whether the energy rose in any row, whether one diverged, and the seconds."""
    began = time.perf_counter()
    answer = client.post(route, json=body | {"dynamics": dynamics})
    seconds = time.perf_counter() - began
    if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        raise RuntimeError(f"{route}: {answer.text}")
    reports = list(_find_reports(answer.raise_for_status().json()))
    assert reports
    is_diverged = any(report["stop_reason"] == "diverged" for report in reports)
    return any(report["energy_rose"] for report in reports), is_diverged, seconds


def _find_reports(answer: Any) -> Iterator[dict[str, Any]]:
    """Every `convergence` in an answer: of the whole, and of each input."""
    if isinstance(answer, list):
        for each in answer:
            yield from _find_reports(each)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if name == "convergence":
                yield value
            else:
                yield from _find_reports(value)


def _vary(body: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The example of a model, with numbers of nodes changed by chance, or other molecules."""
    if "smiles" in body:
        smiles = ["".join(rng.choice(ATOMS, size=rng.integers(3, 12))) for _ in range(2)]
        return body | {"smiles": smiles}
    if "nodes" in body:
        nodes = [
            {k: v if k == "id" else v * 2 ** rng.uniform(-1, 1) for k, v in node.items()}
            for node in body["nodes"]
        ]
        return body | {"nodes": nodes}
    return body


def compare_answers() -> None:
    """Score the test part of models with the trained steps of both solvers, and print the two."""
    print("\n| model | test rows | same to the last bit | ROC-AUC, Euler | descent |")
    print("|---|---|---|---|---|")
    for folder in sorted(find_shipped("checkpoints").iterdir()):
        try:
            labels, results = score_test_part(
                load_checkpoint(folder), [DynamicsParams(solver=solver) for solver in SOLVERS]
            )
        except (FileNotFoundError, ValueError):
            continue  # of pictures or transactions, or its data are not here
        plain, descent = (scores.score_n for scores in results)
        figures = [roc_auc_score(labels, scores) for scores in (plain, descent)]
        print(
            f"| {folder.name} | {len(labels)} | {100 * np.mean(plain == descent):.1f} % "
            f"| {figures[0]:.4f} | {figures[1]:.4f} |"
        )


if __name__ == "__main__":
    main()
