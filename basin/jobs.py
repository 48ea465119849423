"""Jobs: requests that a server has accepted and computes later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from basin_client import Client, Job, Request

from basin.console import Key, Server, connect, require_server, tell

jobs = typer.Typer(no_args_is_help=True, help=__doc__)
JobId = Annotated[str, typer.Argument(help="Id of a job, as in `location: /jobs/ID`.")]


def _open_job(client: Client, job: str) -> Job[bytes]:
    document = client.send(Request("GET", f"/jobs/{job}", lambda response: response.json()))
    return Job(client, document, Request("POST", "/", lambda response: response.content))


@jobs.command()
def show(job: JobId, server: Server = None, key: Key = None) -> None:
    """Print how a job stands, as JSON."""
    with connect(require_server(server), key) as client:
        print(json.dumps(_open_job(client, job).document, indent=1))


@jobs.command()
def result(
    job: JobId,
    server: Server = None,
    key: Key = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the response; standard output if not given.")
    ] = None,
) -> None:
    """Wait for a job, and write the response of its request."""
    with connect(require_server(server), key) as client:
        body = _open_job(client, job).result()
    if out is None:
        sys.stdout.buffer.write(body)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(body)


@jobs.command()
def watch(job: JobId, server: Server = None, key: Key = None) -> None:
    """Print each event of a job as a line of JSON, until it has ended."""
    with connect(require_server(server), key) as client:
        for name, data in _open_job(client, job).events():
            print(json.dumps({"event": name, **data}), flush=True)


@jobs.command()
def cancel(job: JobId, server: Server = None, key: Key = None) -> None:
    """Stop a job and delete it."""
    with connect(require_server(server), key) as client:
        _open_job(client, job).cancel()
    tell(f"Job {job} is deleted.")
