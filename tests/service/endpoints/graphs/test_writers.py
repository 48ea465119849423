"""Graphs that are changed while they are scored, and while their server is killed."""

from __future__ import annotations

import threading

from tests.support.stored_graphs import put_graph, read_graph, read_scores


def test_readers_see_whole_updates(client, server, sample):
    """Each update adds a node with edges to two others: no answer has seen a part of it."""
    base = {"nodes": [{"id": i, "x": [i, 0, 0, 0, 0]} for i in (0, 1)], "edges": []}
    read_graph(put_graph(client, base), 201)
    statuses, sizes = [], []
    over = threading.Event()

    def write(start):
        with server.client() as own:
            for id in range(start, start + 30):
                change = {
                    "nodes": [{"id": id, "x": [0, 0, 0, 0, 1]}],
                    "edges": [{"source": id, "target": end} for end in (0, 1)],
                }
                statuses.append(own.patch("/graphs/g", json=change).status_code)

    def read():
        with server.client() as own:
            while not over.is_set():
                answer = read_scores(own, [0, 1], neighborhood={"max_neighbors": 500})
                sizes.append((answer["graph"]["num_nodes"], answer["graph"]["num_edges"]))

    writers = [threading.Thread(target=write, args=(start,)) for start in (100, 200, 300, 400)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    reader.join()
    assert statuses == [200] * 120
    assert len(sizes) > 3
    assert all(edges == 2 * (nodes - 2) for nodes, edges in sizes)
    graph = read_graph(client.get("/graphs/g"))
    assert (graph.num_nodes, graph.num_edges, graph.revision) == (122, 240, 121)


def test_acknowledged_updates_survive_a_kill(start, checkpoints, wait, answers, tmp_path, sample):
    settings = {"checkpoints": checkpoints, "default_anomaly_model": "et-small"}
    settings |= {"graph_store": tmp_path / "graphs.sqlite"}
    one = start(**settings)
    wait(lambda: answers(one, "/health/ready", 200))
    done = []

    def write():
        with one.client() as client:
            for id in range(1000):
                change = {
                    "nodes": [{"id": id, "x": [id, 0, 0, 0, 1]}],
                    "edges": [{"source": id, "target": "n1"}],
                }
                try:
                    answer = client.patch("/graphs/g", json=change)
                except Exception:
                    return
                done.append(answer.json()["revision"])

    with one.client() as client:
        read_graph(put_graph(client, sample(3).rows()), 201)
    writer = threading.Thread(target=write)
    writer.start()
    wait(lambda: len(done) > 20)
    one.process.kill()
    writer.join()
    two = start(**settings)
    wait(lambda: answers(two, "/health/ready", 200))
    with two.client() as client:
        graph = read_graph(client.get("/graphs/g"))
        assert len(done) <= graph.num_nodes - 40 <= len(done) + 1
        assert graph.revision >= done[-1]
        answer = read_scores(client, [len(done) - 1, "n1"], neighborhood={"max_neighbors": 1000})
        assert answer["graph"]["revision"] == graph.revision
