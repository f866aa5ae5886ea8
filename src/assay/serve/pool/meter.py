"""Prometheus metrics of the schedulers.

Every value is finite: counters and histograms of finite observations, gauges that are set on every step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from assay.runtime.pages import Pages
from assay.runtime.scheduler import Meter
from assay.runtime.sequence import ENDS, Progress
from assay.serve.pool.update_queue import REASONS

Metric = TypeVar("Metric", Counter, Gauge, Histogram)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class BucketCounts:
    """The histogram of one model. Only one thread writes it."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(_SECONDS) + 1), 0.0

    def observe(self, value: float, n: int) -> None:
        self.counts[bisect_left(_SECONDS, value)] += n
        self.sum += n * value


class Histograms(Collector):
    """Histograms for values that occur many times at once: equal values are added with one update."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._rows: dict[str, BucketCounts] = {}
        registry.register(self)

    def labels(self, model: str) -> BucketCounts:
        return self._rows.setdefault(model, BucketCounts())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        bounds = [*map(str, _SECONDS), "+Inf"]
        for model, row in list(self._rows.items()):
            family.add_metric([model], list(zip(bounds, accumulate(row.counts), strict=True)), row.sum)
        yield family


class Metrics:
    """All metrics of one server. `meter` returns the meter of one model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"assay_{name}", text, ("model", *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"assay_{name}", text, ("model",), registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"assay_{name}", text, ("model",), registry=registry, buckets=_SECONDS)

        self.registry = registry
        self.http = Counter("assay_http_responses", "Responses by route and status", ("route", "status"),
                            registry=registry)  # fmt: skip
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished and running requests")
        self.restored_tokens = counter("restored_tokens", "Prompt tokens read back from --cache-dir")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens found in the prefix cache")
        self.tokens = counter("generated_tokens", "Tokens generated")
        self.finished = counter("sequences", "Finished sequences by finish reason", "reason")
        self.drafted = counter("guessed_tokens", "Speculated tokens")
        self.accepted = counter("guessed_right_tokens", "Speculated tokens that were accepted")
        self.preemptions = counter("preemptions", "Preempted sequences, which were recomputed")
        self.steps = counter("steps", "Engine steps")
        self.step_tokens = counter("step_tokens", "Prompt and generated tokens computed")
        self.engine_seconds = counter("engine_seconds", "Seconds in engine steps")
        self.sampling_seconds = counter("sampling_seconds", "Seconds sampling and detokenizing")
        self.running = gauge("running", "Sequences running")
        self.waiting = gauge("waiting", "Sequences waiting")
        self.pages_available = gauge("pages_available", "Cache pages that are free or evictable")
        self.pages = gauge("pages", "Total cache pages")
        self.state_slots = gauge("state_slots", "Slots for the state of a running sequence or a snapshot")
        self.state_running = gauge("state_slots_running", "State slots of running sequences")
        self.state_snapshots = gauge("state_snapshots", "Snapshots of states, from which a prefix can go on")
        self.state_bytes = gauge("state_bytes", "Memory of all state slots")
        self.snapshots_reused = gauge("state_snapshots_reused", "Sequences that went on from a snapshot")
        self.snapshots_evicted = gauge("state_snapshots_evicted", "Snapshots evicted because their slot was needed")
        self.first_token = histogram("time_to_first_token_seconds", "Time to first token")
        self.between_tokens = Histograms(
            "assay_time_between_tokens_seconds", "Time between two tokens of a sequence", registry
        )
        self.models_loaded = Gauge("assay_models_loaded", "Loaded models", registry=registry)
        self.models_bytes = Gauge("assay_models_bytes", "Estimated memory of the loaded models", registry=registry)

    def meter(self, model: str) -> PrometheusMeter:
        return PrometheusMeter(self, model)


class PrometheusMeter(Meter):
    """Counts the events of one model's scheduler."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        def of(metric: Metric) -> Metric:
            return metric.labels(model)

        m = metrics
        self._steps, self._step_tokens = of(m.steps), of(m.step_tokens)
        self._engine, self._sampling = of(m.engine_seconds), of(m.sampling_seconds)
        self._running, self._waiting = of(m.running), of(m.waiting)
        self._available, self._pages = of(m.pages_available), of(m.pages)
        self._states = {
            "slots": m.state_slots, "running": m.state_running, "snapshots": m.state_snapshots,
            "reused": m.snapshots_reused, "evicted": m.snapshots_evicted,
        }  # fmt: skip
        self._model = model
        self._preemptions = of(m.preemptions)
        self._tokens, self._between, self._first = of(m.tokens), m.between_tokens.labels(model), of(m.first_token)
        self._prompt, self._cached = of(m.prompt_tokens), of(m.cached_tokens)
        self._restored = of(m.restored_tokens)
        self._drafted, self._accepted = of(m.drafted), of(m.accepted)
        self._finished = {r: m.finished.labels(model, r) for r in {REASONS.get(end, end) for end in ENDS}}

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None:
        self._steps.inc()
        self._step_tokens.inc(n_tokens)
        self._engine.inc(engine_s)
        self._sampling.inc(sampling_s)

    def state(self, running: int, waiting: int, pages: Pages) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._available.set(pages.available)
        self._pages.set(pages.n_pages)
        if pages.states:  # other models have no such rows
            use = pages.states.use
            for key, metric in self._states.items():
                metric.labels(self._model).set(getattr(use, key))

    def preempted(self) -> None:
        self._preemptions.inc()

    def restored(self, n_tokens: int) -> None:
        self._restored.inc(n_tokens)

    def tokens(self, sequence: Progress, n: int, now: float) -> None:
        """Tokens that arrive together share the time since the previous token equally."""
        self._tokens.inc(n)
        if sequence.times.last:
            self._between.observe((now - sequence.times.last) / n, n)
        else:
            self._first.observe(now - sequence.times.arrived)
            self._prompt.inc(sequence.n_prompt)
            self._cached.inc(sequence.cached)

    def speculated(self, drafted: int, accepted: int) -> None:
        self._drafted.inc(drafted)
        self._accepted.inc(accepted)

    def finished(self, sequence: Progress, reason: str) -> None:
        self._finished[REASONS.get(reason, reason)].inc()
