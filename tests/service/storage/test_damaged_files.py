"""Files of stores with changed bytes: an error, or what was written; never something else."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.base import JobLimits
from service.storage.jobs.job import Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.sqlite import StoreError
from service.storage.wal_check import find_wal_damage
from tests.support.damage import flip_bytes
from tests.support.graph_stores import ROOM, in_sqlite, listed, node, play, put, ring, update

LIMITS = JobLimits(max_jobs=100, max_bytes=10_000_000, keep_s=1000)
SENT = StoredRequest("POST", "/sample", b"", (("content-type", "application/json"),))
IDS = ("a", "b", "c")


def copy_live(path: Path, folder: Path) -> Path:
    """Copy the files of a store that is open, as a kill would leave them."""
    folder.mkdir(exist_ok=True)
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copyfile(file, folder / file.name)
    return folder / path.name


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> tuple[Path, dict[str, tuple]]:
    """Files of three graphs with updates, of a server that was killed, and what they hold."""
    folder, contents = tmp_path_factory.mktemp("graphs"), dict[str, tuple]()

    async def work() -> None:
        async with in_sqlite(folder / "g.sqlite", replace(ROOM, max_graphs=5), 1 << 30) as store:
            for number, id in enumerate(IDS, 4):
                await put(store, id, ring(number))
            for i in range(30):
                await update(store, IDS[i % 3], node(100 + i, (0, 100 + i)))
            for id in IDS:
                contents[id] = listed(await store.get_nodes_and_edges(id))
            copy_live(folder / "g.sqlite", folder / "killed")

    play(work)
    return folder / "killed", contents


def read_graphs(path: Path) -> dict[str, object]:
    """Read all graphs; an error is the kind of its problem."""
    contents = dict[str, object]()

    async def work() -> None:
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            for id in IDS:
                try:
                    contents[id] = listed(await store.get_nodes_and_edges(id))
                except Problem as problem:
                    contents[id] = problem.kind

    play(work)
    return contents


def test_files_of_a_killed_server_are_read(graphs, tmp_path) -> None:
    files, contents = graphs
    assert (files / "g.sqlite-wal").stat().st_size > 100_000
    assert read_graphs(copy_live(files / "g.sqlite", tmp_path / "f")) == contents


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("share", [0.01, 1e-4, None])
def test_changed_bytes_never_make_another_graph(graphs, tmp_path, suffix, share) -> None:
    files, contents = graphs
    refused = 0
    for seed in range(15):
        path = copy_live(files / "g.sqlite", tmp_path / f"{seed}")
        if suffix == "":  # all that was written is in the file itself
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file = path.with_name(path.name + suffix)
        # Damage to the last commit of a log looks like one that was not finished.
        flip_bytes(file, Random(seed), share, stop=-3 * 4120 if suffix else None)
        for id, content in read_graphs(path).items():
            assert content in (contents[id], "graphs-unavailable"), f"seed {seed}: {id}"
            refused += content == "graphs-unavailable"
    assert refused or share is None


@pytest.mark.parametrize("table", ["heads", "bases", "updates"])
def test_a_damaged_row_is_that_of_one_graph(graphs, tmp_path, table) -> None:
    files, contents = graphs
    path = copy_live(files / "g.sqlite", tmp_path / "f")
    column = {"heads": "head", "bases": "base", "updates": "made"}[table]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        change = f"UPDATE {table} SET {column} = replace({column}, '1', '2') WHERE id = 'b'"
        db.execute(change.replace("replace(", "CAST(replace(").replace("'2')", "'2') AS BLOB)"))
    assert read_graphs(path) == contents | {"b": "graphs-unavailable"}

    async def store_anew() -> None:
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            with pytest.raises(Problem, match="graphs-unavailable"):
                await update(store, "b", node(7))
            if table == "heads":
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await store.get_metadata("b")
            await update(store, "a", node(7))
            await put(store, "b", ring(9))
            assert (await store.get("b")).num_nodes == 9

    play(store_anew)


def test_an_update_that_is_missing_is_noticed(graphs, tmp_path) -> None:
    files, contents = graphs
    path = copy_live(files / "g.sqlite", tmp_path / "f")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM updates WHERE id = 'c' AND revision = 5")
    assert read_graphs(path) == contents | {"c": "graphs-unavailable"}


def make_jobs(path: Path) -> dict[str, bytes]:
    """Store jobs that are done and jobs that wait; return answers and bodies by id."""
    store, contents = SqliteJobStore(path, LIMITS), dict[str, bytes]()
    store.open()
    for i in range(12):
        job = Job("/sample", f"r{i}", id=f"job{i}")
        body = b"body %d " % i * 200
        store.add(job, SENT, body, None, b"f")
        contents[job.id] = body
        if i % 2:
            answer = Response(b"answer %d " % i * 200, 200)
            assert store.claim() is not None
            assert store.complete(job, Status.DONE, answer)
            contents[job.id] = bytes(answer.body)
    copy_live(path, path.parent / "killed")
    store.close()
    return contents


def read_jobs(path: Path) -> dict[str, bytes]:
    """Return the answers and bodies that can be read."""
    store, contents = SqliteJobStore(path, LIMITS), dict[str, bytes]()
    try:
        store.open()
    except StoreError:
        return contents
    for i in range(12):
        try:
            if store.get(f"job{i}") is not None:
                response = store.get_response(f"job{i}")
                if response is not None and response.status_code == 410:
                    continue
                if response is None:
                    assert store.get_request(f"job{i}") == SENT
                    contents[f"job{i}"] = store.get_body(f"job{i}")
                else:
                    contents[f"job{i}"] = bytes(response.body)
        except (StoreError, Problem):
            pass
    store.close()
    return contents


@pytest.mark.parametrize("share", [0.01, 1e-4, None])
def test_changed_bytes_never_make_another_job(tmp_path, share) -> None:
    contents = make_jobs(tmp_path / "jobs.sqlite")
    killed = tmp_path / "killed" / "jobs.sqlite"
    assert read_jobs(copy_live(killed, tmp_path / "same")) == contents
    for seed in range(15):
        path = copy_live(killed, tmp_path / f"{seed}")
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        flip_bytes(path, Random(seed), share)
        for id, content in read_jobs(path).items():
            assert content == contents[id], f"seed {seed}: {id}"


def test_a_log_that_ends_in_a_commit_is_not_damaged(graphs, tmp_path) -> None:
    log = (graphs[0] / "g.sqlite-wal").read_bytes()
    file = tmp_path / "log"
    for end in (len(log), len(log) - 1, len(log) - 5000, 4152, 32, 1, 0):
        file.write_bytes(log[:end])
        assert find_wal_damage(file) is None
    file.write_bytes(log[:-4120] + bytes(4120))  # as the power may leave it
    assert find_wal_damage(file) is None
    assert find_wal_damage(tmp_path / "none") is None
