"""A FastAPI service that publishes what it is sent: `uvicorn --app-dir examples/web visits:app`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from flotilla_client import AsyncClient, FlotillaError

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient(NODES, state_dir=os.environ.get("VISITS_STATE"), timeout=5) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/visits")
async def visit(request: Request) -> JSONResponse:
    client: AsyncClient = request.app.state.client
    try:
        stored = await client.publish("visits", await request.body())
    except FlotillaError as error:
        # Not definite: it stays in the outbox, and will be stored.
        return JSONResponse({"error": error.code}, 503 if error.definite else 202)
    return JSONResponse({"id": stored.id}, 201)
