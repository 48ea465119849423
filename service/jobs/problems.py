"""Problems of jobs."""

from service.errors import Problem


def unknown_job() -> Problem:
    return Problem(
        "unknown-job", "No such job; it may have been deleted or have expired (BASIN_KEEP_JOBS_S)."
    )


def job_store_unavailable() -> Problem:
    detail = (
        "The job store cannot be read or written now; the server log has the reason. Retry after "
        "1 s, or send the request without `Prefer: respond-async`."
    )
    return Problem("jobs-unavailable", detail, headers={"retry-after": "1"})


def job_crashed(starts: int) -> Problem:
    detail = f"The server stopped {starts} times while it ran this job. Send a smaller request."
    return Problem("job-crashed", detail)
