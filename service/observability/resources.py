"""What can run out or expire: memory, disks, GPU memory, the TLS certificate."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog
import torch
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not name


class Capacity(NamedTuple):
    """Bytes of a resource in all, and bytes that are available."""

    total: int
    available: int


class ResourceCollector(Collector):
    """Gauges of resources and expiry dates, read at each scrape.

    What cannot be read is absent from the scrape. Only the certificate is read once, because a
    server keeps the one that it started with.

    Args:
        disks: paths by what is stored there.
        key_expiries: expiry by name of the API keys that have one, in seconds since 1970.
        certificate: TLS certificate and its private key.
    """

    def __init__(
        self,
        disks: Mapping[str, Path],
        key_expiries: Callable[[], Mapping[str, float]] = dict,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self._disks, self._key_expiries = disks, key_expiries
        self._certificate_expiry = None
        if certificate is not None:
            try:
                self._certificate_expiry = read_certificate_expiry(*certificate)
            except ssl.SSLError as error:
                structlog.get_logger().warning("certificate expiry unknown", reason=error.reason)

    def collect(self) -> Iterator[Metric]:
        memory, certificate = read_memory(), self._certificate_expiry
        yield from _capacities(
            ("basin_memory_limit_bytes", "Memory that this process and its children may use."),
            ("basin_memory_available_bytes", "What of basin_memory_limit_bytes is available."),
            "",
            {} if memory is None else {"": memory},
        )
        yield from _capacities(
            ("basin_disk_total_bytes", "Size of the disk, by what is stored there."),
            ("basin_disk_available_bytes", "Free space of the disk, by what is stored there."),
            "store",
            read_disks(self._disks),
        )
        yield from _capacities(
            ("basin_gpu_memory_total_bytes", "Memory of each GPU that is used."),
            ("basin_gpu_memory_available_bytes", "What of the memory of each GPU is available."),
            "gpu",
            read_gpus(),
        )
        yield _gauge(
            ("basin_key_expiry_timestamp_seconds", "When each API key expires, if it does."),
            "key",
            self._key_expiries(),
        )
        yield _gauge(
            ("basin_certificate_expiry_timestamp_seconds", "When the TLS certificate expires."),
            "",
            {} if certificate is None else {"": certificate},
        )


def _capacities(
    total: tuple[str, str],
    available: tuple[str, str],
    label: str,
    capacities: Mapping[str, Capacity],
) -> Iterator[Metric]:
    yield _gauge(total, label, {name: each.total for name, each in capacities.items()})
    yield _gauge(available, label, {name: each.available for name, each in capacities.items()})


def _gauge(name_and_help: tuple[str, str], label: str, values: Mapping[str, float]) -> Metric:
    name, help = name_and_help
    family = GaugeMetricFamily(name, help, labels=[label] if label else [])
    for label_value, value in values.items():
        family.add_metric([label_value] if label else [], value)
    return family


def read_memory(root: Path = Path("/")) -> Capacity | None:
    """Return the memory limit of this process and what is available below it.

    The limit is that of its cgroup (version 2), of a cgroup around it, or the memory of the
    machine: the one that leaves least. All processes of the cgroup count, so parsers of SMILES too.
    Inactive pages of files count as available, as kubelet counts them.

    Args:
        root: holds `proc` and `sys`.

    Returns:
        None where this is not Linux.
    """
    try:
        return min((*_read_cgroups(root), _read_machine(root)), key=lambda memory: memory.available)
    except (OSError, ValueError, KeyError):
        return None


def _read_machine(root: Path) -> Capacity:
    rows = _read_table(root / "proc/meminfo")  # in KiB
    return Capacity(rows["MemTotal:"] << 10, rows["MemAvailable:"] << 10)


def _read_cgroups(root: Path) -> Iterator[Capacity]:
    top = root / "sys/fs/cgroup"
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    # Version 1 has a line for each controller; that of version 2 has the number 0.
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    for path in paths:
        for folder in (top / path, *(top / path).parents):
            if not folder.is_relative_to(top) or not (folder / "memory.max").exists():
                continue
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                used = int((folder / "memory.current").read_text())
                used -= _read_table(folder / "memory.stat")["inactive_file"]
                yield Capacity(int(limit), max(int(limit) - used, 0))


def _read_table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}


def read_disks(paths: Mapping[str, Path]) -> dict[str, Capacity]:
    """Return the capacity of the disk of each path; one that cannot be read is left out.

    Where a path does not exist yet, the disk is that of the nearest folder above it.
    """
    disks = {}
    for name, path in paths.items():
        try:
            folder = next(part for part in (path, *path.absolute().parents) if part.exists())
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        disks[name] = Capacity(usage.total, usage.free)
    return disks


def read_gpus() -> dict[str, Capacity]:
    """Return the memory of each GPU that this process uses, by its number.

    What PyTorch has freed and keeps for later tensors is available.
    """
    gpus = {}
    for gpu in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
        if not torch.cuda.memory_reserved(gpu):  # not used here, and asking would begin to use it
            continue
        try:
            free, total = torch.cuda.mem_get_info(gpu)
        except RuntimeError:  # after an error of CUDA every call fails; the scrape must not
            continue
        cached = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
        gpus[str(gpu)] = Capacity(total, free + cached)
    return gpus


def read_certificate_expiry(certificate: Path, key: Path) -> float:
    """Return when a TLS certificate expires, in seconds since 1970.

    The standard library decodes only the certificate of a peer that it trusts. So this is a
    handshake in memory with a client that trusts the certificate itself, expired or not.

    Raises:
        ssl.SSLError: no client would accept the certificate.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, answering, asking):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:  # the other end's turn
            continue
    peer = asking.getpeercert()
    assert peer is not None
    return ssl.cert_time_to_seconds(str(peer["notAfter"]))
