"""The interface at /docs, in a browser that reaches no other server, and all examples it shows."""

from __future__ import annotations

import re
from typing import Any

from tests.support.server import Server

GRAPH = "/graphs/{id}"
WITH_ID = ("/graphs/", "/memories/{id}", "/jobs/")


def execute(page: Any, operation: dict[str, Any], example: str | None, id: str = "") -> int:
    """Try an operation as it stands, or with one of its examples and an id; return the status."""
    tag = operation["tags"][0].replace(" ", "_")
    block = page.locator(f"[id='operations-{tag}-{operation['operationId']}']")
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name=re.compile("Try it out|Cancel")).wait_for()
    if (start := block.get_by_role("button", name="Try it out")).count():
        start.click()
    choice = block.locator(".examples-select-element")
    if example is not None and choice.count():
        choice.select_option(example)
    if id:
        block.locator("tr[data-param-name='id'] input").fill(id)
    if (clear := block.get_by_role("button", name="Clear", exact=True)).count():
        clear.click()  # what was answered to the example before
    status = block.locator(".live-responses-table .response .response-col_status").first
    status.wait_for(state="detached")
    block.get_by_role("button", name="Execute").click()
    status.wait_for()
    answer = int(status.inner_text().split()[0])
    block.locator(".opblock-summary-control").click()  # the page is slow with many open
    return answer


Operations = dict[tuple[str, str], dict[str, Any]]


def read_operations(document: dict[str, Any]) -> Operations:
    return {
        (method, path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def read_examples(operation: dict[str, Any]) -> dict[str, Any]:
    """Bodies by the name of the example."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return {name: each["value"] for name, each in content.get("examples", {}).items()}


def list_examples(operation: dict[str, Any]) -> list[str | None]:
    return list(read_examples(operation)) or [None]


def choose_graphs(operations: Operations) -> list[str]:
    """One graph with labels, which every route of nodes and edges changes, and one of
    transactions."""
    names = read_examples(operations["put", GRAPH])
    read = [read_examples(operations["post", f"{GRAPH}/{p}"]) for p in ("labels", "transactions")]
    return [next(name for name in names if name in examples) for examples in read]


def test_every_example_is_answered(server: Server) -> None:
    with server.client() as client:
        operations = read_operations(client.get("/openapi.json").json())
        sent = 0

        def send(method: str, path: str, name: str) -> None:
            nonlocal sent
            operation = operations[method, path]
            body = read_examples(operation)[name]
            for each in operation.get("parameters", ()):
                path = path.replace(f"{{{each['name']}}}", str(each.get("example")))
            answer = client.request(method, path, json=body)
            assert answer.is_success, (method, path, name, answer.text)
            sent += 1

        of_graphs = [each for each in operations if each[1].startswith(GRAPH)]
        for name in read_examples(operations["put", GRAPH]):
            send("put", GRAPH, name)  # which the next ones change
            for method, path in of_graphs:
                if method != "put" and name in read_examples(operations[method, path]):
                    send(method, path, name)
        for method, path in operations.keys() - set(of_graphs):
            for name in read_examples(operations[method, path]):
                send(method, path, name)
        assert sent > 30
        client.delete("/graphs/example")


def test_the_page_sends_what_it_shows(server: Server, open_page) -> None:
    """One example of each operation."""
    with server.client() as client:
        document = client.get("/openapi.json").json()
        accepted = client.post(
            "/classify", json={"smiles": ["CCO"]}, headers={"prefer": "respond-async"}
        )
        job = accepted.headers["location"].rpartition("/")[2]
    operations = read_operations(document)
    tags = {operation["tags"][0] for operation in operations.values()}
    failed, tried = list[tuple[str, str, str | None, int]](), set[tuple[str, str]]()
    with open_page(server.url, "/docs", viewport={"width": 1200, "height": 1000}) as page:
        page.wait_for_selector(".opblock-tag")
        assert page.locator(".opblock-tag").count() == len(tags)
        opened = list[str]()

        def try_one(method: str, path: str, example: str | None, id: str = "") -> None:
            operation = operations[method, path]
            if (tag := operation["tags"][0].replace(" ", "_")) not in opened:
                page.locator(f"[id='operations-tag-{tag}']").click()
                opened.append(tag)
            status = execute(page, operation, example, id)
            tried.add((method, path))
            if not 200 <= status < 300:
                failed.append((method, path, example, status))

        for (method, path), operation in operations.items():
            if not path.startswith(WITH_ID) or path == "/graphs":
                try_one(method, path, list_examples(operation)[0])
        for method in ("put", "get", "delete"):
            try_one(method, "/memories/{id}", None)
        for example in choose_graphs(operations):
            try_one("put", GRAPH, example)
            try_one("get", GRAPH, None)
            if example in read_examples(operations["post", f"{GRAPH}/transactions"]):
                try_one("post", f"{GRAPH}/transactions", example)
                try_one("get", f"{GRAPH}/alerts", None)
                continue
            for method, path in (("post", "/nodes"), ("post", "/edges"), ("patch", "")):
                try_one(method, f"{GRAPH}{path}", example)
            try_one("post", f"{GRAPH}/labels", example)
        try_one("delete", GRAPH, None)
        for method, path in (("get", ""), ("get", "/result"), ("get", "/events"), ("delete", "")):
            try_one(method, f"/jobs/{{id}}{path}", None, job)
    assert failed == []
    assert operations.keys() == tried
