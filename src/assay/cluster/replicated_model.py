"""A model of the server that replicas compute: the same handlers, API and page in front of a fleet."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
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
    """How the models of a server are replicated and split."""

    launcher: Callable[[], Launcher]
    bounds: Bounds = field(default_factory=Bounds)
    split: int | str = 0  # pipeline stages of every replica, or the bytes of one stage
    audit: float = 0.0  # share of answers that are recomputed on another replica


class ReplicatedModel(ServedModel):
    """One model, computed by replicas. This process reads only the metadata and the vocabulary of the file."""

    runs_towers = False  # replicas encode the pictures
    blind = "it has no mmproj file, or its layers are split"

    def __init__(self, name: str, path: Path, options: OpenOptions, limits: ServerLimits, *, cluster: Cluster) -> None:
        super().__init__(name, path, options, limits)
        self.bytes = 0
        self._cluster = cluster

    @cached_property
    def sees(self) -> bool:
        return not self._cluster.split and super().sees

    async def load(self, limits: ServerLimits, metrics: Metrics) -> Backend:
        cluster = self._cluster
        mmproj = self.options.mmproj and str(Path(self.options.mmproj).resolve())
        given = asdict(self.options) | {"template": None, "template_arguments": None, "mmproj": mmproj}
        spec: dict[str, Any] = {
            "path": str(self.file.path.resolve()), "name": self.id, "options": given,
            "running": limits.running, "chunk": limits.chunk, "split": cluster.split,
            "n_vocab": self.model.hparams.n_vocab, "sees": self.sees,
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
    """The replicas of a model in /metrics, collected on every scrape."""

    def __init__(self, registry: CollectorRegistry, model: str, fleet: Fleet, auditor: Auditor | None) -> None:
        self._model, self._fleet, self._auditor = model, fleet, auditor
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        rows = self._fleet.rows()
        labels = ("model", "replica", "node")
        up = GaugeMetricFamily("assay_replica_up", "Whether the replica can be reached", labels=labels)
        fields = {
            "running": "Sequences running on the replica",
            "waiting": "Sequences waiting on the replica",
            "pages_available": "Cache pages of the replica that are free or evictable",
            "streams": "Streams that the router has placed on the replica",
        }
        found = {key: GaugeMetricFamily(f"assay_replica_{key}", text, labels=labels) for key, text in fields.items()}
        tokens = CounterMetricFamily("assay_replica_tokens", "Tokens that the replica has generated", labels=labels)
        for row in rows:
            who = [self._model, str(row["replica"]), str(row["node"])]
            up.add_metric(who, float(row["state"] in ("up", "draining")))
            tokens.add_metric(who, float(row["tokens"]))
            for key, family in found.items():
                family.add_metric(who, float(row[key]))
        yield from (up, tokens, *found.values())
        tally, audit = self._fleet.tally, self._auditor
        totals = {
            "moves": (tally.moves, "Streams that moved to another replica"),
            "replicas_lost": (tally.lost, "Replicas that died, missed heartbeats or stalled"),
            "audited": (audit.done if audit else 0, "Answers that were recomputed on another replica"),
            "audit_differences": (len(audit.found) if audit else 0, "Audited answers that differed"),
        }
        for key, (value, text) in totals.items():
            total = CounterMetricFamily(f"assay_cluster_{key}", text, labels=("model",))
            total.add_metric([self._model], float(value))
            yield total
