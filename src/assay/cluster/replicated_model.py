"""A model of a server whose engine is elsewhere: the same handlers, API and page, in front of replicas."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from assay.cluster.audit import Auditor
from assay.cluster.fleet import Bounds, Fleet
from assay.cluster.launchers import Launcher
from assay.runtime.opening import OpenOptions
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Backend


@dataclass(frozen=True)
class Cluster:
    """How a server's models are spread."""

    launcher: Callable[[], Launcher]
    bounds: Bounds = field(default_factory=Bounds)
    split: int | str = 0  # stages of every replica, or the bytes that one may take
    audit: float = 0.0  # share of answers that are computed again elsewhere


class ReplicatedModel(ServedModel):
    """One model, computed by replicas. Of the file, this process reads metadata and vocabulary only."""

    def __init__(self, name: str, path: Path, options: OpenOptions, limits: ServerLimits, *, cluster: Cluster) -> None:
        super().__init__(name, path, options, limits)
        self.bytes = 0
        self._cluster = cluster

    async def load(self, limits: ServerLimits, metrics: Metrics) -> Backend:
        cluster = self._cluster
        given = asdict(self.options) | {"template": None, "template_arguments": None}
        spec: dict[str, Any] = {
            "path": str(self.file.path.resolve()), "name": self.id, "options": given,
            "running": limits.running, "chunk": limits.chunk, "split": cluster.split,
        }  # fmt: skip
        fleet = Fleet(
            cluster.launcher(), spec, token=secrets.token_hex(32), bounds=cluster.bounds,
            waiting=limits.waiting, meter=metrics.meter(self.id),
        )  # fmt: skip
        auditor = Auditor(fleet, cluster.audit, [node.name for node in self.model.graph]) if cluster.audit else None
        Gauges(metrics.registry, self.id, fleet, auditor)
        await fleet.start()
        return fleet


class Gauges(Collector):
    """Every replica of a model in /metrics, as it is when somebody looks."""

    def __init__(self, registry: CollectorRegistry, model: str, fleet: Fleet, auditor: Auditor | None) -> None:
        self._model, self._fleet, self._auditor = model, fleet, auditor
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        rows = self._fleet.who()
        labels = ("model", "replica", "node")
        up = GaugeMetricFamily("assay_replica_up", "Whether the replica can be reached", labels=labels)
        fields = {
            "running": "Sequences running on it",
            "waiting": "Sequences waiting on it",
            "pages_available": "Its cache pages free or idle",
            "streams": "Streams that the router has there",
        }
        found = {key: GaugeMetricFamily(f"assay_replica_{key}", text, labels=labels) for key, text in fields.items()}
        tokens = CounterMetricFamily("assay_replica_tokens", "Tokens it has generated", labels=labels)
        for row in rows:
            who = [self._model, str(row["replica"]), str(row["node"])]
            up.add_metric(who, float(row["state"] in ("up", "draining")))
            tokens.add_metric(who, float(row["tokens"]))
            for key, family in found.items():
                family.add_metric(who, float(row[key]))
        yield from (up, tokens, *found.values())
        tally, audit = self._fleet.tally, self._auditor
        totals = {
            "moves": (tally.moves, "Streams that went on elsewhere"),
            "replicas_lost": (tally.lost, "Replicas that died, fell silent or stood still"),
            "audited": (audit.done if audit else 0, "Answers that were computed again elsewhere"),
            "audit_differences": (len(audit.found) if audit else 0, "Of these, how many differed"),
        }
        for key, (value, text) in totals.items():
            total = CounterMetricFamily(f"assay_cluster_{key}", text, labels=("model",))
            total.add_metric([self._model], float(value))
            yield total
