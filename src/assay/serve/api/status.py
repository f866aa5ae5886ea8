"""`/v1/status`: the current state of the server, as numbers. It never exposes prompts or answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from prometheus_client import Counter
from pydantic import Field

from assay.engines.contract import PAGE
from assay.runtime.sequence import Progress
from assay.serve.api.schemas import Schema
from assay.serve.api.server_state import HttpCall
from assay.serve.http.exchange import HttpReply, json_reply
from assay.serve.pool.models import ServedModel
from assay.version import __version__

_OFFERED = 200  # names of offered models in a reply


class StreamStatus(Schema, wire="Stream"):
    state: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    seconds: float
    tokens_per_second: float


class CacheStatus(Schema, wire="Cache"):
    positions: int
    used: int


class StatesStatus(Schema, wire="States"):
    slots: int
    running: int
    snapshots: int
    bytes: int


class ModelStatus(Schema):
    id: str
    loaded: bool
    engine_of: str | None = Field(None, description="the model whose engine this name uses, if it has none of its own")
    prompt_tokens: int = Field(description="of all requests so far")
    cached_tokens: int = Field(description="of these, found in the prefix cache")
    generated_tokens: int
    bytes: int
    context_length: int
    running: int
    waiting: int
    cache: CacheStatus
    states: StatesStatus | None = None
    tokens_per_second: float
    streams: list[StreamStatus]


class FolderStatus(Schema, wire="CacheFolder"):
    entries: int
    bytes: int
    limit: int
    written: int
    failed: int
    damaged: int


class MemoryStatus(Schema, wire="Memory"):
    used: int
    limit: int
    loaded: int
    most: int | None = Field(None, description="models in memory at once, at most")


class Status(Schema):
    version: str
    uptime_s: float
    requests: int
    parallel: int
    queue: int
    memory: MemoryStatus
    models: list[ModelStatus]
    offered: list[str] = Field(description="models that no request has named yet, the first 200")
    cache_dir: FolderStatus | None = None


async def status(call: HttpCall, _: None) -> HttpReply:
    state = call.state
    metrics, pool = state.metrics, state.models
    samples = [s for metric in metrics.http.collect() for s in metric.samples if s.name.endswith("_total")]
    counts = {
        name: _totals(counter)
        for name, counter in (
            ("prompt_tokens", metrics.prompt_tokens), ("cached_tokens", metrics.cached_tokens),
            ("generated_tokens", metrics.tokens),
        )
    }  # fmt: skip
    return json_reply(
        {
            "version": __version__,
            "uptime_s": round(time.monotonic() - state.begun, 3),
            "requests": int(sum(sample.value for sample in samples)),
            "parallel": state.limits.running,
            "queue": state.limits.waiting,
            "memory": {"used": pool.used, "limit": pool.budget, "loaded": pool.n_loaded, "most": pool.most},
            "models": [
                _model(entry) | {name: found.get(entry.id, 0) for name, found in counts.items()}
                for entry in pool.entries.values()
            ],
            "offered": [offer.name for offer in pool.unopened[:_OFFERED]],
            "cache_dir": _folder(pool.entries.values()),
        }
    )


def _totals(counter: Counter) -> dict[str, int]:
    """The value of a counter for each model."""
    samples = [s for metric in counter.collect() for s in metric.samples if s.name.endswith("_total")]
    return {sample.labels["model"]: int(sample.value) for sample in samples}


def _folder(entries: Iterable[ServedModel]) -> dict[str, int] | None:
    """What --cache-dir holds; all models share one folder."""
    stores = [entry.worker.store for entry in entries if entry.worker]
    folder = next((store.folder for store in stores if store), None)
    return asdict(folder.use) | {"limit": folder.limit} if folder else None


def _model(entry: ServedModel) -> dict[str, Any]:
    rows = entry.worker.rows() if entry.worker else []
    streams = [_stream(sequence) for sequence in entry.worker.streams()] if entry.worker else []
    pages, available = (sum(row.get(key, 0) for row in rows) for key in ("pages", "pages_available"))
    return {
        "id": entry.id,
        "loaded": entry.base.worker is not None,
        "engine_of": None if entry.base is entry else entry.base.id,
        "bytes": entry.base.bytes,
        "context_length": entry.n_ctx,
        "running": sum(row["running"] for row in rows),
        "waiting": sum(row["waiting"] for row in rows),
        "cache": {
            "positions": (pages or entry.n_pages) * PAGE,
            "used": (pages - available) * PAGE,
        },
        "states": _states(rows),
        "tokens_per_second": round(sum(stream["tokens_per_second"] for stream in streams), 3),
        "streams": streams,
    }


def _states(rows: list[dict[str, Any]]) -> dict[str, int] | None:
    """The state slots of all replicas; None for a model whose layers keep rows by position only."""
    keys = ("slots", "running", "snapshots", "bytes")
    found = {key: sum(row.get(f"state_{key}", 0) for row in rows) for key in keys}
    return found if found["slots"] else None


def _stream(sequence: Progress) -> dict[str, Any]:
    times, now = sequence.times, time.monotonic()
    took = times.last - times.first
    return {
        "state": "answering" if times.first else "reading",
        "prompt_tokens": sequence.n_prompt,
        "cached_tokens": sequence.cached,
        "tokens": sequence.generated,
        "seconds": round(now - times.arrived, 3),
        "tokens_per_second": round((sequence.generated - 1) / took, 3) if took > 0 and sequence.generated > 1 else 0.0,
    }
