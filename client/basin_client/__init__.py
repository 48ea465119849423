"""Client of a Basin server: `Client`, or `AsyncClient` for an event loop."""

import importlib
import warnings
from typing import Any

from basin_client import graph_operations, operations
from basin_client.client import AsyncClient, Client
from basin_client.errors import (
    BasinError,
    InputError,
    MissingLibraryError,
    ProblemError,
    UnreachableError,
)
from basin_client.explanations import Deletion, Explanation, ExplanationPart
from basin_client.graphs import Graph
from basin_client.jobs import AsyncJob, Job
from basin_client.request import AlertOptions, AlertRule, Dynamics, Request, Resonance
from basin_client.results import (
    ClassificationResult,
    CompletionResult,
    Convergence,
    ImageResult,
    ItemError,
    Prediction,
    SampleResult,
    Scores,
)

__all__ = [
    "AlertOptions",
    "AlertRule",
    "AsyncClient",
    "AsyncJob",
    "BasinError",
    "ClassificationResult",
    "Client",
    "CompletionResult",
    "Convergence",
    "Deletion",
    "Dynamics",
    "Explanation",
    "ExplanationPart",
    "Graph",
    "ImageResult",
    "InputError",
    "ItemError",
    "Job",
    "MissingLibraryError",
    "Prediction",
    "ProblemError",
    "Request",
    "Resonance",
    "SampleResult",
    "Scores",
    "UnreachableError",
    "graph_operations",
    "operations",
]

# Names of the previous release, which still work for this one.
_RENAMED_CLASSES = {
    "Classified": "ClassificationResult",
    "Completed": "CompletionResult",
    "Predicted": "Prediction",
    "Recognised": "ImageResult",
    "Sampled": "SampleResult",
    "Unread": "ItemError",
}
_RENAMED_MODULES = {"asks": "operations", "stored": "graph_operations"}


def __getattr__(name: str) -> Any:
    """Resolve a name of the previous release, with a DeprecationWarning (PEP 562)."""
    new_name = (_RENAMED_CLASSES | _RENAMED_MODULES).get(name)
    if new_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"basin_client.{name} is now basin_client.{new_name}", DeprecationWarning, stacklevel=2
    )
    if name in _RENAMED_CLASSES:
        return globals()[new_name]
    with warnings.catch_warnings():  # the module itself warns of `import basin_client.asks`
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"basin_client.{name}")
