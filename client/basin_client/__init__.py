"""Asks a Basin server: `Client`, or `AsyncClient` where there is an event loop."""

from basin_client import operations as asks
from basin_client.client import AsyncClient, Client
from basin_client.errors import BasinError, ProblemError, UnreachableError
from basin_client.graphs import Graph
from basin_client.jobs import AsyncJob, Job
from basin_client.request import Dynamics, Resonance
from basin_client.results import (
    ClassificationResult,
    Completed,
    Convergence,
    ItemError,
    Prediction,
    Recognised,
    Sampled,
    Scores,
)

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BasinError",
    "ClassificationResult",
    "Client",
    "Completed",
    "Convergence",
    "Dynamics",
    "Graph",
    "ItemError",
    "Job",
    "Prediction",
    "ProblemError",
    "Recognised",
    "Resonance",
    "Sampled",
    "Scores",
    "UnreachableError",
    "asks",
]
