"""Stored memories whose copies, or values in Redis, are missing or damaged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from service.storage.memory_copies import claim_folder
from service.storage.memory_index import is_unused
from tests.support.memory_peers import Peer, card_of, file_of, flip
from tests.support.redis_server import RedisServer

RedisStart = Callable[..., RedisServer]


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
    redis_server: RedisStart, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.storage.memory_sync._LOST_S", 0.0)
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    stamp = one.store._sync._copies._stamps
    flip(one.copy("m"))
    stamp["m"] = one.copy("m").stat().st_ino, one.copy("m").stat().st_mtime_ns, stamp["m"][2]
    assert one.store.get("m")[0] == card_of(0)
    flip(one.copy("m"))
    stamp["m"] = one.copy("m").stat().st_ino, one.copy("m").stat().st_mtime_ns, stamp["m"][2]
    redis.restart_from()
    one.probe()
    assert not redis.client.keys("basin:memory:*")
    assert one.problem(lambda: one.store.get("m")) == "unknown-memory"
    assert one.events["lost", "memories"] == 1


def test_a_copy_that_changes_without_a_trace_is_not_sent(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    one = peer(redis_server(), "a")
    one.store.put("m", file_of(0))
    stamp = one.store._sync._copies._stamps
    for place in (-1, 100):
        flip(one.copy("m"), place)
        about = one.copy("m").stat()
        stamp["m"] = about.st_ino, about.st_mtime_ns, about.st_size
        if place == -1:
            with one.store.open("m") as file:
                assert file.read() == file_of(0)
        else:
            assert one.store.get_card("m") == card_of(0)


@pytest.mark.parametrize("damage", [Path.unlink, flip])
def test_what_is_lost_everywhere_is_counted_and_all_else_served(
    redis_server: RedisStart,
    peer: Callable[..., Peer],
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.storage.memory_sync._LOST_S", 0.0)
    redis = redis_server()
    one = peer(redis, "a")
    for i, name in enumerate("mn"):
        one.store.put(name, file_of(i))
    damage(one.copy("m"))
    redis.kill()
    assert one.problem(lambda: one.store.get("m")) == "memories-unavailable"  # not: unknown
    assert set(one.cards()) == {"n", "shipped"}
    redis.start()
    redis.restart_from()
    one.probe()
    assert one.events["lost", "memories"] == 1
    assert one.problem(lambda: one.store.get("m")) == "unknown-memory"
    assert one.cards() == {"n": card_of(1), "shipped": card_of(99)}
    assert one.store.get("shipped")[0] == card_of(99)
    assert one.store.put("m", file_of(2))
    assert one.store.get("m")[0] == card_of(2)


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
    redis.restart_from()
    again.probe()
    assert again.cards() == {"n": card_of(7), "o": card_of(2), "shipped": card_of(99)}


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


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), 1e300, 1e15, 1.5, -5])
def test_a_deletion_of_a_damaged_revision_deletes_nothing(
    redis_server: RedisStart, peer: Callable[..., Peer], score: float
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    for i, name in enumerate("mno"):
        one.store.put(name, file_of(i))
    one.store.delete("o")
    before = one.cards()
    redis.client.hdel("basin:memories", "m")
    redis.client.zadd("basin:memories:deleted", dict.fromkeys("mnop", score))
    assert one.cards() == before
    assert one.events["damaged", "memories"] > 0
    assert redis.client.zscore("basin:memories:deleted", "m") is None  # it was restored
    assert one.store.put("p", file_of(3))
    assert not one.store.put("n", file_of(4))
    redis.client.zadd("basin:memories:deleted", {"p": score})
    one.store.delete("p")
    assert 0 < (redis.client.zscore("basin:memories:deleted", "p") or 0) < 1e15
    assert one.cards() == peer(redis, "b").cards() == before | {"n": card_of(4)}


def test_a_deletion_of_a_damaged_revision_is_written_again(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    redis = redis_server()
    one = peer(redis, "a")
    one.store.put("m", file_of(0))
    one.store.delete("m")
    revision = redis.client.zscore("basin:memories:deleted", "m")
    redis.client.zadd("basin:memories:deleted", {"m": float("inf")})
    redis.client.set("basin:history", "new")
    one.probe()
    assert redis.client.zscore("basin:memories:deleted", "m") == revision


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


def test_an_index_that_never_changes_is_still_in_use(
    redis_server: RedisStart, peer: Callable[..., Peer]
) -> None:
    one = peer(redis_server(), "a")
    one.store.put("m", file_of(0))
    index = one.folder / "own-of-redis" / "index.json"
    os.utime(index, (0, 0))
    assert is_unused(index)
    one.store.follow()
    assert not is_unused(index)
    before = index.stat().st_mtime_ns
    one.store.follow()
    assert index.stat().st_mtime_ns == before  # not on each request


def test_a_folder_of_a_process_that_ended_long_ago_brings_nothing_back(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("own", "own-2", "own-3"))
    claim = "from pathlib import Path; import sys; from service.storage.memory_copies import *; "
    claim += "print(claim_folder(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", claim, str(first)]
    for folder in (first, second, third):
        (folder / "alice").mkdir(parents=True)
        for name in ("index.json", "m.safetensors", "alice/m.safetensors"):
            (folder / name).write_bytes(b"")
    os.utime(first / "index.json", (0, 0))
    os.utime(second / "index.json", (0, 0))
    with ExitStack() as stack:
        for folder in (first, second, third):
            process = stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(folder)
            if folder == first:
                assert claim_folder(tmp_path / "other") == tmp_path / "other"
    assert claim_folder(first) == first  # the claim ends with the process
    assert (first / "m.safetensors").is_file()
    assert [path.name for path in second.iterdir()] == ["lock"]
    assert (third / "alice" / "m.safetensors").is_file()
