"""What int8 gives and takes: ONNX Runtime's products of whole numbers, against its float32.

First the time of the products of a step alone, x W, relu, W^T, as wide as in shipped checkpoints
and as in the papers. Weights have a scale for each column; what they are multiplied with has one
for each token (`BASIN_INT8`), so that none is rounded by what else is in its batch. Beside it one
for all tokens together, as `onnxruntime.quantization` does it, by which requests would change each
other's answers. Then twelve steps of the pictures of `benchmarks.step`. Then shipped checkpoints
that complete pictures, each on the test part of its data (BASIN_DATA; what is not there is left
out): PSNR in dB, what int8 adds to it, with the standard error of the difference under the same
masks, and the time for all of them.

    python -m benchmarks.int8
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.machine import describe
from benchmarks.step import IMAGES, by_onnx, images
from benchmarks.turns import medians
from models import checkpoint
from models.base import DynamicsParams
from models.onnx_backend.system import OnnxSystem
from training.studies.resonance.study import CheckpointStudy, load_study

# Tokens, width, features: tolokers and AMES, photos, the pictures of Energy Transformer.
SHAPES = ((60, 64, 320), (4000, 64, 320), (64, 128, 768), (1024, 128, 768), (196, 768, 3840))
KINDS = ("float32", "each token", "all together")
SHIPPED = Path(__file__).parents[1] / "checkpoints"


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __call__(self, kind: str, *inputs: str, makes: int = 1, **attributes: Any) -> list[str]:
        made = [f"{kind}_{len(self.nodes)}_{place}" for place in range(makes)]
        self.nodes.append(helper.make_node(kind, inputs, made, **attributes))
        return made

    def constant(self, value: np.ndarray | np.generic | list[int]) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def product(self, x: str, w_KF: np.ndarray, kind: str) -> str:
        if kind == "float32":
            return self("MatMul", x, self.constant(w_KF))[0]
        scale_F = np.abs(w_KF).max(0) / np.float32(63)
        whole_KF = self.constant(np.round(w_KF / scale_F).astype(np.int8))
        if kind == "all together":
            rounded, scale, zero = self("DynamicQuantizeLinear", x, makes=3)
        else:
            size = self("Abs", x)[0]
            most = self("ReduceMax", size, self.constant([-1]), keepdims=1)[0]
            scale = self("Mul", most, self.constant(np.float32(1 / 127)))[0]
            scale = self("Max", scale, self.constant(np.float32(1e-20)))[0]
            one, zero = self.constant(np.float32(1)), self.constant(np.uint8(128))
            rounded = self("QuantizeLinear", self("Div", x, scale)[0], one, zero)[0]
        y = self("MatMulInteger", rounded, whole_KF, zero)[0]
        y = self("Cast", y, to=TensorProto.FLOAT)[0]
        if kind == "all together":  # in the order that the runtime has a kernel of its own for
            return self("Mul", y, self("Mul", scale, self.constant(scale_F))[0])[0]
        return self("Mul", self("Mul", y, self.constant(scale_F))[0], scale)[0]


def _session(w_DF: np.ndarray, kind: str) -> onnxruntime.InferenceSession:
    graph, dim = _Graph(), len(w_DF)
    active = graph("Relu", graph.product("x", w_DF, kind))[0]
    back = graph.product(active, np.ascontiguousarray(w_DF.T), kind)
    graph.nodes.append(helper.make_node("Identity", [back], ["y"]))
    ends = ([helper.make_tensor_value_info(end, TensorProto.FLOAT, ["N", dim])] for end in "xy")
    body = helper.make_graph(graph.nodes, "products", *ends, graph.weights)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    told = model.SerializeToString()
    return onnxruntime.InferenceSession(told, options, ["CPUExecutionProvider"])


def _products() -> None:
    print("| tokens | width | features | each token | error | all together | error |")
    print("|---|---|---|---|---|---|---|")
    for tokens, dim, features in SHAPES:
        rng = np.random.default_rng(0)
        w_DF = (rng.standard_normal((dim, features)) / dim**0.5).astype(np.float32)
        x_ND = rng.standard_normal((tokens, dim)).astype(np.float32)
        sessions: dict[str, Any] = {kind: _session(w_DF, kind) for kind in KINDS}
        run = {kind: partial(each.run, None, {"x": x_ND}) for kind, each in sessions.items()}
        found = {kind: work()[0] for kind, work in run.items()}
        case, repeats = f"{tokens} by {dim} by {features}", max(1, 2_000_000 // (tokens * dim))
        took = medians(run, case, "float32", repeats, rounds=15)
        cells = []
        for kind in KINDS[1:]:
            error = np.abs(found[kind] - found["float32"]).max() / np.abs(found["float32"]).max()
            cells += [f"{took['float32'] / took[kind]:.2f}", f"{error:.3f}"]
        print("|", " | ".join([*map(str, (tokens, dim, features)), *cells]), "|", flush=True)


@torch.no_grad()
def _steps() -> None:
    print("\n| rows, tokens, width | float32, ms | int8, ms | ratio |\n|---|---|---|---|")
    for shape in IMAGES:
        case = images(*shape)
        systems = {
            name: OnnxSystem.of_block(case.block, torch.get_num_threads(), int8)
            for name, int8 in (("float32", False), ("int8", True))
        }
        works = {name: partial(by_onnx, replace(case, onnx=each)) for name, each in systems.items()}
        plain, whole = medians(works, f"steps of {shape}", "float32").values()
        told = ", ".join(map(str, shape[:3]))
        print(
            f"| {told} | {1e3 * plain:.1f} | {1e3 * whole:.1f} | {plain / whole:.2f} |", flush=True
        )


def _scored(subject: CheckpointStudy, int8: bool) -> tuple[np.ndarray, float]:
    """Scores, and the seconds that they took."""
    network = subject.checkpoint.network
    for block in network.blocks_in_order():
        block.prepared_backend = OnnxSystem.of_block(block, 1, int8)

    def forward(batch: Any, params: list[DynamicsParams], *_: object) -> Any:
        return network.infer(batch, params).logits

    network.forward = forward  # type: ignore[method-assign]
    start = time.perf_counter()
    return subject.compute_scores(None), time.perf_counter() - start


def _figures() -> None:
    print("\n| checkpoint | figure | float32 | int8 adds | float32's time over int8's |")
    print("|---|---|---|---|---|")
    for folder in sorted(SHIPPED.iterdir()):
        found = checkpoint.load_checkpoint(folder)
        if found.manifest.task != "completion":
            continue
        try:
            subject = load_study(found)
        except (FileNotFoundError, ValueError) as why:
            print(f"| {folder.name} | {why} | | | |")
            continue
        _scored(subject, int8=False)  # which reads the data too
        plain, plain_s = _scored(subject, int8=False)
        whole, whole_s = _scored(subject, int8=True)
        value, error = subject.compute_metric(plain), subject.compute_standard_error(whole, plain)
        told = f"{value:.2f} | {subject.compute_metric(whole) - value:+.3f} ± {error:.3f}"
        line = f"| {folder.name} | {subject.metric_name} | {told} | {plain_s / whole_s:.2f} |"
        print(line, flush=True)


def main() -> None:
    print(describe())
    _products()
    _steps()
    _figures()


if __name__ == "__main__":
    main()
