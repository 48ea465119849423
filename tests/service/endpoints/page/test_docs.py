"""The interface at /docs, in a browser that reaches no other server: all of its examples work."""

from __future__ import annotations

import re
from typing import Any

from tests.support.server import Server

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


def list_examples(operation: dict[str, Any]) -> list[str | None]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return list(content.get("examples", {})) or [None]


def test_every_example_is_answered(server: Server, open_page) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()
        accepted = client.post(
            "/classify", json={"smiles": ["CCO"]}, headers={"prefer": "respond-async"}
        )
        job = accepted.headers["location"].rpartition("/")[2]
    operations = {
        (method, path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
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
                for example in list_examples(operation):
                    try_one(method, path, example)
        for method in ("put", "get", "delete"):
            try_one(method, "/memories/{id}", None)
        graph = "/graphs/{id}"
        rows_of = list_examples(operations["post", f"{graph}/transactions"])
        for example in list_examples(operations["put", graph]):
            try_one("put", graph, example)
            try_one("get", graph, None)
            if example in rows_of:
                try_one("post", f"{graph}/transactions", example)
                try_one("get", f"{graph}/alerts", None)
                continue
            for method, path in (("post", "/nodes"), ("post", "/edges"), ("patch", "")):
                try_one(method, f"{graph}{path}", example)
            if example in list_examples(operations["post", f"{graph}/labels"]):
                try_one("post", f"{graph}/labels", example)
        try_one("delete", graph, None)
        for method, path in (("get", ""), ("get", "/result"), ("get", "/events"), ("delete", "")):
            try_one(method, f"/jobs/{{id}}{path}", None, job)
    assert failed == []
    assert operations.keys() == tried
