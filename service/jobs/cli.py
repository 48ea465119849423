"""`python -m service dead-jobs`: list, requeue and drop the jobs that failed by a fault of the
servers or of their store. The settings say where the jobs are; a file is free only while no server
runs, which answers the same under /dead-jobs on its admin port."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from service.observability import logs
from service.settings import Settings
from service.storage.backends import make_job_store, make_redis_client
from service.storage.jobs.base import JobStore
from service.storage.sqlite import StoreError


def main(arguments: Sequence[str], settings: Settings) -> None:
    """Print each dead job as a line of JSON, or requeue or drop some."""
    args = _parser().parse_args(arguments)
    logs.configure(settings.log_level, settings.log_format)  # on stderr; stdout is for the jobs
    link = make_redis_client(settings, lambda event, part, number: None)
    store = make_job_store(settings, link)
    try:
        store.open()
        missing = _run(store, args)
    except StoreError as error:
        sys.exit(str(error))
    finally:
        store.close()
        if link is not None:
            asyncio.run(link.close())
    if missing:
        sys.exit(f"no such dead job, or its request is no longer stored: {' '.join(missing)}")


def _run(store: JobStore, args: argparse.Namespace) -> list[str]:
    """Do what the command line says; return the ids for which that was not possible."""
    dead = {job.id: job for job in store.list_dead()}
    if args.action == "list":
        for job in dead.values():
            print(json.dumps(asdict(job)))
        return []
    if args.action == "requeue":
        ids = args.ids or [job.id for job in dead.values() if job.has_request]
        return [id for id in ids if not store.requeue(id)]
    return [id for id in args.ids or dead if id not in dead or not store.delete(id)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m service dead-jobs", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="print each as a line of JSON, the latest first")
    for name, effect in (("requeue", "run them again under their ids"), ("drop", "delete them")):
        action = actions.add_parser(name, help=effect)
        which = action.add_mutually_exclusive_group(required=True)
        which.add_argument("ids", nargs="*", metavar="ID", default=[])
        which.add_argument("--all", action="store_true")
    return parser
