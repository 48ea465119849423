"""What a request may have included: what there is to say, and how much of it an answer may hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from models.base import Architecture, DynamicsParams
from models.energies import AttentionEnergy
from models.interpret.reasons import TOP_K, get_supported_reasons
from models.nn.transformer import MultiHeadAttention
from models.nn.workspace import Workspace
from models.resonance import ResonanceParameter
from models.tasks.completer import CompletionNetwork
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.node_scorer import NodeScorer
from service.errors import FieldError, make_problem
from service.payload import require_response_bytes
from service.settings import Settings
from service.validation.schema_errors import make_request_problem

TOKENS = 64
"""Maximum tokens of a row with reasons in JSON."""

# Bytes in a response: of a step of a block in a trace, of a head with resonance, of a token with
# reasons, of an entry in its list, of a number in that.
_MOMENT, _HEAD, _TOKEN, _ENTRY, _NUMBER = 160, 640, 60, 90, 24
EXPLANATION_BYTES = 4096
"""Of one explanation, without its drawing."""

_MISSING = {
    "attention": "this model has no attention",
    "memories": "this model has no Hopfield network",
    "explanation": "this model tells attention and memories, but does not explain its answers",
    "uncertainty": "this model has no uncertainty; see `has_uncertainty` in GET /models/{name}",
}


def require_supported_includes(network: Architecture, include: Collection[str]) -> None:
    """Refuse to include what there is nothing to say of with this network."""
    if not include:  # which looks at every module
        return
    there = set(get_supported_reasons(network))
    if isinstance(network, NodeScorer | GraphClassifier):
        there.add("explanation")
    if isinstance(network, CompletionNetwork) and network.has_uncertainty:
        there.add("uncertainty")
    missing = [rule for name, rule in _MISSING.items() if name in include and name not in there]
    if missing:
        raise make_request_problem(FieldError("/include", "not_told", rule) for rule in missing)


def require_max_explained(
    include: Collection[str], inputs: int, at: str, settings: Settings
) -> None:
    """Refuse to explain more than may be asked for at a time."""
    if "explanation" in include and inputs > settings.max_explained:
        rule = (
            f"{inputs} explanations exceed the limit of {settings.max_explained} "
            "(BASIN_MAX_EXPLAINED). Send several requests."
        )
        raise make_problem("invalid-request", at, "too_many", rule)


def require_response_size(
    network: Architecture,
    params: DynamicsParams,
    include: Collection[str],
    tokens: Sequence[int],
    settings: Settings,
    base_bytes: int = 0,
) -> None:
    """Refuse reasons that would make the response too large, before anything is computed.

    Args:
        tokens: number of tokens of each row.
        base_bytes: of the response without them.
    """
    size = base_bytes + sum(reason_bytes(network, params, include, row) for row in tokens)
    require_response_bytes(
        size, settings.max_response_bytes, "/include", "Include less, or send fewer inputs."
    )


def reason_bytes(
    network: Architecture, params: DynamicsParams, include: Collection[str], tokens: int
) -> int:
    """Estimate the bytes that `include` adds to the response for a row of `tokens` tokens."""
    blocks = network.blocks_in_order()
    steps = sum((block.steps if params.steps is None else params.steps) + 1 for block in blocks)
    heads = [
        m.heads
        for m in network.modules()
        if isinstance(m, AttentionEnergy | MultiHeadAttention | Workspace)
    ]
    resonating = sum(m.heads for m in network.modules() if isinstance(m, ResonanceParameter))
    attention_bytes = sum(_TOKEN + TOP_K * (_ENTRY + _NUMBER * num_heads) for num_heads in heads)
    listed_tokens = min(tokens, TOKENS)
    sizes = {
        "trace": steps * _MOMENT,
        "resonance": resonating * _HEAD,
        "attention": listed_tokens * attention_bytes,
        "memories": (listed_tokens + 1) * len(blocks) * (_TOKEN + TOP_K * _ENTRY),
        "components": listed_tokens * (len(blocks) * 2 * _TOKEN + _NUMBER * sum(heads)),
    }
    return sum(size for name, size in sizes.items() if name in include)
