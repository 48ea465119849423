"""What can run out or expire: figures of the kernel, of the disks, and of certificates and keys."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.observability import resources
from service.observability.resources import (
    Capacity,
    ResourceCollector,
    read_certificate_expiry,
    read_disks,
    read_memory,
)
from service.settings import Settings

DAY_S = 24 * 3600


def write_machine(root: Path, cgroup: str) -> None:
    """Write the files of a machine of 1 MiB, half of which is available."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)


def write_cgroup(folder: Path, limit: str, used: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_memory_is_that_of_the_tightest_cgroup(tmp_path: Path) -> None:
    write_machine(tmp_path, "4:memory:/elsewhere\n0::/pod/container\n")
    assert read_memory(tmp_path) == Capacity(1 << 20, 1 << 19)
    write_cgroup(tmp_path / "sys/fs/cgroup/pod/container", "max", 9000, 0)
    assert read_memory(tmp_path) == Capacity(1 << 20, 1 << 19)
    write_cgroup(tmp_path / "sys/fs/cgroup/pod", "10000", 9000, 500)
    assert read_memory(tmp_path) == Capacity(10_000, 1500)
    write_cgroup(tmp_path / "sys/fs/cgroup/pod/container", "9000", 8000, 300)
    assert read_memory(tmp_path) == Capacity(9000, 1300)


def test_memory_of_a_container_and_of_a_machine_without_cgroups(tmp_path: Path) -> None:
    write_machine(tmp_path / "container", "0::/\n")
    write_cgroup(tmp_path / "container/sys/fs/cgroup", "4000", 5000, 0)
    assert read_memory(tmp_path / "container") == Capacity(4000, 0)
    write_machine(tmp_path / "old", "4:memory:/elsewhere\n")
    assert read_memory(tmp_path / "old") == Capacity(1 << 20, 1 << 19)
    assert read_memory(tmp_path / "no-linux") is None


def test_disks_of_paths_that_may_not_exist_yet(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    disks = read_disks({"jobs": tmp_path / "var" / "jobs.sqlite", "graphs": tmp_path})
    assert disks.keys() == {"jobs", "graphs"}
    for disk in disks.values():
        assert disk.total == usage.total
        assert disk.available == pytest.approx(usage.free, rel=0.05)


@pytest.fixture(scope="module")
def leaf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate signed by an authority, for 3 days, and its key; `old.pem` has expired."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    (folder / "leaf.ext").write_text("basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
    new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    sign = "x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile leaf.ext"
    for command in (
        f"req -x509 {new} -keyout ca.key -out ca.pem -days 9 -subj /CN=authority",
        f"req {new} -keyout leaf.key -out leaf.csr -subj /CN=basin",
        f"{sign} -days 3 -out leaf.pem",
        f"{sign} -days -1 -out old.pem",
    ):
        command = ["openssl", *command.split()]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "leaf.pem", folder / "leaf.key"


def test_when_a_certificate_expires(leaf: tuple[Path, Path]) -> None:
    certificate, key = leaf
    now = time.time()
    assert read_certificate_expiry(*leaf) == pytest.approx(now + 3 * DAY_S, abs=600)
    old = certificate.with_name("old.pem")
    assert read_certificate_expiry(old, key) == pytest.approx(now - DAY_S, abs=600)
    chain = certificate.with_name("chain.pem")
    chain.write_text(certificate.read_text() + certificate.with_name("ca.pem").read_text())
    assert read_certificate_expiry(chain, key) == pytest.approx(now + 3 * DAY_S, abs=600)


def read_samples(text: str) -> dict[tuple[str, str], float]:
    """Return the samples of resources by name and value of their label."""
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_an_app_exposes(tmp_path: Path, leaf: tuple[Path, Path]) -> None:
    keys = tmp_path / "keys.json"
    entry = {"sha256": ["0" * 64], "routes": "*", "models": "*"}
    ends = {"name": "ends", "expires": "2030-01-31T00:00:00Z"}
    stays = {"name": "stays", "sha256": ["1" * 64]}
    keys.write_text(json.dumps({"keys": [entry | ends, entry | stays]}))
    certificate, key = leaf
    settings = Settings(
        keys=keys, tls_certificate=certificate, tls_key=key, job_store=tmp_path / "jobs"
    )
    samples = read_samples(create_app(settings).state.context.metrics.render().decode())
    expiry = datetime(2030, 1, 31, tzinfo=UTC).timestamp()
    assert samples["basin_key_expiry_timestamp_seconds", "ends"] == expiry
    assert ("basin_key_expiry_timestamp_seconds", "stays") not in samples
    expires_s = samples["basin_certificate_expiry_timestamp_seconds", ""] - time.time()
    assert expires_s == pytest.approx(3 * DAY_S, abs=600)
    for name in ("jobs", "graphs", "memories"):
        total = samples["basin_disk_total_bytes", name]
        assert 0 < samples["basin_disk_available_bytes", name] < total
    if Path("/proc/meminfo").exists():
        limit = samples["basin_memory_limit_bytes", ""]
        assert 0 < samples["basin_memory_available_bytes", ""] < limit


def test_what_cannot_be_read_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: object) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(resources.shutil, "disk_usage", refuse)
    monkeypatch.setattr(resources, "read_memory", lambda: None)
    families = ResourceCollector({"jobs": tmp_path}).collect()
    assert [sample for family in families for sample in family.samples] == []


def test_memory_of_gpus_counts_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_free(gpu: int) -> tuple[int, int]:
        if gpu == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 100, 1000

    cuda = resources.torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "mem_get_info", read_free)
    monkeypatch.setattr(cuda, "memory_reserved", lambda gpu: 800)
    monkeypatch.setattr(cuda, "memory_allocated", lambda gpu: 500)
    assert resources.read_gpus() == {"0": Capacity(1000, 400)}
