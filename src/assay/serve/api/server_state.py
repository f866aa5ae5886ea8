"""The state that all handlers of a server share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from assay.runtime.presets import Preset
from assay.runtime.receipts import Signer
from assay.serve.api.browser_plans import BrowserPlans
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
    openapi: Callable[[], bytes] = bytes  # the document, encoded; made when it is first asked for
    threads: Threads = field(default_factory=Threads)
    uploads: Gate = field(default_factory=lambda: Gate("upload", 4, 8))
    reasoning_budget: int | None = None  # tokens of reasoning of a request that sets no limit; None: no limit
    slots: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)  # last tokens of each (model, id_slot)
    presets: dict[str, Preset] = field(default_factory=dict)  # that clients have made
    pulling: Gate = field(default_factory=lambda: Gate("pull", 1, 4))
    manage: bool = False  # whether clients may pull, make and delete models
    media_urls: bool = False  # whether pictures are fetched from URLs that clients name
    plans: BrowserPlans | None = None  # of the pages that run the models in a browser, if the server has them
    downloads: Gate = field(default_factory=lambda: Gate("download", 16, 64))  # files of such pages
    signer: Signer | None = None  # signs a receipt for every answer
    tracing: Gate = field(default_factory=lambda: Gate("trace", 2, 64))  # traces whose values are in memory
    examining: Gate = field(default_factory=lambda: Gate("diagnosis", 1, 4))  # one dump is diagnosed at a time

    def hashes_rows(self, asked: bool | None) -> bool:
        """Whether an answer gets a receipt: each one if there is a key, else those that a browser compares with."""
        return self.signer is not None or (self.plans is not None and bool(asked))


HttpCall = exchange.HttpCall[State]
