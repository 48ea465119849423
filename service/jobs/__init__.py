"""Answers that are fetched later, and outlive the process: what `Prefer: respond-async` asks for.

Whoever knows the id of a job may read and delete it; ids cannot be guessed.
"""

from service.jobs.job import Job, Progress, Status
from service.jobs.runner import Jobs
from service.jobs.sqlite import SqliteJobStore
from service.jobs.store import JobStore, Limits, StoreError

__all__ = [
    "Job",
    "JobStore",
    "Jobs",
    "Limits",
    "Progress",
    "SqliteJobStore",
    "Status",
    "StoreError",
]
