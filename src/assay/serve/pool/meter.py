"""What the schedulers count, as Prometheus metrics.

Every value is finite: counters and histograms of finite observations, gauges that are set on every step.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from assay.runtime import scheduler
from assay.runtime.pages import Pages
from assay.runtime.sequence import Progress
from assay.serve.pool.reader import REASONS

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """All the series of one server; `meter` gives the view of one model."""

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
        self.cached_tokens = counter("cached_tokens", "Prompt tokens that the prefix cache had")
        self.tokens = counter("generated_tokens", "Tokens generated")
        self.finished = counter("sequences", "Sequences ended, by how", "reason")
        self.guessed = counter("guessed_tokens", "Tokens computed ahead on a guess")
        self.guessed_right = counter("guessed_right_tokens", "Of these, those that were drawn")
        self.preemptions = counter("preemptions", "Sequences that gave their pages back and were computed again")
        self.steps = counter("steps", "Steps of the engine")
        self.step_tokens = counter("step_tokens", "Tokens computed in steps, prompt and generated")
        self.engine_seconds = counter("engine_seconds", "Seconds in the engine")
        self.sampling_seconds = counter("sampling_seconds", "Seconds drawing tokens and making text of them")
        self.running = gauge("running", "Sequences running")
        self.waiting = gauge("waiting", "Sequences waiting")
        self.pages_available = gauge("pages_available", "Cache pages free or idle")
        self.pages = gauge("pages", "Cache pages in all")
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token")
        self.between_tokens = histogram("time_between_tokens_seconds", "Between two tokens of a sequence")
        self.models_loaded = Gauge("assay_models_loaded", "Models in memory", registry=registry)
        self.models_bytes = Gauge("assay_models_bytes", "Memory of the models, as estimated", registry=registry)

    def meter(self, model: str) -> Meter:
        return Meter(self, model)


class Meter(scheduler.Meter):
    """One model's view."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._m = metrics
        self._model = model

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None:
        self._m.steps.labels(self._model).inc()
        self._m.step_tokens.labels(self._model).inc(n_tokens)
        self._m.engine_seconds.labels(self._model).inc(engine_s)
        self._m.sampling_seconds.labels(self._model).inc(sampling_s)

    def state(self, running: int, waiting: int, pages: Pages) -> None:
        self._m.running.labels(self._model).set(running)
        self._m.waiting.labels(self._model).set(waiting)
        self._m.pages_available.labels(self._model).set(pages.available)
        self._m.pages.labels(self._model).set(pages.n_pages)

    def preempted(self) -> None:
        self._m.preemptions.labels(self._model).inc()

    def token(self, sequence: Progress, now: float) -> None:
        self._m.tokens.labels(self._model).inc()
        if sequence.times.last:
            self._m.between_tokens.labels(self._model).observe(now - sequence.times.last)
        else:
            self._m.first_token.labels(self._model).observe(now - sequence.times.arrived)
            self._m.prompt_tokens.labels(self._model).inc(sequence.n_prompt)
            self._m.cached_tokens.labels(self._model).inc(sequence.cached)

    def guessed(self, tokens: int, right: int) -> None:
        self._m.guessed.labels(self._model).inc(tokens)
        self._m.guessed_right.labels(self._model).inc(right)

    def finished(self, sequence: Progress, reason: str) -> None:
        self._m.finished.labels(self._model, REASONS.get(reason, reason)).inc()
