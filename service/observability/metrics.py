"""Prometheus metrics of one app.

Labels have few values: route templates, names of models and API keys, problem types.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from service.observability.malloc import MallocStats, malloc_stats

M = TypeVar("M", Counter, Histogram)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STEP_SECONDS = tuple(x * 10.0**n for n in range(-4, 1) for x in (1, 2.5, 5))
_POWERS = tuple(10.0**n for n in range(-6, 3))
_STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
_PERCENTILES = (0.5, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5)
_SIGNED = tuple(
    sorted([0.0, *(s * m * 10.0**n for s in (-1, 1) for m in (1, 3) for n in range(-2, 4))])
)


class LoadedModel(NamedTuple):
    """A model as the metrics name it; `size_bytes` is of its weights and buffers."""

    name: str
    version: str
    sha256: str
    size_bytes: int


class Metrics:
    """All metrics, in a separate registry per app."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._names = set[str]()  # of models that have been served
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.requests = Counter(
            "basin_requests", "Requests with a response.", ["route", "status"], registry=registry
        )
        self.problems = Counter(
            "basin_problems", "Requests refused, by problem type.", ["type"], registry=registry
        )
        self.held = Counter(
            "basin_refusals_held",
            "Refusals whose connection was paused because there were too many refusals.",
            registry=registry,
        )
        self.seconds = Histogram(
            "basin_request_seconds",
            "Seconds of a request in each phase; `model` is empty if no model was used.",
            ["route", "model", "phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.energy = Histogram(
            "basin_energy_per_node",
            "Final energy per node. Energies may be negative, so there is no sum.",
            ["model"],
            buckets=_SIGNED,
            registry=registry,
        )
        self.percentile = Histogram(
            "basin_energy_percentile",
            "Percentile of the final energy per node among those of the training data; half of the "
            "requests are below 50 if they resemble the training data.",
            ["model"],
            buckets=_PERCENTILES,
            registry=registry,
        )
        self.energy_drop = Histogram(
            "basin_energy_drop_per_node",
            "Decrease of the energy per node, 0 if it rose.",
            ["model"],
            buckets=(0.0, *_POWERS),
            registry=registry,
        )
        self.outside = Counter(
            "basin_out_of_distribution",
            "Graphs, windows and images whose energy is outside the central 99 % of training.",
            ["model"],
            registry=registry,
        )
        self.transactions = Counter(
            "basin_transactions",
            "Transactions that were stored and scored.",
            ["model"],
            registry=registry,
        )
        self.alerts = Counter(
            "basin_alerts",
            "Alerts of stored transactions and of nodes of watched graphs.",
            ["model"],
            registry=registry,
        )
        self.webhooks = Counter(
            "basin_webhooks",
            "Alerts that were sent to a webhook, by outcome: delivered or failed.",
            ["outcome"],
            registry=registry,
        )
        self.pending_transactions = Gauge(
            "basin_transactions_pending",
            "Stored transactions that should have been scored by now.",
            registry=registry,
        )
        self.watched_nodes = Counter(
            "basin_watched_nodes",
            "Nodes of watched graphs that were scored after a change.",
            ["model"],
            registry=registry,
        )
        self.waiting_nodes = Gauge(
            "basin_watched_nodes_waiting",
            "Nodes of watched graphs that this server is about to score.",
            registry=registry,
        )
        self.failing_graphs = Gauge(
            "basin_watched_graphs_failing",
            "Watched graphs whose nodes this server cannot score.",
            registry=registry,
        )
        self.residual = Histogram(
            "basin_residual",
            "Relative speed |dx/dt| / |x| of the last step.",
            ["model"],
            buckets=(0.0, *_POWERS),
            registry=registry,
        )
        self.steps = Histogram(
            "basin_steps",
            "Steps of the dynamics, summed over all blocks.",
            ["model"],
            buckets=_STEPS,
            registry=registry,
        )
        self.stops = Counter(
            "basin_stops", "Stop reasons of the dynamics.", ["model", "reason"], registry=registry
        )
        self.classified = Counter(
            "basin_classified", "Molecules and graphs classified.", ["model"], registry=registry
        )
        self.item_errors = Counter(
            "basin_item_errors",
            "Molecules and graphs of a request that could not be classified.",
            ["model", "code"],
            registry=registry,
        )
        self.windows = Counter(
            "basin_windows",
            "Windows that POST /complete relaxed.",
            ["model"],
            registry=registry,
        )
        self.images = Counter(
            "basin_images",
            "Images, or questions about them, that POST /images processed.",
            ["model"],
            registry=registry,
        )
        self.chain_steps = Counter(
            "basin_chain_steps",
            "Steps of all chains of POST /sample.",
            ["method"],
            registry=registry,
        )
        self.samples = Counter(
            "basin_samples", "Samples drawn, by kind of memory.", ["kind"], registry=registry
        )
        self.acceptance = Histogram(
            "basin_acceptance",
            "Mean acceptance rate of the chains of one temperature, MALA only.",
            buckets=_SHARES,
            registry=registry,
        )
        self.cache = Counter(
            "basin_cache",
            "Lookups in the response cache, by outcome: hit or miss.",
            ["route", "outcome"],
            registry=registry,
        )
        self.key_cost = Counter(
            "basin_key_cost",
            "Cost charged to API keys, in tokens x steps.",
            ["key"],
            registry=registry,
        )
        self.key_refusals = Counter(
            "basin_key_refusals",
            "Requests refused by authentication, rate limit or quota; `key` is empty if unknown.",
            ["key", "type"],
            registry=registry,
        )
        self.key_faults = Counter(
            "basin_key_faults",
            "Failed reloads of the key file, after which the old keys stayed valid.",
            registry=registry,
        )
        self.redis_failures = Counter(
            "basin_redis_failures",
            "Failed operations on Redis, by part of the server.",
            ["part"],
            registry=registry,
        )
        self.redis_damaged = Counter(
            "basin_redis_damaged", "Damaged values read from Redis.", ["part"], registry=registry
        )
        self.jobs = Counter(
            "basin_jobs", "Finished jobs, by status.", ["status"], registry=registry
        )
        self.models = Gauge(
            "basin_model_info",
            "1 for each loaded model.",
            ["name", "version", "sha256"],
            registry=registry,
        )
        self.model_bytes = Gauge(
            "basin_model_bytes", "Bytes of the weights of a model.", ["model"], registry=registry
        )
        Gauge("basin_gpu_bytes", "Bytes of tensors on GPUs.", registry=registry).set_function(
            _on_gpus
        )
        if malloc_stats() is not None:
            state = Gauge(
                "basin_heap_bytes",
                "Bytes that malloc has allocated (in_use), and that are free in its arenas.",
                ["state"],
                registry=registry,
            )
            for name in MallocStats._fields:
                state.labels(name).set_function(lambda name=name: getattr(malloc_stats(), name))
        self.batch_rows = Histogram(
            "basin_batch_rows",
            "Graphs, molecules or windows in one batched step.",
            ["model"],
            buckets=_STEPS[1:],
            registry=registry,
        )
        self.step_seconds = Histogram(
            "basin_step_seconds",
            "Seconds of one batched step.",
            ["model"],
            buckets=_STEP_SECONDS,
            registry=registry,
        )

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Register a gauge that is read at each scrape."""
        Gauge(name, help, registry=self.registry).set_function(read)

    def set_models(self, models: Sequence[LoadedModel]) -> None:
        """Set the loaded models."""
        # Requests of a dropped model still end under its name.
        self._names |= {model.name for model in models}
        self.models.clear()
        self.model_bytes.clear()
        for model in models:
            self.models.labels(model.name, model.version, model.sha256).set(1)
            self.model_bytes.labels(model.name).set(model.size_bytes)

    def _of(self, metric: M, *labels: str) -> M:
        """Return `metric.labels(*labels)` from a cache: that lookup takes 12 times as long as to
        count."""
        child = self._children.get((metric, labels))
        if child is None:
            child = self._children[metric, labels] = metric.labels(*labels)
        return cast(M, child)

    def count_request(self, route: str, status: int, problem: str | None) -> None:
        """Count a response, and its problem type if it is a refusal."""
        self._of(self.requests, route, str(status)).inc()
        if problem is not None:
            self._of(self.problems, problem).inc()

    def observe_request(self, route: str, model: str | None, seconds: Mapping[str, float]) -> None:
        """Count the seconds of one request by phase."""
        name = (
            model if model in self._names else ""
        )  # else the id of a memory, which clients choose
        for phase, spent in seconds.items():
            self._of(self.seconds, route, name, phase).observe(spent)

    def observe_step(self, kind: Hashable, rows: int, seconds: float) -> None:
        """Count a step of a batch. On the compute thread."""
        assert isinstance(kind, tuple)
        model = kind[0]
        self._of(self.batch_rows, model).observe(rows)
        self._of(self.step_seconds, model).observe(seconds)

    def count_alerts(self, model: str, transactions: int, alerts: int) -> None:
        """Count transactions that were stored and scored, and those that raised an alert."""
        self._of(self.transactions, model).inc(transactions)
        self._of(self.alerts, model).inc(alerts)

    def count_watched(self, model: str, nodes: int, alerts: int) -> None:
        """Count nodes that were scored after a change, and those that raised an alert."""
        self._of(self.watched_nodes, model).inc(nodes)
        self._of(self.alerts, model).inc(alerts)

    def set_watched(self, waiting_nodes: int, failing_graphs: int) -> None:
        """Set what waits to be scored, and what cannot be."""
        self.waiting_nodes.set(waiting_nodes)
        self.failing_graphs.set(failing_graphs)

    def observe(self, model: str, num_nodes: int, convergence: Mapping[str, Any]) -> None:
        """Count one relaxed graph, window or image."""
        self._of(self.stops, model, convergence["stop_reason"].value).inc()
        self._of(self.steps, model).observe(convergence["steps"])
        if convergence["residual"] is not None:
            self._of(self.residual, model).observe(convergence["residual"])
        if convergence["out_of_distribution"]:
            self._of(self.outside, model).inc()
        if convergence["energy_percentile"] is not None:
            self._of(self.percentile, model).observe(convergence["energy_percentile"])
            self._of(self.energy, model).observe(convergence["energy_final"] / num_nodes)
            drop = convergence["energy_drop"] / num_nodes
            self._of(self.energy_drop, model).observe(max(drop, 0.0))

    def observe_classified(
        self, model: str, num_nodes: int, convergence: Mapping[str, Any]
    ) -> None:
        """Count one classified molecule or graph."""
        self.classified.labels(model).inc()
        self.observe(model, num_nodes, convergence)

    def observe_item_errors(self, model: str, errors: Iterable[tuple[str, str] | None]) -> None:
        """Count the inputs of one request that could not be classified."""
        for code, count in Counts(error[0] for error in errors if error is not None).items():
            self.item_errors.labels(model, code).inc(count)

    def observe_windows(
        self, model: str, patches: int, convergences: Sequence[Mapping[str, Any]]
    ) -> None:
        """Count the windows of one completion."""
        self.windows.labels(model).inc(len(convergences))
        for convergence in convergences:
            self.observe(model, patches, convergence)

    def observe_images(
        self, model: str, tokens: int, convergences: Sequence[Mapping[str, Any]]
    ) -> None:
        """Count the images of one request."""
        self.images.labels(model).inc(len(convergences))
        for convergence in convergences:
            self.observe(model, tokens, convergence)

    def observe_samples(
        self,
        *,
        kind: str,
        method: str,
        num_samples: int,
        num_steps: int,
        acceptance: Iterable[float | None],
    ) -> None:
        """Count one request to `POST /sample`.

        Args:
            kind: of the memory.
            num_steps: of all chains at all temperatures.
            acceptance: mean acceptance at each temperature; None for an unadjusted method.
        """
        self.chain_steps.labels(method).inc(num_steps)
        self.samples.labels(kind).inc(num_samples)
        for share in acceptance:
            if share is not None:
                self.acceptance.observe(share)

    def count_job(self, status: str) -> None:
        self.jobs.labels(status).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


def _on_gpus() -> float:
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return sum(torch.cuda.memory_allocated(gpu) for gpu in gpus)
