"""The state that all handlers of a server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from assay.runtime.receipts import Signer
from assay.serve.http import exchange
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ModelPool
from assay.serve.pool.threads import Gate, Threads


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
    host: str = "localhost"  # a further name that the Host header may have
    begun: float = field(default_factory=time.monotonic)
    openapi: bytes = b""  # the document, encoded once
    threads: Threads = field(default_factory=Threads)
    uploads: Gate = field(default_factory=lambda: Gate("upload", 4, 8))
    signer: Signer | None = None  # signs a receipt for every answer
    examining: Gate = field(default_factory=lambda: Gate("diagnosis", 1, 4))  # one dump is diagnosed at a time


HttpCall = exchange.HttpCall[State]
