"""A step of a block as an ONNX graph.

The loop stays outside: inputs are the state, who sees whom, beta and the step size, so that one
graph serves any number of rows, tokens, edges and steps. A graph holds its weights itself and
refers to no file; what the block was trained with, `beta` of each head, `step_size` and `steps`, is
in its metadata. Everything is float32, and computed on the CPU.

Inputs, for rows of equal length (`models.layouts.Dense`): `x` (R, L, D), `sees` (R or 1, L, L)
bool, `beta` (R, H), `step_size` (R,). For graphs (`EdgeList`): `x` (N, D), `receivers` and
`sources` (E,) int64, `beta` (N, H), `step_size` (N,). Where pairs are weighed, `weight` and `bias`
(R, H, L, L) or (E, H). Outputs, with the same leading dimensions: `next`, the state after a step
without noise; `g`; `force`, -dE/dg; `energy.{component}` of each token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from models.base import Block
from models.dynamics import ControlledDynamics, Descent, EnergyLayerNorm
from models.energies import (
    DotProductAttention,
    Energy,
    Hopfield,
    LinearFeatureEnergy,
    VonMisesFisherAttention,
)
from models.layouts import Dense, EdgeList, Layout

_OPSET, _IR = 18, 10
_FLOAT, _INT, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class NotExportableError(ValueError):
    """The message says which part of a block has no counterpart here."""


class Form(NamedTuple):
    """Which layout a graph is for, and what its pairs have."""

    layout: Literal["dense", "edges"]
    weighed: bool = False
    biased: bool = False


class _Attended(NamedTuple):
    """As `models.layouts.base.Attention`, the energy of each token in place of lse."""

    energy: str
    pk: str
    ptq: str


@final
class _Graph:
    """Nodes and weights of a graph; a call adds a node and returns the name of its output."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        made = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], **attributes))
        return made

    def name(self, value: str, name: str) -> None:
        """Call an output so."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def constant(self, value: Tensor | np.ndarray | float | list[int]) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        self.weights.append(numpy_helper.from_array(array, f"constant_{len(self.weights)}"))
        return self.weights[-1].name

    def product(self, values: Sequence[str], weights: Sequence[Tensor]) -> str:
        """sum_i x_i W_i, x_i (..., K_i) and W_i (K_i, F)."""
        value = values[0] if len(values) == 1 else self("Concat", *values, axis=-1)
        return self("MatMul", value, self.constant(torch.cat(list(weights))))

    def times(self, value: str, weight: Tensor | float) -> str:
        if isinstance(weight, float) and weight == 1:
            return value
        return self("Mul", value, self.constant(weight))

    def sum(self, value: str, axis: int, keep: bool = False) -> str:
        return self("ReduceSum", value, self.constant([axis]), keepdims=int(keep))

    def split_heads(self, value: str, heads: int, width: int) -> str:
        """(..., H Y) to (..., H, Y)."""
        lead = [0, 0] if self.form.layout == "dense" else [0]
        return self("Reshape", value, self.constant([*lead, heads, width]))

    def join_heads(self, value: str) -> str:
        lead = [0, 0] if self.form.layout == "dense" else [0]
        return self("Reshape", value, self.constant([*lead, -1]))

    def attend(self, sees: str, seen: str) -> _Attended:
        """Both (..., H, Y)."""
        return (self._rows if self.form.layout == "dense" else self._edges)(sees, seen)

    def _rows(self, q: str, k: str) -> _Attended:
        q, k = (self("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, k))
        beta = self("Unsqueeze", "beta", self.constant([2]))  # (R, H, 1)
        hot = self("Mul", q, self("Unsqueeze", beta, self.constant([3])))
        logits = self._weighed(self("MatMul", hot, self("Transpose", k, perm=[0, 1, 3, 2])))
        # A token that sees none is shown all, and what it makes of them is left out.
        some = self("ReduceMax", self("Cast", "sees", to=_INT), self.constant([2]), keepdims=1)
        none = self("Equal", some, self.constant([0]))  # (R, L, 1)
        hidden = self("Where", self("Or", "sees", none), *map(self.constant, (0.0, -np.inf)))
        logits = self("Add", logits, self("Unsqueeze", hidden, self.constant([1])))
        p = self("Softmax", logits, axis=-1)
        last = self.constant([-1])
        top = (self("ReduceMax", each, last, keepdims=0) for each in (logits, p))
        lse = self("Sub", next(top), self("Log", next(top)))
        none, nothing = self("Transpose", none, perm=[0, 2, 1]), self.constant(0.0)  # (R, 1, L)
        energy = self("Neg", self("Div", self("Where", none, nothing, lse), beta))
        none = self("Unsqueeze", none, self.constant([3]))
        w = self("Mul", p, "weight") if self.form.weighed else p
        pk = self("Where", none, nothing, self("MatMul", w, k))
        seeing = self("Where", none, nothing, q)
        ptq = self("MatMul", self("Transpose", w, perm=[0, 1, 3, 2]), seeing)
        back = (self("Transpose", each, perm=[0, 2, 1, 3]) for each in (pk, ptq))
        return _Attended(self.sum(energy, 1), *back)

    def _edges(self, q: str, k: str) -> _Attended:
        beta = self("Unsqueeze", "beta", self.constant([2]))
        sees = self("Gather", q, "receivers")
        seen = self("Gather", k, "sources")
        hot = self("Mul", sees, self("Gather", beta, "receivers"))
        logits = self._weighed(self.sum(self("Mul", hot, seen), -1))  # (E, H)
        nothing = self.constant(0.0)
        top = self._gathered("beta", float(np.finfo(np.float32).min), "receivers", logits, "max")
        e = self("Exp", self("Sub", logits, self("Gather", top, "receivers")))
        total = self._gathered("beta", 0.0, "receivers", e, "add")
        alone = self("Equal", total, nothing)
        lse = self("Where", alone, nothing, self("Add", top, self("Log", total)))
        p = self("Div", e, self("Gather", total, "receivers"))
        w = self("Mul", p, "weight") if self.form.weighed else p
        w = self("Unsqueeze", w, self.constant([2]))
        pk = self._gathered(q, 0.0, "receivers", self("Mul", w, seen), "add")
        ptq = self._gathered(q, 0.0, "sources", self("Mul", w, sees), "add")
        return _Attended(self("Neg", self.sum(self("Div", lse, "beta"), -1)), pk, ptq)

    def _gathered(self, like: str, start: float, tokens: str, values: str, how: str) -> str:
        """Values of edges (E, ...) at their tokens: (N, ...), of the shape of `like`.

        By ScatterElements, for in ONNX Runtime the threads of ScatterND overtake each other.
        """
        begun = self("Expand", self.constant(start), self("Shape", like))
        ones = [1] * (2 if like != "beta" else 1)
        index = self("Reshape", tokens, self.constant([-1, *ones]))
        index = self("Expand", index, self("Shape", values))
        return self("ScatterElements", begun, index, values, axis=0, reduction=how)

    def _weighed(self, logits: str) -> str:
        if self.form.weighed:
            logits = self("Mul", logits, "weight")
        return self("Add", logits, "bias") if self.form.biased else logits

    def potential(self, energy: Energy, u: str) -> tuple[str, str, str]:
        """Component, its energy of each token, and -dphi/du, of features u."""
        if isinstance(energy, DotProductAttention):
            found = self.attend(*self._ends(u, energy))
            pulls = found.pk, found.ptq
        elif isinstance(energy, VonMisesFisherAttention):
            (q, q_length), (k, k_length) = map(self._unit, self._ends(u, energy))
            found = self.attend(k, q)
            pulls = (
                self._through_unit(found.ptq, q, q_length),
                self._through_unit(found.pk, k, k_length),
            )
        elif isinstance(energy, Hopfield):
            value, r = self._memories(energy, u)
            return "hopfield", self("Neg", value), r
        else:
            raise _unknown(energy)
        return energy.name, found.energy, self("Concat", *map(self.join_heads, pulls), axis=-1)

    def _memories(self, energy: Hopfield, u: str) -> tuple[str, str]:
        """sum G and r = G' of `models.energies.Hopfield`."""
        if energy.kind == "softmax":
            b = energy.log_sharpness.exp()
            sharp = self.times(u, b)
            lse = self("ReduceLogSumExp", sharp, self.constant([-1]), keepdims=0)
            return self.times(lse, 1 / b), self("Softmax", sharp, axis=-1)
        up = self("Relu", u)
        if energy.kind == "relu":
            return self.sum(up, -1), self("Cast", self("Greater", u, self.constant(0.0)), to=_FLOAT)
        n = 2 if energy.kind == "relu2" else energy.POWER
        r = up
        for _ in range(n - 2):
            r = self("Mul", r, up)
        return self.times(self.sum(self("Mul", r, up), -1), 1 / n), r

    def _ends(self, u: str, energy: DotProductAttention | VonMisesFisherAttention) -> list[str]:
        """Queries and keys."""
        inner = energy.heads * energy.head_dim
        bounds = ((0, inner), (inner, 2 * inner))
        return [
            self.split_heads(
                self("Slice", u, *map(self.constant, ([first], [last], [-1]))),
                energy.heads,
                energy.head_dim,
            )
            for first, last in bounds
        ]

    def _unit(self, u: str) -> tuple[str, str]:
        squared = self.sum(self("Mul", u, u), -1, keep=True)
        length = self("Sqrt", self("Add", squared, self.constant(1e-12)))
        return self("Div", u, length), length

    def _through_unit(self, force: str, u_hat: str, length: str) -> str:
        along = self.sum(self("Mul", force, u_hat), -1, keep=True)
        return self("Div", self("Sub", force, self("Mul", u_hat, along)), length)


def export(block: Block, form: Form, steps: bool = True) -> onnx.ModelProto:
    """A step of `block` as it is now; without `steps` what it is taken by, and no `next`.

    Raises:
        NotExportableError: a part of it is not known here.
    """
    graph, norm = _Graph(form), block.norm
    if not isinstance(norm, EnergyLayerNorm):
        raise _unknown(norm)
    gamma_D = norm.log_gamma.exp().expand_as(norm.delta_D)
    scale, shift = map(graph.constant, (gamma_D, norm.delta_D))
    g = graph("LayerNormalization", "x", scale, shift, axis=-1, epsilon=norm.eps)
    graph.name(g, "g")
    leaves = list[tuple[Tensor | float, LinearFeatureEnergy]]()
    for weight, leaf in block.energy.leaves():
        if not isinstance(leaf, LinearFeatureEnergy):
            raise _unknown(leaf)
        leaves.append((weight, leaf))
    each = [leaf.feature_directions() for _, leaf in leaves]
    u = graph.product([g], [torch.cat(each).T])
    outputs, pulls, at = ["g", "force"], list[str](), 0
    for (weight, leaf), u_FD in zip(leaves, each, strict=True):
        part = [[at], [at + len(u_FD)], [-1]]
        mine, at = graph("Slice", u, *map(graph.constant, part)), at + len(u_FD)
        component, value, pull = graph.potential(leaf, mine)
        outputs.append(f"energy.{component}")
        graph.name(graph.times(value, weight), outputs[-1])
        pulls.append(graph.times(pull, weight))
    force = graph.product(pulls, each)
    graph.name(force, "force")
    if steps:
        axes = [1, 2] if form.layout == "dense" else [1]
        alpha = graph("Unsqueeze", "step_size", graph.constant(axes))
        graph.name(graph("Add", "x", graph("Mul", alpha, _drift(graph, block, force))), "next")
        outputs.append("next")
    model = _model(graph, outputs, norm.delta_D.numel())
    beta = block.log_beta_H.exp().tolist()
    told = {"beta": beta, "step_size": block.step_size, "steps": block.steps}
    helper.set_model_props(model, {name: json.dumps(value) for name, value in told.items()})
    return model


def _drift(graph: _Graph, block: Block, force: str) -> str:
    motion = block.motion
    if isinstance(motion, Descent):
        return force
    if not isinstance(motion, ControlledDynamics):
        raise _unknown(motion)
    narrow = graph("MatMul", "x", graph.constant(motion.basis_rD.T))
    wide = graph("MatMul", graph.times(narrow, motion.strength_r), graph.constant(motion.basis_rD))
    if motion.prior_DD is not None:
        wide = graph("Add", wide, graph("MatMul", "x", graph.constant(motion.prior_DD)))
    held = graph("Sub", graph.times("x", 1 + motion.omega), wide)
    return graph("Sub", force, held)


def _unknown(part: nn.Module) -> NotExportableError:
    return NotExportableError(f"{type(part).__name__} is not exported")


def _model(graph: _Graph, outputs: list[str], dim: int) -> onnx.ModelProto:
    form = graph.form
    rows = form.layout == "dense"
    lead: tuple[str, ...] = ("R", "L") if rows else ("N",)
    pairs = ("R", "H", "L", "L") if rows else ("E", "H")
    shapes: dict[str, tuple[int, tuple[str | int, ...]]] = {"x": (_FLOAT, (*lead, dim))}
    if rows:
        shapes["sees"] = (_BOOL, ("S", "L", "L"))
    else:
        shapes |= {"receivers": (_INT, ("E",)), "sources": (_INT, ("E",))}
    shapes["beta"] = _FLOAT, (lead[0], "H")
    shapes |= {"step_size": (_FLOAT, (lead[0],))} if "next" in outputs else {}
    shapes |= {"weight": (_FLOAT, pairs)} if form.weighed else {}
    shapes |= {"bias": (_FLOAT, pairs)} if form.biased else {}
    made = {
        name: (_FLOAT, (*lead, dim) if not name.startswith("energy.") else lead) for name in outputs
    }
    inputs, told = (
        [helper.make_tensor_value_info(name, *each) for name, each in of.items()]
        for of in (shapes, made)
    )
    return _checked(graph, inputs, told)


def _checked(graph: _Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.ModelProto:
    body = helper.make_graph(graph.nodes, "step", inputs, outputs, graph.weights)
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(body, opset_imports=opset, ir_version=_IR, producer_name="basin")
    onnx.checker.check_model(model, full_check=True)
    return model


def products(weights: Sequence[Tensor]) -> onnx.ModelProto:
    """sum_i x_i W_i."""
    graph = _Graph(Form("edges"))
    each = [graph.product([f"x{i}"], [w]) for i, w in enumerate(weights)]
    graph.name(graph("Sum", *each), "y")
    inputs = [
        helper.make_tensor_value_info(f"x{i}", _FLOAT, ("N", len(w))) for i, w in enumerate(weights)
    ]
    output = helper.make_tensor_value_info("y", _FLOAT, ("N", weights[0].shape[1]))
    return _checked(graph, inputs, [output])


def form_of(layout: Layout) -> Form | None:
    """The graph for a layout; None where there is none."""
    if isinstance(layout, Dense) and layout.prior is None:
        weighs = layout.weight_RHLL, layout.bias_RHLL
        return Form("dense", *(of is not None for of in weighs))
    if isinstance(layout, EdgeList) and layout.prior is None:
        weighs = layout.weight_EH, layout.bias_EH
        return Form("edges", *(of is not None for of in weighs))
    return None
