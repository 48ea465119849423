"""The store by itself: what it holds decoded, and what it does when a memory goes meanwhile."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import service.storage.memories
from models.memories import MEMORY_FILE_SUFFIX, Memory, MemoryCard
from service.errors import Problem
from service.storage.memories import MemoryStore
from tests.support.damage import flip_bytes
from tests.support.memory_peers import file_of, flip

ONE = 20 * 6 * 4 + 20 * 4  # bytes of patterns and lengths


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """With room for two memories decoded, and three in it."""
    store = MemoryStore(tmp_path / "shipped", tmp_path / "own", 10, 1 << 20, cached=2 * ONE)
    for i, name in enumerate("abc"):
        store.put(name, file_of(i))
    return store


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each file that was decoded."""
    calls: list[int] = []
    load = service.storage.memories.load_memory

    def counted(raw: bytes) -> tuple[MemoryCard, Memory]:
        calls.append(len(raw))
        return load(raw)

    monkeypatch.setattr(service.storage.memories, "load_memory", counted)
    return calls


def test_the_memory_used_longest_ago_is_dropped(store: MemoryStore, loaded: list[int]) -> None:
    for name, decoded in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)):
        store.get(name)
        assert len(loaded) == decoded, name


def test_a_memory_larger_than_the_room_is_not_held(tmp_path: Path, loaded: list[int]) -> None:
    small = MemoryStore(tmp_path / "shipped", tmp_path / "own", 10, 1 << 20, cached=ONE - 1)
    small.put("a", file_of(0))
    assert small.get("a")[1].nbytes == ONE
    small.get("a")
    assert len(loaded) == 2
    assert not small._cache


def test_what_is_replaced_or_deleted_is_not_held(store: MemoryStore) -> None:
    before = store.get("a")[0]
    store.get("b")
    store.put("a", file_of(7))
    store.delete("b")
    assert not store._cache
    assert store.get("a")[0].sha256 != before.sha256


def test_a_cache_that_threads_share(store: MemoryStore) -> None:
    hashes = {name: store.get_card(name).sha256 for name in "abc"}

    def read(i: int) -> bool:
        name = "abc"[i % 3]
        return store.get(name)[0].sha256 == hashes[name]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(300)))
    assert sum(memory.nbytes for _, _, memory in store._cache.values()) <= 2 * ONE


def test_a_reader_keeps_the_memory_it_opened(store: MemoryStore) -> None:
    for change in (lambda: store.put("a", file_of(7)), lambda: store.delete("a")):
        with store.open("a") as file:
            before = (store._own / f"a{MEMORY_FILE_SUFFIX}").read_bytes()
            change()
            assert file.read() == before


def test_a_memory_that_goes_between_finding_and_opening(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Path.is_file

    def then_gone(path: Path) -> bool:
        there = found(path)
        path.unlink(missing_ok=True)
        return there

    monkeypatch.setattr(Path, "is_file", then_gone)
    for name, read in (("a", store.get), ("b", store.get_card), ("c", store.open)):
        with pytest.raises(Problem) as problem:
            read(name)
        assert problem.value.kind == "unknown-memory"


def read(work: Callable[[], object]) -> object:
    """Return what `work` does, or the kind of its problem."""
    try:
        return work()
    except Problem as problem:
        return problem.kind


@pytest.mark.parametrize("share", [0.01, 1e-3, None])
def test_a_damaged_file_is_refused_and_others_are_served(
    store: MemoryStore, tmp_path: Path, share: float | None
) -> None:
    right = store.get("a")[0].sha256
    path, refused = tmp_path / "own" / "a.safetensors", 0
    raw = path.read_bytes()
    for seed in range(60):
        path.write_bytes(raw)
        flip_bytes(path, Random(seed), share)
        fresh = MemoryStore(tmp_path / "shipped", tmp_path / "own", 10, 1 << 20)
        served = read(lambda fresh=fresh: fresh.get("a")[1].sha256)
        assert served in (right, "memory-damaged")
        refused += served != right
        card = read(lambda fresh=fresh: fresh.get_card("a"))
        assert isinstance(card, MemoryCard) or card == "memory-damaged"
        assert fresh.list_cards()["b"] == fresh.get("b")[0] == store.get("b")[0]
    assert refused > 40


def test_a_file_that_was_altered_without_a_trace_is_not_sent(
    store: MemoryStore, tmp_path: Path, loaded: list[int]
) -> None:
    path = tmp_path / "own" / "a.safetensors"
    card = store.get_card("a")
    about = path.stat()
    flip(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(Problem):
        store.open("a")
    assert store.get_card("a") == card  # its head is as it was
    flip(path)
    store.open("a").close()
    loaded.clear()
    with store.open("a") as file:
        assert file.read() == path.read_bytes()
    assert not loaded  # its digest is known


def test_a_full_disk_keeps_what_is_there(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = store.get("a")[0]
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for name in "ad":
            with pytest.raises(Problem) as error:
                store.put(name, file_of(9))
            assert error.value.kind == "memories-unavailable"
    assert store.get("a")[0] == before
    assert list(store.list_cards()) == ["a", "b", "c"]
    assert store.put("d", file_of(9))


def test_a_folder_that_cannot_be_synced_undoes_no_change(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sync = os.fsync

    def fail_for_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    before = store.get("a")[0]
    monkeypatch.setattr(os, "fsync", fail_for_folders)
    assert not store.put("a", file_of(9))
    assert store.get("a")[0] != before
    assert store.scoped_to("alice").put("n", file_of(9))
    store.delete("b")
    assert read(lambda: store.get("b")) == "unknown-memory"
    assert "A power cut may undo the last change" in caplog.text
