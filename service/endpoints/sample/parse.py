"""Parse bodies of POST /sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.memories import ClampedCoordinates, InvalidMemoryError, Memory
from models.sampling import InitialStates, Method, Schedule
from service.endpoints.common.memory_body import (
    PATTERNS,
    memory_of_json,
    memory_of_tensor,
    require_decomposable,
)
from service.endpoints.common.memory_schemas import MAX_STATE
from service.endpoints.common.schemas import MIN_SCALE
from service.endpoints.sample.schemas import MAX_BETA, MAX_BETAS, SampleKnobs
from service.errors import MAX_FIELD_ERRORS, FieldError, make_problem, pointer, unknown_fields
from service.media_types import JSON
from service.payload import require_response_bytes
from service.settings import Settings
from service.storage.memories import MemoryStore
from service.validation.arrays import (
    PointerFn,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_integers,
    parse_number_rows,
    pointer_builder,
    require_list,
    require_range,
    reraise_as,
    to_float32,
)
from service.validation.json_body import parse_json_object
from service.validation.safetensors_body import (
    FLOAT_DTYPES,
    INTEGER_DTYPES,
    Tensors,
    parse_safetensors,
)
from service.validation.schema_errors import make_request_problem, validate_fields

TENSORS = {
    **PATTERNS,
    "init": (FLOAT_DTYPES, (2, 3, 4)),
    "clamp_index": (INTEGER_DTYPES, (1,)),
    "clamp_values": (FLOAT_DTYPES, (1,)),
}
_ARRAYS = ("memory", "beta", "init", "clamp")
_DEFAULT_CHAINS, _SNAPSHOTS = 30, 30
_JSON_NUMBER = 12  # bytes of a number in an answer, and its comma
_MAX_BUFFER = 20_000_000  # numbers: chains or samples x (patterns + dimensions)
_MAX_RECORDED = 5_000_000  # numbers: recorded steps x chains x heads x (energy and axes)
_WATCHED = 11  # the energy and ten axes
_SEARCH = 27_000_000  # what the search for beta* costs per pattern, in the unit of the work


@dataclass(frozen=True)
class SampleInputs:
    """A parsed request. `betas` is None for beta*; `start` is None for random patterns."""

    memory: Memory
    memory_id: str | None
    shape: tuple[int, ...]
    betas: tuple[float, ...] | None
    spectrum: bool
    count: int
    chains: int
    schedule: Schedule
    alpha: float
    method: Method
    heads: int
    seed: int
    start: InitialStates | None
    known: ClampedCoordinates | None

    @property
    def runs(self) -> int:
        """Number of temperatures."""
        return len(self.betas or (0,))

    @property
    def work(self) -> int:
        """Number of operations, including the search for beta*."""
        memory = self.memory
        walked = (
            self.runs * self.schedule.num_steps * self.chains * memory.num_patterns * memory.dim
        )
        return walked + _SEARCH * memory.num_patterns


def parse_sample(
    body: bytes, media_type: str, store: MemoryStore, settings: Settings
) -> SampleInputs:
    """Parse a body of `POST /sample`.

    Raises:
        Problem: all errors of the first stage that fails: syntax, params, memory, arrays, cost.
    """
    tensors: Tensors = {}
    if media_type == JSON:
        fields = parse_json_object(body, "invalid-json")
    else:
        with reraise_as("invalid-memory"):
            tensors, metadata = parse_safetensors(body, TENSORS)
        fields = parse_json_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
    if faults := unknown_fields(fields, (*SampleKnobs.model_fields, *_ARRAYS)):
        raise make_request_problem(faults)
    params = validate_fields(SampleKnobs, fields)
    betas, spectrum = _betas(fields.get("beta"))
    memory, memory_id, shape = _memory(fields.get("memory"), tensors, store)
    states = _states(fields.get("init"), tensors, memory)
    chains = params.chains or (min(_DEFAULT_CHAINS, params.num_samples) if states is None else 0)
    chains = chains or len(states if states is not None else ())
    if states is not None and len(states) != chains:
        detail = f"{len(states)} states were sent for {chains} chains. Send one state per chain."
        raise make_problem("invalid-request", "/init", "wrong_shape", detail)
    schedule = _schedule(params, chains, settings)
    known = _known(fields.get("clamp"), tensors, memory)
    if known is not None and params.heads > 1:
        rule = (
            "`clamp` is not allowed with several heads, which mix the coordinates. Set `heads` "
            "to 1."
        )
        raise make_problem("invalid-request", "/clamp", "conflict", rule)
    task = SampleInputs(
        memory,
        memory_id,
        shape,
        betas,
        spectrum,
        params.num_samples,
        chains,
        schedule,
        params.step_size,
        Method(params.method),
        params.heads,
        params.seed,
        None if states is None else InitialStates(states, None),
        known,
    )
    _check_cost(task, settings)
    return task


def _betas(value: object) -> tuple[tuple[float, ...] | None, bool]:
    """Return the inverse temperatures, None for beta*, and whether a list was sent."""
    if value in (None, "auto"):
        return None, False
    several = type(value) is list
    values: list[Any] = value if several else [value]  # type: ignore[assignment]
    if not 0 < len(values) <= MAX_BETAS:
        detail = f"{len(values)} values were sent; a list of beta holds 1 to {MAX_BETAS} numbers."
        raise make_problem("invalid-request", "/beta", "out_of_range", detail)
    rule = (
        f"Must be a number from {MIN_SCALE:g} to {MAX_BETA:g}, a list of such numbers, or `auto`."
    )
    faults = [
        FieldError(
            pointer("beta", i) if several else "/beta",
            "out_of_range" if type(beta) in (int, float) else "wrong_type",
            rule,
        )
        for i, beta in enumerate(values)
        if type(beta) not in (int, float) or not MIN_SCALE <= beta <= MAX_BETA
    ]
    if faults:
        raise make_request_problem(faults)
    return tuple(map(float, values)), several


def _memory(
    spec: object, tensors: Tensors, store: MemoryStore
) -> tuple[Memory, str | None, tuple[int, ...]]:
    inline = "patterns" in tensors
    if type(spec) is str:
        if inline:
            detail = "Send either the id of a memory or patterns, not both."
            raise make_problem("invalid-request", "/memory", "conflict", detail)
        card, memory = store.get(spec)
        return memory, spec, card.shape
    if spec is None and not inline:
        detail = "No memory was sent. Send the id of a memory, or patterns."
        raise make_problem("invalid-request", "/memory", "missing", detail)
    if not isinstance(spec, dict | None):
        raise make_problem(
            "invalid-request", "/memory", "wrong_type", "Must be the id of a memory or an object."
        )
    if inline:
        memory, items = memory_of_tensor(tensors, spec or {}, "memory")
    else:
        memory, items = memory_of_json(spec or {}, "memory")
    return memory, None, items.shape[1:]


def _states(spec: object, tensors: Tensors, memory: Memory) -> torch.Tensor | None:
    """Return the initial states, normalized like the patterns; None if there are none."""
    at = pointer_builder("init") if "init" in tensors else pointer_builder("init", "states")
    if spec not in (None, "patterns") and (type(spec) is not dict or set(spec) != {"states"}):  # type: ignore[arg-type]
        rule = "Must be `patterns` or an object with `states` alone."
        raise make_problem("invalid-request", "/init", "not_allowed", rule)
    if "init" not in tensors and type(spec) is not dict:
        return None
    if memory.codec.kind == "sequences":
        rule = "Chains on sequences start at random patterns. Leave out `init`."
        raise make_problem("invalid-request", "/init", "not_read", rule)
    width = memory.dim  # of every kind whose items are numbers
    width_rule = f"Every state must hold {width} numbers"
    with reraise_as("invalid-request"):
        if "init" in tensors:
            rows = tensors["init"].reshape(len(tensors["init"]), -1)
            if rows.shape[1] != width:
                detail = f"{width_rule}, not {rows.shape[1]}."
                raise make_graph_problem_at(at(), "wrong_shape", detail)
            rows = to_float32(rows, at)
        else:
            given = require_list(spec["states"], at)  # type: ignore[index]
            rows = parse_number_rows(given, width, at, "wrong_shape", width_rule)
        if not len(rows):
            raise make_graph_problem_at(
                at(), "empty", "There are no states. Send at least one state."
            )
        _require_within(rows, at, memory)
    try:
        return memory.encode_states(
            rows.reshape(len(rows), *getattr(memory.codec, "shape", (width,)))
        )
    except InvalidMemoryError as fault:
        first = fault.items[:MAX_FIELD_ERRORS].tolist()
        raise make_request_problem(
            FieldError(at(i), fault.code, fault.rule) for i in first
        ) from None


def _known(spec: object, tensors: Tensors, memory: Memory) -> ClampedCoordinates | None:
    """Return the clamped coordinates; None if there are none."""
    as_tensors = {"clamp_index", "clamp_values"} & tensors.keys()
    if spec is None and not as_tensors:
        return None
    if not memory.codec.has_coordinates:
        rule = (
            f"`clamp` is not allowed for memories of kind `{memory.codec.kind}`, whose "
            "coordinates are mixed before sampling."
        )
        raise make_problem("invalid-request", "/clamp", "not_read", rule)
    at_index, at_values = pointer_builder("clamp", "index"), pointer_builder("clamp", "values")
    rule = f"Must be the number of a coordinate, from 0 to {memory.dim - 1}."
    with reraise_as("invalid-request"):
        if as_tensors:
            if len(as_tensors) < 2 or spec is not None:
                detail = "Send `clamp_index` and `clamp_values` together, without `clamp`."
                raise make_graph_problem_at("/clamp_index", "missing", detail)
            at_index, at_values = pointer_builder("clamp_index"), pointer_builder("clamp_values")
            index = tensors["clamp_index"].astype(np.int64)
            require_range(index, memory.dim, at_index, "out_of_range", rule)
            values = to_float32(tensors["clamp_values"], at_values)
        else:
            if not isinstance(spec, Mapping) or set(spec) != {"index", "values"}:
                raise make_graph_problem_at(
                    "/clamp", "wrong_type", "Must be an object with `index` and `values` alone."
                )
            index = parse_integers(spec["index"], memory.dim, at_index, "out_of_range", rule)
            given = [[v] for v in require_list(spec["values"], at_values)]
            values = parse_number_rows(given, 1, at_values, "wrong_shape", "Must be a number")[:, 0]
        if len(values) != len(index):
            detail = f"Must hold one value per index: {len(index)}, not {len(values)}."
            raise make_graph_problem_at(at_values(), "wrong_shape", detail)
        if not 0 < len(index) < memory.dim:
            rule = (
                f"{len(index)} coordinates were sent; clamp at least one and at most "
                f"{memory.dim - 1} of {memory.dim}."
            )
            raise make_graph_problem_at(at_index(), "out_of_range", rule)
        if len(np.unique(index)) != len(index):
            raise make_graph_problem_at(
                at_index(), "duplicate", "A coordinate appears twice. Give each coordinate once."
            )
        _require_within(values, at_values, memory)
    return memory.clamp_coordinates(index, values.astype(np.float64))


def _require_within(values: np.ndarray, at: PointerFn, memory: Memory) -> None:
    low, high = (0.0, 1.0) if memory.codec.kind == "images" else (-MAX_STATE, MAX_STATE)
    if (outside := (values < low) | (values > high)).any():
        raise make_graph_problem_where(
            outside, at, "out_of_range", f"Must be from {low:g} to {high:g}."
        )


def _schedule(params: SampleKnobs, chains: int, settings: Settings) -> Schedule:
    """Return the schedule; missing fields get the proportions of the paper's protocol."""
    if params.steps > settings.max_sample_steps:
        rule = (
            f"{params.steps} steps exceed the maximum of {settings.max_sample_steps} "
            "(BASIN_MAX_SAMPLE_STEPS). Lower `steps`."
        )
        raise make_problem("invalid-request", "/steps", "out_of_range", rule)
    if chains > params.num_samples:
        rule = (
            f"{chains} chains exceed `num_samples`, {params.num_samples}. Lower `chains`: each "
            "chain returns at least one sample."
        )
        raise make_problem("invalid-request", "/chains", "out_of_range", rule)
    keep = -(-params.num_samples // chains)
    burn_in = params.steps * 2 // 5 if params.burn_in is None else params.burn_in
    if burn_in >= params.steps:
        detail = f"Must be less than `steps`, {params.steps}."
        raise make_problem("invalid-request", "/burn_in", "out_of_range", detail)
    thin = params.thin or max((params.steps - burn_in) // max(_SNAPSHOTS, keep), 1)
    if (snapshots := (params.steps - burn_in) // thin) < keep:
        rule = (
            f"Each of {chains} chains must return {keep} states but records only {snapshots}. "
            "Lower `num_samples`, `thin` or `burn_in`."
        )
        raise make_problem("invalid-request", "/num_samples", "out_of_range", rule)
    return Schedule(params.steps, burn_in, thin, keep)


def _check_cost(task: SampleInputs, settings: Settings) -> None:
    """Refuse requests that need too much time or memory, before they start."""
    memory, runs, work = task.memory, task.runs, task.work
    if work > settings.max_sample_work:
        rule = (
            f"This request takes {work} operations (betas x steps x chains x patterns x "
            f"dimensions, and {_SEARCH} per pattern); at most {settings.max_sample_work} "
            "(BASIN_MAX_SAMPLE_WORK) are allowed. Lower `steps`."
        )
        raise make_problem("invalid-request", "/steps", "too_much_work", rule)
    item = int(np.prod(task.shape)) * (1 if memory.codec.kind == "sequences" else _JSON_NUMBER)
    size = runs * (task.count * item + task.chains * 2 * _JSON_NUMBER)
    limit = settings.max_response_bytes
    require_response_bytes(size, limit, "/num_samples", "Lower `num_samples`.")
    num_buffered = max(task.chains, task.count) * (memory.num_patterns + memory.dim)
    if num_buffered > _MAX_BUFFER:
        rule = (
            f"This request needs a buffer of {num_buffered} numbers (chains or samples x "
            f"(patterns + dimensions)); at most {_MAX_BUFFER} are allowed. Lower `chains` or "
            "`num_samples`."
        )
        raise make_problem("invalid-request", "/chains", "too_large", rule)
    recorded = task.schedule.num_steps // task.schedule.thin * task.chains
    if recorded * task.heads * _WATCHED > _MAX_RECORDED:
        rule = (
            f"This request records {recorded * task.heads} states (steps / thin x chains x "
            f"heads); at most {_MAX_RECORDED // _WATCHED} are allowed. Raise `thin`."
        )
        raise make_problem("invalid-request", "/thin", "too_large", rule)
    if task.heads > 1:
        with reraise_as("invalid-request"):
            require_decomposable(runs * memory.num_patterns, memory.dim, "/heads")
