"""Asks a Basin server: `Client`, or `AsyncClient` where there is an event loop."""

from basin_client import operations as asks
from basin_client.client import AsyncClient, Client
from basin_client.errors import BasinError, ProblemError, UnreachableError
from basin_client.graphs import Graph
from basin_client.jobs import AsyncJob, Job
from basin_client.request import Dynamics, Resonance
from basin_client.results import (
    Classified,
    Completed,
    Convergence,
    Predicted,
    Recognised,
    Sampled,
    Scores,
    Unread,
)

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BasinError",
    "Classified",
    "Client",
    "Completed",
    "Convergence",
    "Dynamics",
    "Graph",
    "Job",
    "Predicted",
    "ProblemError",
    "Recognised",
    "Resonance",
    "Sampled",
    "Scores",
    "UnreachableError",
    "Unread",
    "asks",
]
