"""A body of POST /sample as one task for the engine."""

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
from service.endpoints.sample.schemas import MAX_BETA, MAX_BETAS, SampleKnobs
from service.errors import MAX_FIELD_ERRORS, FieldError, pointer, unknown_fields
from service.media_types import JSON
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
    """What to sample and how. `betas` is None for beta*; `start` None for random patterns."""

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
        """How many temperatures."""
        return len(self.betas or (0,))

    @property
    def work(self) -> int:
        """How much there is to compute, the search for beta* with it."""
        memory = self.memory
        walked = (
            self.runs * self.schedule.num_steps * self.chains * memory.num_patterns * memory.dim
        )
        return walked + _SEARCH * memory.num_patterns


def parse_sample(
    body: bytes, media_type: str, store: MemoryStore, settings: Settings
) -> SampleInputs:
    """
    Raises:
        Problem: the first stage that fails tells all it found: syntax, params, memory, arrays,
            cost.
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
        raise make_request_problem(
            [FieldError("/init", "wrong_shape", f"must hold one state for each of {chains}")]
        )
    schedule = _schedule(params, chains, settings)
    known = _known(fields.get("clamp"), tensors, memory)
    if known is not None and params.heads > 1:
        rule = "heads mix the coordinates, so none of them can be held"
        raise make_request_problem([FieldError("/clamp", "conflict", rule)])
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
    """Inverse temperatures, None for beta*, and whether a list was asked for."""
    if value in (None, "auto"):
        return None, False
    several = type(value) is list
    values: list[Any] = value if several else [value]  # type: ignore[assignment]
    if not 0 < len(values) <= MAX_BETAS:
        raise make_request_problem(
            [FieldError("/beta", "out_of_range", f"a list holds 1 to {MAX_BETAS} numbers")]
        )
    rule = f'must be a number above 0 and up to {MAX_BETA:g}, a list of such, or "auto"'
    faults = [
        FieldError(
            pointer("beta", i) if several else "/beta",
            "out_of_range" if type(beta) in (int, float) else "wrong_type",
            rule,
        )
        for i, beta in enumerate(values)
        if type(beta) not in (int, float) or not 0 < beta <= MAX_BETA
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
            raise make_request_problem(
                [FieldError("/memory", "conflict", "give an id or patterns, not both")]
            )
        card, memory = store.get(spec)
        return memory, spec, card.shape
    if spec is None and not inline:
        raise make_request_problem(
            [FieldError("/memory", "missing", "name a memory or send patterns")]
        )
    if not isinstance(spec, dict | None):
        raise make_request_problem(
            [FieldError("/memory", "wrong_type", "must be an id or an object")]
        )
    if inline:
        memory, items = memory_of_tensor(tensors, spec or {}, "memory")
    else:
        memory, items = memory_of_json(spec or {}, "memory")
    return memory, None, items.shape[1:]


def _states(spec: object, tensors: Tensors, memory: Memory) -> torch.Tensor | None:
    """Given states, normalised as the patterns are."""
    at = pointer_builder("init") if "init" in tensors else pointer_builder("init", "states")
    if spec not in (None, "patterns") and (type(spec) is not dict or set(spec) != {"states"}):  # type: ignore[arg-type]
        rule = 'must be "patterns" or {"states": [...]}'
        raise make_request_problem([FieldError("/init", "not_allowed", rule)])
    if "init" not in tensors and type(spec) is not dict:
        return None
    if memory.codec.kind == "sequences":
        rule = "chains on sequences start at patterns"
        raise make_request_problem([FieldError("/init", "not_read", rule)])
    width = memory.dim  # of every kind whose items are numbers
    rule = f"every state must hold {width} numbers"
    with reraise_as("invalid-request"):
        if "init" in tensors:
            rows = tensors["init"].reshape(len(tensors["init"]), -1)
            if rows.shape[1] != width:
                raise make_graph_problem_at(at(), "wrong_shape", rule)
            rows = to_float32(rows, at)
        else:
            given = require_list(spec["states"], at)  # type: ignore[index]
            rows = parse_number_rows(given, width, at, "wrong_shape", rule)
        if not len(rows):
            raise make_graph_problem_at(at(), "empty", "give at least one state")
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
    """Clamped coordinates."""
    as_tensors = {"clamp_index", "clamp_values"} & tensors.keys()
    if spec is None and not as_tensors:
        return None
    if not memory.codec.has_coordinates:
        rule = f"coordinates of {memory.codec.kind} are mixed before sampling and cannot be held"
        raise make_request_problem([FieldError("/clamp", "not_read", rule)])
    at_index, at_values = pointer_builder("clamp", "index"), pointer_builder("clamp", "values")
    rule = f"must be the number of a coordinate, below {memory.dim}"
    with reraise_as("invalid-request"):
        if as_tensors:
            if len(as_tensors) < 2 or spec is not None:
                raise make_graph_problem_at(
                    "/clamp_index", "missing", "clamp_index and clamp_values go together"
                )
            at_index, at_values = pointer_builder("clamp_index"), pointer_builder("clamp_values")
            index = tensors["clamp_index"].astype(np.int64)
            require_range(index, memory.dim, at_index, "out_of_range", rule)
            values = to_float32(tensors["clamp_values"], at_values)
        else:
            if not isinstance(spec, Mapping) or set(spec) != {"index", "values"}:
                raise make_graph_problem_at(
                    "/clamp", "wrong_type", "must be {index: [...], values: [...]}"
                )
            index = parse_integers(spec["index"], memory.dim, at_index, "out_of_range", rule)
            given = [[v] for v in require_list(spec["values"], at_values)]
            values = parse_number_rows(given, 1, at_values, "wrong_shape", "must be a number")[:, 0]
        if len(values) != len(index):
            raise make_graph_problem_at(at_values(), "wrong_shape", "must hold one value per index")
        if not 0 < len(index) < memory.dim:
            rule = f"hold at least one coordinate and leave one of {memory.dim} to sample"
            raise make_graph_problem_at(at_index(), "out_of_range", rule)
        if len(np.unique(index)) != len(index):
            raise make_graph_problem_at(at_index(), "duplicate", "a coordinate is named twice")
        _require_within(values, at_values, memory)
    return memory.clamp_coordinates(index, values.astype(np.float64))


def _require_within(values: np.ndarray, at: PointerFn, memory: Memory) -> None:
    low, high = (0.0, 1.0) if memory.codec.kind == "images" else (-MAX_STATE, MAX_STATE)
    if (outside := (values < low) | (values > high)).any():
        raise make_graph_problem_where(
            outside, at, "out_of_range", f"must be from {low:g} to {high:g}"
        )


def _schedule(params: SampleKnobs, chains: int, settings: Settings) -> Schedule:
    """The steps that count; what is left out is in the proportions of the paper's protocol."""
    if params.steps > settings.max_sample_steps:
        rule = f"at most {settings.max_sample_steps} steps"
        raise make_request_problem([FieldError("/steps", "out_of_range", rule)])
    if chains > params.num_samples:
        rule = "each chain gives at least one sample; ask for fewer chains"
        raise make_request_problem([FieldError("/chains", "out_of_range", rule)])
    keep = -(-params.num_samples // chains)
    burn_in = params.steps * 2 // 5 if params.burn_in is None else params.burn_in
    if burn_in >= params.steps:
        raise make_request_problem(
            [FieldError("/burn_in", "out_of_range", "must be fewer than `steps`")]
        )
    thin = params.thin or max((params.steps - burn_in) // max(_SNAPSHOTS, keep), 1)
    if (snapshots := (params.steps - burn_in) // thin) < keep:
        rule = f"each of {chains} chains must keep {keep} states and has {snapshots} snapshots"
        raise make_request_problem([FieldError("/num_samples", "out_of_range", rule)])
    return Schedule(params.steps, burn_in, thin, keep)


def _check_cost(task: SampleInputs, settings: Settings) -> None:
    """Refuse what takes too long or answers with too much, before it is begun."""
    memory, runs, work = task.memory, task.runs, task.work
    if work > settings.max_sample_work:
        rule = (
            "beta values x steps x chains x patterns x dimensions, and "
            f"{_SEARCH} for each pattern, may be up to {settings.max_sample_work}; these are {work}"
        )
        raise make_request_problem([FieldError("/steps", "too_much_work", rule)])
    item = int(np.prod(task.shape)) * (1 if memory.codec.kind == "sequences" else _JSON_NUMBER)
    size = runs * (task.count * item + task.chains * 2 * _JSON_NUMBER)
    if size > settings.max_response_bytes:
        rule = (
            f"an answer may have about {settings.max_response_bytes} bytes; this would have {size}"
        )
        raise make_request_problem([FieldError("/num_samples", "too_large", rule)])
    if max(task.chains, task.count) * (memory.num_patterns + memory.dim) > _MAX_BUFFER:
        rule = f"chains or samples x (patterns + dimensions) may be up to {_MAX_BUFFER}"
        raise make_request_problem([FieldError("/chains", "too_large", rule)])
    recorded = task.schedule.num_steps // task.schedule.thin * task.chains
    if recorded * task.heads * _WATCHED > _MAX_RECORDED:
        rule = f"steps / thin x chains x heads may be up to {_MAX_RECORDED // _WATCHED}; thin more"
        raise make_request_problem([FieldError("/thin", "too_large", rule)])
    if task.heads > 1:
        with reraise_as("invalid-request"):
            require_decomposable(runs * memory.num_patterns, memory.dim, "/heads")
