"""Answers that are fetched later, and outlive the process: what `Prefer: respond-async` asks for.

A job is for the key that it came with; to all others there is none. Ids cannot be guessed either.
"""

from service.jobs.job import Job, Progress, Status
from service.jobs.runner import Jobs
from service.jobs.sqlite import SqliteJobStore
from service.jobs.store import JobStore, Limits

__all__ = [
    "Job",
    "JobStore",
    "Jobs",
    "Limits",
    "Progress",
    "SqliteJobStore",
    "Status",
]
