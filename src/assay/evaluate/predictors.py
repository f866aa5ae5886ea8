"""Sources of predictions: an engine on a file, another engine, or a server that returns a few log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, pages_for
from assay.errors import AssayError
from assay.evaluate.pieces import TextWindow
from assay.verify.endpoint.client import Client

TOP = 5  # log-probabilities requested from a server: the maximum of OpenAI's API


@dataclass(frozen=True)
class ServerLogprobs:
    """Predictions of a server: log-probabilities of a few tokens, one row per scored token."""

    rows: Sequence[Mapping[int, float]]


@dataclass(frozen=True)
class Stored:
    """Log-probabilities `[n, n_vocab]` as llama-perplexity stores them: 16 bits each, small ones clipped."""

    logp: NDArray[np.float32]


Rows = NDArray[np.float32] | NDArray[np.float64] | ServerLogprobs | Stored
"""Predictions for the scored tokens of a window: full logits `[n, n_vocab]`, those of a server, or those of a file."""


class LogitsSource(Protocol):
    name: str

    def rows(self, piece: TextWindow) -> Rows:
        """The predictions for `piece.scored`, in order."""
        ...


class EngineSource:
    """An engine bound to a file."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = f"{engine.model.file.path.name} on {engine.name}"
        self.n_vocab = engine.model.hparams.n_vocab

    def rows(self, piece: TextWindow) -> Rows:
        """The first half only fills the cache. Logits are computed only for the scored tokens."""
        tokens, first = piece.tokens[:-1], piece.first
        pages = np.arange(pages_for(len(tokens)), dtype=np.int32)
        if len(pages) > self.engine.n_pages:
            raise AssayError(f"window of {len(piece.tokens)} tokens: more than the context of {self.name}")
        if first and not self.engine.graph.whole:
            self.engine.forward([Chunk(tokens[:first], 0, pages, "none")])
            return self.engine.forward([Chunk(tokens[first:], first, pages, "all")])[0].logits
        return self.engine.forward([Chunk(tokens, 0, pages, "all")])[0].logits[first:]


class EndpointSource:
    """An OpenAI-compatible server that echoes the log-probabilities of a prompt given as ids."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client.url

    def rows(self, piece: TextWindow) -> Rows:
        reply = self.client.complete(piece.tokens.tolist(), n=0, echo=True, top=TOP)
        steps = reply.steps[: len(piece.tokens)]
        if [step.id for step in steps] != piece.tokens.tolist():
            raise AssayError(
                f"{self.name}: does not return the prompt's tokens with their log-probabilities (found {len(steps)} "
                f"tokens, expected {len(piece.tokens)}); it must accept ids, and `echo` with `logprobs`"
            )
        rows = [step.scores for step in steps[piece.first + 1 :]]
        if not all(step.id in step.scores for step in steps[piece.first + 1 :]):
            raise AssayError(f"{self.name}: log-probabilities of the prompt are missing; the text cannot be scored")
        return ServerLogprobs(rows)
