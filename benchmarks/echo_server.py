"""What any server of this kind costs: FastAPI on uvicorn, a route that reads a body and answers.

uvicorn benchmarks.echo_server:app
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

app = FastAPI()


@app.post("/")
async def read(request: Request) -> Response:
    """Take the body, look at nothing, and answer as many bytes as a query says."""
    await request.body()
    size = int(request.query_params.get("bytes", "0"))
    return Response(b" " * size, media_type="application/json")
