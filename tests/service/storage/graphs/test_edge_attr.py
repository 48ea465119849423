"""Features of edges in stored graphs: they last, bit for bit, wherever the graph is."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from models.inputs.graph import Graph
from service.errors import Problem
from service.storage.graphs import DynamicGraph, GraphSnapshot, Neighborhood, Update
from tests.support.graph_stores import (
    NONE,
    ROOM,
    SCHEMA,
    drop_digests,
    in_sqlite,
    listed,
    node,
    play,
    put,
    ring,
    update,
)

PAID = replace(SCHEMA, edge_features=("amount", "hour"))
# What float32 has and few decimals do not: a third, the least number, and the greatest.
NUMBERS = np.array([1 / 3, 1e-45, 3.4e38, -0.1, 2**24 + 2, 7e-5], np.float32)


def draw_numbers(edges: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(NUMBERS, (edges, 2))


def paid_ring(nodes: int) -> DynamicGraph:
    graph = replace(ring(nodes).snapshot().graph, edge_attr=draw_numbers(nodes))
    return DynamicGraph(PAID, GraphSnapshot(graph, list(range(nodes)), 0))


def pay(*edges: tuple[int, int], numbers: np.ndarray) -> Update:
    return Update((), NONE, tuple((*ends, 0) for ends in edges), edge_attr=numbers)


def list_numbers(of: DynamicGraph | Neighborhood) -> dict[tuple[int, int], bytes]:
    whole = of.snapshot() if isinstance(of, DynamicGraph) else of
    assert whole.graph.edge_attr is not None
    ends = np.array(whole.node_ids)[whole.graph.edge_index].T.tolist()
    return {
        (source, target): row.tobytes()
        for (source, target), row in zip(ends, whole.graph.edge_attr, strict=True)
    }


@pytest.mark.parametrize("log_bytes", [1 << 20, 200], ids=["updates", "snapshots"])
def test_numbers_are_there_after_a_restart(opened, monkeypatch, log_bytes):
    monkeypatch.setattr("service.storage.graphs.store._LOG_BYTES", log_bytes)
    made = paid_ring(40)
    expected = list_numbers(made)

    async def work():
        async with opened() as store:
            head, _ = await put(store, "g", made)
            assert head.edge_features == ("amount", "hour")
            for i in range(40):
                ends, numbers = (i, i * 7 % 40), draw_numbers(1, i)
                expected[ends] = numbers.tobytes()
                await store.update("g", PAID, pay(ends, numbers=numbers))
            gone = Update((), NONE, (), (7,), ((0, 1, 0),))
            head = await store.update("g", PAID, gone)
            left = {ends: row for ends, row in expected.items() if 7 not in ends and ends != (0, 1)}
            assert list_numbers(await store.get("g")) == left
            assert head.num_edges == len(left)
            assert (head.since > 1) == (log_bytes == 200)
        async with opened() as store:
            assert await store.get_metadata("g") == head
            graph = await store.get("g")
            assert graph.schema == PAID
            assert list_numbers(graph) == list_numbers(graph.compacted()) == left

    play(work)


def test_an_edge_that_comes_again_takes_the_numbers_that_come_with_it(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", paid_ring(4))
            one, other = np.array([[1, 2]], np.float32), np.array([[1, 3]], np.float32)
            head = await store.update("g", PAID, pay((0, 1), numbers=one))
            assert (head.revision, head.num_edges) == (2, 4)
            same = await store.update("g", PAID, pay((0, 1), numbers=one))
            assert same == head
            # Its deletion in the same update is no other edge.
            again = replace(pay((0, 1), numbers=other), delete_edges=((0, 1, 0),))
            head = await store.update("g", PAID, again)
            assert (head.revision, head.num_edges) == (3, 4)
            assert await store.update("g", PAID, again) == head
            loop = await store.update("g", PAID, pay((2, 2), numbers=one))
            assert (loop.revision, loop.num_edges) == (4, 5)
            loop = await store.update("g", PAID, pay((2, 2), numbers=other))
            assert (loop.revision, loop.num_edges) == (5, 5)
            there = list_numbers(await store.get("g"))
            assert there[0, 1] == there[2, 2] == other.tobytes()
            unknown = pay((0, 99), numbers=one)
            with pytest.raises(Problem, match="invalid-graph"):
                await store.update("g", PAID, unknown)
        async with opened() as store:
            assert list_numbers(await store.get("g")) == there

    play(work)


def test_a_neighborhood_has_the_numbers_of_its_edges():
    graph = paid_ring(6)
    near = graph.sample_neighborhood([2], 1, 10, 0, 10, 10)
    numbers = list_numbers(graph)
    assert list_numbers(near) == {ends: numbers[ends] for ends in ((1, 2), (2, 3))}


def test_numbers_count_as_memory():
    graph, plain = paid_ring(1000), ring(1000)
    per_half_edge = (graph.nbytes - plain.nbytes) / 2000
    assert per_half_edge == 8  # two numbers
    before = graph.nbytes
    hub = pay(*((0, i) for i in range(2, 900)), numbers=draw_numbers(898))
    change = graph.plan(hub)
    assert change is not None
    graph.commit(change, 1)
    assert graph.nbytes - before > 2 * 898 * (8 + 8)


def test_a_graph_without_edges_takes_some_later(opened):
    async def work():
        async with opened() as store:
            none = Graph(
                np.zeros((3, 1), np.float32), np.zeros((2, 0), int), None, np.zeros((0, 2))
            )
            await put(store, "g", DynamicGraph(PAID, GraphSnapshot(none, [0, 1, 2], 0)))
        async with opened() as store:
            await store.update("g", PAID, Update((3,), np.ones((1, 1), np.float32), ()))
            numbers = draw_numbers(1)
            await store.update("g", PAID, pay((0, 3), numbers=numbers))
            assert list_numbers(await store.get("g")) == {(0, 3): numbers.tobytes()}

    play(work)


def test_a_graph_of_the_version_before_is_read(tmp_path):
    path = tmp_path / "g.sqlite"

    async def store_it():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            await put(store, "g", ring(5))
            await update(store, "g", node(5, (5, 0)))

    play(store_it)
    with sqlite3.connect(path) as file:
        [[head]] = file.execute("SELECT head FROM heads").fetchall()
        older = {name: value for name, value in json.loads(head).items() if name[:5] != "edge_"}
        file.execute("UPDATE heads SET head = ?", [json.dumps(older).encode()])
        [[made]] = file.execute("SELECT made FROM updates").fetchall()
        assert len(json.loads(made)) == 5  # as it was written
        drop_digests(file)
        file.execute("PRAGMA user_version = 4")
    file.close()

    async def read_it():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            assert (await store.get_metadata("g")).edge_features == ()
            head = await update(store, "g", node(6, (6, 0)))
            assert (head.num_edges, head.revision) == (7, 3)
            assert listed(await store.get("g"))[2][0] == (0, 1)

    play(read_it)
