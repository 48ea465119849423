"""Stored memories while Redis comes back older or empty, and while copies or Redis are damaged."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.memories import Memory, MemoryCard, dump_memory, load_memory
from service.errors import Problem
from service.observability.redis_metrics import RedisEvent
from service.storage.memories_redis import RedisMemoryStore
from service.storage.redis_client import RedisClient
from tests.support.redis_server import RedisServer

RedisStart = Callable[..., RedisServer]


def file_of(seed: int) -> bytes:
    items = np.random.default_rng(seed).standard_normal((20, 6)).astype(np.float32)
    return dump_memory(items, MemoryCard.from_memory(Memory.from_items("vectors", items), items))


def card_of(seed: int) -> MemoryCard:
    return load_memory(file_of(seed))[0]


class Peer:
    """The memories of one server, on a Redis that it knows."""

    def __init__(self, redis: RedisServer, folder: Path, max_count: int = 9) -> None:
        self.folder, self.redis = folder, redis
        self.events = Counter[tuple[str, str]]()
        self.link = RedisClient(redis.url, 0.5, self.count)
        ships = folder.parent / "ships"
        self.store = RedisMemoryStore(ships, folder / "own", max_count, 1 << 20, self.link)
        self.store.prepare()
        self.probe()

    def count(self, event: RedisEvent, label: str, number: int) -> None:
        self.events[event, label] += number

    def probe(self) -> None:
        """Do what a server does every second."""

        async def probe() -> None:
            await self.link.probe()
            await self.link._prober.aclose()  # its connections end with this loop

        asyncio.run(probe())

    def cards(self) -> dict[str, MemoryCard]:
        return self.store.list_cards()

    def copy(self, field: str) -> Path:
        return self.folder / "own-of-redis" / f"{field}.safetensors"

    def problem(self, act: Callable[[], object]) -> str:
        with pytest.raises(Problem) as error:
            act()
        return error.value.kind


@pytest.fixture
def peer(tmp_path: Path) -> Callable[..., Peer]:
    """The server of this name on a Redis; again, it is the same one started anew."""
    ships = tmp_path / "ships"
    ships.mkdir()
    (ships / "shipped.safetensors").write_bytes(file_of(99))

    def start(redis: RedisServer, name: str, max_count: int = 9) -> Peer:
        return Peer(redis, tmp_path / name, max_count)

    return start


def go_back(redis: RedisServer, snapshot: Path | None = None) -> None:
    """Restart Redis with the data of a snapshot, or with none."""
    redis.kill()
    shutil.rmtree(redis.folder / "appendonlydir")
    if snapshot is not None:
        shutil.copytree(snapshot, redis.folder / "appendonlydir")
    redis.start()


def take_snapshot(redis: RedisServer, folder: Path) -> Path:
    redis.stop()
    shutil.copytree(redis.folder / "appendonlydir", folder)
    redis.start()
    return folder


def flip(path: Path, place: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_what_is_put_first_after_a_loss_hides_nothing(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    for i in range(3):
        one.store.put(f"m{i}", file_of(i))
    before = two.cards()
    redis.client.flushall()
    assert one.problem(lambda: one.store.put("m9", file_of(9))) == "memories-unavailable"
    assert not redis.client.exists("basin:memories")  # nothing was written
    assert one.problem(lambda: two.store.delete("m1")) == "memories-unavailable"
    assert one.cards() == two.cards() == before
    one.probe()
    assert one.events["changes", "replaced"] == 1
    assert one.events["restored", "memories"] + two.events["restored", "memories"] == 3
    assert one.store.put("m9", file_of(9))
    two.probe()
    assert one.cards() == two.cards() == before | {"m9": card_of(9)}
    assert not one.events["lost", "memories"] + two.events["lost", "memories"]


def test_a_redis_that_is_older_gets_back_what_was_changed_since(
    redis_server: RedisStart, peer: Callable[..., Peer], tmp_path: Path
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    for i, name in enumerate(("replaced", "deleted", "again", "same")):
        one.store.put(name, file_of(i))
    two.cards()  # has all of this, and nothing that follows
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    one.store.put("replaced", file_of(10))
    one.store.delete("deleted")
    one.store.delete("again")
    one.store.put("again", file_of(11))
    one.store.scoped_to("alice").put("new", file_of(12))
    go_back(redis, snapshot)
    two.probe()  # has nothing newer, and may be asked first
    assert two.store.get("replaced")[0] == card_of(0)
    one.probe()
    assert one.events["changes", "restarted"] == 2
    for server in (one, two, peer(redis, "c")):
        names = {"replaced": 10, "again": 11, "same": 3, "shipped": 99}
        assert server.cards() == {name: card_of(i) for name, i in names.items()}
        assert server.store.scoped_to("alice").get("new")[0] == card_of(12)
    assert one.events["restored", "memories"] == 4
    assert one.events["lost", "memories"] == 0


def test_a_change_after_the_loss_is_later_than_what_was_lost(
    redis_server: RedisStart, peer: Callable[..., Peer], tmp_path: Path
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    one.store.put("m", file_of(0))
    one.store.put("n", file_of(1))
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    one.store.put("m", file_of(2))
    one.store.delete("n")
    go_back(redis, snapshot)
    two.probe()
    two.store.put("m", file_of(3))
    two.store.put("n", file_of(4))
    one.probe()
    assert one.cards() == two.cards()
    assert one.store.get("m")[0] == card_of(3)
    assert one.store.get("n")[0] == card_of(4)


def test_servers_that_restore_side_by_side_agree(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    for turn in range(5):
        servers = [peer(redis, name) for name in "abc"]
        for i, name in enumerate("xyz"):
            servers[i].store.put(name, file_of(3 * turn + i))
        for server in servers[: turn % 3 + 1]:
            server.cards()  # the others have older contents of some
        latest = {name: card_of(3 * turn + i) for i, name in enumerate("xyz")}
        go_back(redis)
        threads = [threading.Thread(target=server.probe) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in servers:
            assert server.cards() == latest | {"shipped": card_of(99)}


@pytest.mark.parametrize("place", [-1, 60], ids=("items", "card"))
def test_a_copy_that_is_missing_or_damaged_is_read_again(
    redis_server: RedisStart, peer: Callable[..., Peer], place: int
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    for i, name in enumerate("mn"):
        one.store.put(name, file_of(i))
    for damage in (Path.unlink, lambda path: flip(path, place)):
        damage(one.copy("m"))
        assert one.store.get("m")[0] == card_of(0)
        damage(one.copy("m"))
        with one.store.open("m") as file:
            assert file.read() == file_of(0)
        damage(one.copy("m"))
        one = peer(redis, "a")  # a server that starts
        assert set(one.cards()) == {"m", "n", "shipped"}
    assert one.events["lost", "memories"] == 0


def test_a_copy_that_changes_without_a_trace_is_not_sampled_or_uploaded(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    stamp = one.store._sync._copies._stamps
    flip(one.copy("m"))
    stamp["m"] = one.copy("m").stat().st_ino, one.copy("m").stat().st_mtime_ns, stamp["m"][2]
    assert one.store.get("m")[0] == card_of(0)
    flip(one.copy("m"))
    stamp["m"] = one.copy("m").stat().st_ino, one.copy("m").stat().st_mtime_ns, stamp["m"][2]
    go_back(redis)
    one.probe()
    assert not redis.client.keys("basin:memory:*")
    assert one.problem(lambda: one.store.get("m")) == "unknown-memory"
    assert one.events["lost", "memories"] == 1


@pytest.mark.parametrize("damage", [Path.unlink, flip])
def test_what_is_lost_everywhere_is_counted_and_all_else_served(
    redis_server: RedisStart, peer: Callable[..., Peer], damage: Callable[[Path], None]
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    for i, name in enumerate("mn"):
        one.store.put(name, file_of(i))
    damage(one.copy("m"))
    redis.kill()
    assert one.problem(lambda: one.store.get("m")) == "memories-unavailable"  # not: unknown
    assert set(one.cards()) == {"n", "shipped"}
    redis.start()
    go_back(redis)
    one.probe()
    assert one.events["lost", "memories"] == 1
    assert one.problem(lambda: one.store.get("m")) == "unknown-memory"
    assert one.cards() == {"n": card_of(1), "shipped": card_of(99)}
    assert one.store.get("shipped")[0] == card_of(99)
    assert one.store.put("m", file_of(2))
    assert one.store.get("m")[0] == card_of(2)


def test_a_loss_in_part_is_counted_too(
    redis_server: RedisStart, peer: Callable[..., Peer], tmp_path: Path
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    one.store.put("m", file_of(1))
    one.copy("m").unlink()
    go_back(redis, snapshot)
    one.probe()
    assert one.events["lost", "memories"] == 1
    assert one.store.get("m")[0] == card_of(0)


@pytest.mark.parametrize("damaged_index", [True, False])
def test_without_an_index_a_deletion_still_deletes(
    redis_server: RedisStart, peer: Callable[..., Peer], damaged_index: bool
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    for i, name in enumerate("mno"):
        one.store.put(name, file_of(i))
    one.cards()
    two.store.delete("m")
    two.store.put("n", file_of(7))
    index = one.folder / "own-of-redis" / "index.json"
    flip(index, 100) if damaged_index else index.unlink()
    again = peer(redis, "a")
    assert again.cards() == two.cards()
    go_back(redis)
    again.probe()
    assert again.cards() == {"n": card_of(7), "o": card_of(2), "shipped": card_of(99)}


def test_a_server_that_was_killed_before_it_wrote_the_file_still_has_the_old_one(
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    with monkeypatch.context() as patched:
        patched.setattr("service.storage.memory_copies.write_file", lambda path, raw: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.store.put("m", file_of(1))
    go_back(redis)
    again = peer(redis, "a")
    assert again.store.get("m")[0] == card_of(0)
    assert again.events["lost", "memories"] == 1  # the content that was not acknowledged


def test_damaged_values_in_redis_are_restored(
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.storage.memory_sync._AGAIN_S", 0.0)
    redis = redis_server()
    one = peer(redis, "a")
    for i, name in enumerate("mn"):
        one.store.put(name, file_of(i))
    before, client = one.cards(), redis.client

    def set_file(raw: bytes) -> None:
        client.delete("basin:memory:m")
        client.set("basin:memory:m", raw)

    def set_list() -> None:
        client.delete("basin:memory:m")
        client.rpush("basin:memory:m", "x")

    def set_index(raw: bytes) -> None:
        client.hset("basin:memories", "m", raw)

    entry = client.hget("basin:memories", "m")
    assert isinstance(entry, bytes)
    good = client.get("basin:memory:m")
    assert isinstance(good, bytes)
    files: tuple[Callable[[], object], ...] = (
        lambda: set_file(b""),
        lambda: set_file(good[:-1]),
        lambda: set_file(good[:-1] + b"\x7f"),
        lambda: client.delete("basin:memory:m"),
        set_list,
        lambda: set_index(b"f" + entry[1:]),
    )
    for i, damage in enumerate(files):
        damage()
        other = peer(redis, f"of-file-{i}")
        assert other.problem(lambda other=other: other.store.get("m")) == "memories-unavailable"
        assert set(other.cards()) == {"n", "shipped"}
        assert other.events["damaged", "memories"] > 0
        assert one.cards() == before
        assert other.cards() == before
        assert other.store.get("m")[0] == card_of(0)
        assert client.get("basin:memory:m") == good
        damage()
        one.store.put("m", file_of(0))
        assert one.cards() == before
    indices: tuple[Callable[[], object], ...] = (
        lambda: set_index(b""),
        lambda: set_index(b"\xff" * 64),
        lambda: set_index(entry + b"0000"),
        lambda: client.set("basin:memories", "x"),
        lambda: client.rpush("basin:memories:deleted", "x"),
        lambda: client.set("basin:memories:wanted", "x"),
        lambda: client.delete("basin:memories"),
    )
    for i, damage in enumerate(indices):
        damage()
        assert one.cards() == before
        assert one.store.get("m")[0] == card_of(0)
        assert peer(redis, f"of-index-{i}").cards() == before
        damage()
        one.store.put("m", file_of(0))
        assert one.cards() == before
        damage()
        one.store.delete("m")
        assert one.store.put("m", file_of(0))
    assert one.events["lost", "memories"] == 0


def test_a_damaged_entry_that_only_redis_has_is_for_the_operator(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    redis.client.hset("basin:memories", "m", "x")
    for field in ("../out", "/etc/x", "a/b/c", b"\xff"):
        redis.client.hset("basin:memories", field, "0" * 64)
    assert one.problem(lambda: one.store.get("m")) == "memories-unavailable"
    assert set(one.cards()) == {"shipped"}
    assert not one.store.put("m", file_of(0))
    assert one.store.get("m")[0] == card_of(0)


def test_limits_refuse_no_restore(redis_server: RedisStart, peer: Callable[..., Peer]) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    for i in range(3):
        one.store.put(f"m{i}", file_of(i))
    go_back(redis)
    smaller = peer(redis, "a", max_count=1)
    assert len(smaller.cards()) == 4
    assert redis.client.hlen("basin:memories") == 3
    assert smaller.problem(lambda: smaller.store.put("m9", file_of(9))) == "store-full"


def test_a_full_redis_is_restored_when_it_has_room(
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.storage.memory_sync._AGAIN_S", 0.0)
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    go_back(redis)
    redis.client.set("basin:history", "new")
    redis.client.config_set("maxmemory", 1)
    one.probe()
    assert one.link.is_available
    assert one.store.get("m")[0] == card_of(0)
    assert one.problem(lambda: one.store.put("n", file_of(1))) == "memories-unavailable"
    assert not redis.client.keys("basin:memory:*")
    redis.client.config_set("maxmemory", 0)
    assert one.store.get("m")[0] == card_of(0)
    assert redis.client.get("basin:memory:m") == file_of(0)


def test_what_is_refused_has_changed_nothing(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    one.store.put("m", file_of(0))
    redis.kill()
    assert one.problem(lambda: one.store.delete("m")) == "memories-unavailable"
    assert one.problem(lambda: one.store.put("m", file_of(1))) == "memories-unavailable"
    assert one.store.get("m")[0] == card_of(0)
    redis.start()
    for server in (one, two):
        server.probe()
        assert server.store.get("m")[0] == card_of(0)


def test_a_deletion_whose_reply_was_lost_is_done_once(
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    run = one.store._delete_script
    revisions: list[int] = []

    def run_twice(*args: Any) -> Any:
        revisions.append(run(*args))
        revisions.append(run(*args))
        return revisions[-1]

    monkeypatch.setattr(one.store, "_delete_script", run_twice)
    one.store.delete("m")
    assert revisions[0] == revisions[1] > 0
    assert one.problem(lambda: one.store.delete("m")) == "unknown-memory"


def test_deletions_are_kept_within_bounds(
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memories_redis", "memory_index"):
        monkeypatch.setattr(f"service.storage.{module}.KEEP_DELETIONS", 2)
    redis = redis_server()
    one = peer(redis, "a")
    redis.client.zadd("basin:memories:deleted", {"long-ago": 1})
    for i in range(4):
        one.store.put(f"m{i}", file_of(i))
        one.store.delete(f"m{i}")
    assert redis.client.zrange("basin:memories:deleted", 0, -1) == [b"m2", b"m3"]
    assert set(one.store._sync._copies.index.deletions) == {"m2", "m3"}
