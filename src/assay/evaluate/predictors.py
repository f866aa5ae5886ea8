"""Who predicts: an engine on a file, a witness, or a server that tells a few of its log-probabilities."""

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

TOP = 5  # log-probabilities asked of a server: what OpenAI's interface allows


@dataclass(frozen=True)
class Told:
    """What a server tells of its predictions: log-probabilities of a few tokens, a row a scored token."""

    rows: Sequence[Mapping[int, float]]


@dataclass(frozen=True)
class Stored:
    """Log-probabilities `[n, n_vocab]` as llama-perplexity stores them: 16 bits each, the least ones cut off."""

    logp: NDArray[np.float32]


Rows = NDArray[np.float32] | NDArray[np.float64] | Told | Stored
"""Predictions for the scored tokens of a piece: whole rows of logits `[n, n_vocab]`, what a server tells, or a file."""


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
        """The first half fills the cache; only where tokens are scored is the output computed."""
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
                f"{self.name}: does not give the prompt's tokens back with their log-probabilities (found {len(steps)} "
                f"tokens, expected {len(piece.tokens)}); it must take ids and know `echo` with `logprobs`"
            )
        rows = [step.scores for step in steps[piece.first + 1 :]]
        if not all(step.id in step.scores for step in steps[piece.first + 1 :]):
            raise AssayError(f"{self.name}: log-probabilities of the prompt are missing; nothing can be scored")
        return Told(rows)
