"""Stored memories while Redis comes back older, empty or full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.memory_peers import Peer, card_of, file_of, take_snapshot
from tests.support.redis_server import RedisServer

RedisStart = Callable[..., RedisServer]


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
    redis.restart_from(snapshot)
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


def test_a_deletion_that_is_repeated_is_logged_as_one(
    redis_server: RedisStart, peer: Callable[..., Peer], tmp_path: Path
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    one.store.delete("m")
    redis.restart_from(snapshot)
    with structlog.testing.capture_logs() as logs:
        one.probe()
    lines = [line["event"] for line in logs if "memories" in line["event"]]
    assert lines == ["deletions of memories repeated"]
    assert one.events["restored", "memories"] == 1
    assert not redis.client.exists("basin:memory:m")


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
    redis.restart_from(snapshot)
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
        redis.restart_from()
        threads = [threading.Thread(target=server.probe) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in servers:
            assert server.cards() == latest | {"shipped": card_of(99)}


def test_what_another_server_restores_is_not_lost(
    redis_server: RedisStart,
    peer: Callable[..., Peer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = redis_server()
    one, two = peer(redis, "a"), peer(redis, "b")
    for i, name in enumerate("mn"):
        one.store.put(name, file_of(i))
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    for i, name in enumerate("mno"):
        one.store.put(name, file_of(i + 5))
    two.probe()
    latest = two.cards()
    for name in "mo":
        two.copy(name).unlink()
    redis.restart_from(snapshot)
    two.probe()
    assert set(two.cards()) == {"n", "shipped"}  # what is only older in Redis waits
    one.probe()
    monkeypatch.setattr("service.storage.memory_sync._LOST_S", 0.0)
    assert two.cards() == one.cards() == latest
    assert not one.events["lost", "memories"] + two.events["lost", "memories"]


def test_a_loss_in_part_is_counted_too(
    redis_server: RedisStart,
    peer: Callable[..., Peer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    snapshot = take_snapshot(redis, tmp_path / "snapshot")
    one.probe()
    one.store.put("m", file_of(1))
    one.copy("m").unlink()
    redis.restart_from(snapshot)
    one.probe()
    assert one.problem(lambda: one.store.get("m")) == "memories-unavailable"
    assert one.events["lost", "memories"] == 0
    monkeypatch.setattr("service.storage.memory_sync._LOST_S", 0.0)
    assert one.store.get("m")[0] == card_of(0)
    one.cards()
    assert one.events["lost", "memories"] == 1


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
    redis.restart_from()
    again = peer(redis, "a")
    assert again.store.get("m")[0] == card_of(0)
    monkeypatch.setattr("service.storage.memory_sync._LOST_S", 0.0)
    again.cards()
    assert again.events["lost", "memories"] == 1  # the content that was not acknowledged


def test_limits_refuse_no_restore(redis_server: RedisStart, peer: Callable[..., Peer]) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    for i in range(3):
        one.store.put(f"m{i}", file_of(i))
    redis.restart_from()
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
    redis.restart_from()
    redis.client.set("basin:history", "new")
    redis.client.config_set("maxmemory", 1)
    one.probe()
    assert one.link.is_available
    assert one.store.get("m")[0] == card_of(0)
    assert one.problem(lambda: one.store.put("n", file_of(1))) == "memories-unavailable"
    assert not redis.client.keys("basin:memory:*")
    redis.client.config_set("maxmemory", 0)
    one.store.follow()  # as a task of the server does every few seconds
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
