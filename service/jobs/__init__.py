"""Answers that are fetched later, and outlive the process: what `Prefer: respond-async` asks for.

A job is for the key that it came with; to all others there is none. Ids cannot be guessed either.
"""

from service.jobs.runner import Jobs
from service.storage.jobs.base import JobStore, Limits
from service.storage.jobs.job import Job, Progress, Status
from service.storage.jobs.sqlite import SqliteJobStore

__all__ = [
    "Job",
    "JobStore",
    "Jobs",
    "Limits",
    "Progress",
    "SqliteJobStore",
    "Status",
]
