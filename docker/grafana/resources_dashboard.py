"""The resources: processors, memory, disks, GPUs, file descriptors, what expires."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from panels import new_dashboard, time_series, value, warn

_DAY_S = 24 * 3600


def build_resources() -> Dashboard:
    page = new_dashboard("resources", "Basin: resources")
    _add_state(page)
    _add_process(page)
    _add_machine(page)
    return page


def _add_state(page: Dashboard) -> None:
    page.with_row(Row("Now"))
    memory = value(
        "Memory available",
        "percentunit",
        "Of the limit, on the server with the least. Red: BasinMemoryLow.",
        "min(basin_memory_available_bytes / basin_memory_limit_bytes)",
    )
    page.with_panel(warn(memory, 0.25, 0.1))
    disk = value(
        "Disk free",
        "percentunit",
        "Of the disks of jobs, graphs and memories, the fullest. Red: BasinDiskLow.",
        "min(basin_disk_available_bytes / basin_disk_total_bytes)",
    )
    page.with_panel(warn(disk, 0.25, 0.1))
    gpu = value(
        "GPU memory available",
        "percentunit",
        "On the GPU with the least. Red: BasinGpuMemoryLow.",
        "min(basin_gpu_memory_available_bytes / basin_gpu_memory_total_bytes)",
    )
    page.with_panel(warn(gpu, 0.15, 0.05).no_value("No GPU"))
    certificate = value(
        "TLS certificate expires in",
        "s",
        "The first of all servers. Yellow: BasinCertificateExpires; red: "
        "BasinCertificateExpiresSoon.",
        "min(basin_certificate_expiry_timestamp_seconds) - time()",
    )
    page.with_panel(warn(certificate, 14 * _DAY_S, 3 * _DAY_S).no_value("No TLS here"))
    key = value(
        "Next API key expires in",
        "s",
        "Keys that have expired are left out. Yellow: BasinKeyExpires.",
        "min(basin_key_expiry_timestamp_seconds > time()) - time()",
    )
    page.with_panel(warn(key, 14 * _DAY_S, 3 * _DAY_S).no_value("None expires"))
    restarts = value(
        "Restarts within an hour",
        "short",
        "Of the server with the most. Red: BasinRestarts.",
        'max(changes(process_start_time_seconds{job="basin"}[1h]))',
    )
    page.with_panel(warn(restarts, 1, 3))


def _add_process(page: Dashboard) -> None:
    page.with_row(Row("Process"))
    page.with_panel(
        time_series(
            "Processors",
            "short",
            "1 is one core.",
            ('rate(process_cpu_seconds_total{job="basin"}[$__rate_interval])', "{{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Memory",
            "bytes",
            "If resident memory grows and what malloc has in use does not, nothing leaks.",
            ('process_resident_memory_bytes{job="basin"}', "resident, {{instance}}"),
            ('basin_heap_bytes{state="in_use"}', "in use by malloc, {{instance}}"),
            ("basin_gpu_bytes", "tensors on GPUs, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "File descriptors",
            "short",
            "Above the limit new connections are closed.",
            ('process_open_fds{job="basin"}', "open, {{instance}}"),
            ('process_max_fds{job="basin"}', "limit, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Cached responses and stored graphs",
            "bytes",
            "In memory: BASIN_CACHE_BYTES and BASIN_GRAPH_MEMORY_BYTES bound them.",
            ("basin_cache_bytes", "responses, {{instance}}"),
            ("basin_graph_bytes", "graphs, {{instance}}"),
        )
    )
    page.with_panel(
        time_series("Up", "short", "1 while it answers.", ('up{job="basin"}', "{{instance}}")).max(
            1
        )
    )
    page.with_panel(
        time_series(
            "Age of the process",
            "s",
            "Falls to 0 at a restart.",
            ('time() - process_start_time_seconds{job="basin"}', "{{instance}}"),
        )
    )


def _add_machine(page: Dashboard) -> None:
    page.with_row(Row("Limits"))
    page.with_panel(
        time_series(
            "Memory limit",
            "bytes",
            "Of the cgroup or the machine; child processes count.",
            ("basin_memory_limit_bytes", "limit, {{instance}}"),
            ("basin_memory_available_bytes", "available, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Disk",
            "bytes",
            "Free space on the disk of each store.",
            ("basin_disk_available_bytes", "{{store}}, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "GPU memory",
            "bytes",
            "Of each GPU in use.",
            ("basin_gpu_memory_total_bytes", "total, GPU {{gpu}}, {{instance}}"),
            ("basin_gpu_memory_available_bytes", "available, GPU {{gpu}}, {{instance}}"),
        ).no_value("No GPU")
    )
