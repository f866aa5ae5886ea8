"""The state that all handlers of a server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from assay.serve.http import exchange
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ModelPool
from assay.serve.pool.threads import Threads, Turn


@dataclass
class State:
    """The state of one server."""

    models: ModelPool
    limits: ServerLimits
    registry: CollectorRegistry
    metrics: Metrics
    key: str | None = None
    any_host: bool = False  # whether any Host header is accepted
    cors: tuple[str, ...] = ()  # origins of other web pages that may call
    begun: float = field(default_factory=time.monotonic)
    openapi: dict[str, Any] = field(default_factory=dict)
    threads: Threads = field(default_factory=Threads)
    examining: Turn = field(default_factory=Turn)  # one dump is diagnosed at a time


HttpCall = exchange.HttpCall[State]
