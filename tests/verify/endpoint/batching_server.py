"""A small OpenAI-compatible server that answers requests in batches, on an engine of this process.

Requests that arrive within a moment are one batch: their prompts are computed in one step, and then a token of each. A
request in a batch gets a state slot by its place, as servers with a fixed number of slots do. The faults are those of
the engine that it is given.
"""

from __future__ import annotations

import json
import queue
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import Chunk, PagedEngine
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import metadata, tensor_shapes
from assay.text import Tokenizer
from assay.verify.endpoint.other_requests import LONGER, NEIGHBOURS, PROMPT
from assay.verify.endpoint.prompt_ids import TEXT
from tests.models import others
from tests.tiny import TOKENS, make

GATHER_S = 0.5  # requests that come within this time are one batch
PAGES = 6  # of each sequence


def with_words(name: str, path: Path) -> Path:
    """A random model of a case of `others`, whose vocabulary has the words of the probes, so that prompts are short."""
    words = open_file(make(path.with_suffix(".words"), template=None))
    kept = {key: words.metadata[key] for key in words.metadata if key.startswith("tokenizer.")}
    spoken = {f"▁{word}" for text in (TEXT, PROMPT, LONGER) for word in text.replace(".", "").split()}
    starts = sorted({word[:n] for word in spoken for n in range(2, len(word) + 1)} - {*TOKENS})
    tokens = [*TOKENS, *string.ascii_uppercase, *starts]  # a word is merged from its starts
    kinds = kept["tokenizer.ggml.token_type"]
    kept |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([float(len(t)) for t in tokens], np.float32),
        "tokenizer.ggml.token_type": np.concatenate([kinds, np.ones(len(tokens) - len(TOKENS), np.int32)]),
    }
    row = others.CASES[name].row
    row = replace(row, sizes=replace(row.sizes, n_vocab=len(tokens)))
    rng = np.random.default_rng(4)
    values = {name: others._values(name, shape, rng) for name, shape in tensor_shapes(row).items()}
    tensors = [Tensor(n, x.shape, by_name("F32"), x.astype(np.float32)) for n, x in values.items()]
    write(path, metadata(row) | kept, tensors)
    return path


class _Asked:
    def __init__(self, body: dict[str, Any], ids: list[int]) -> None:
        self.body, self.ids, self.n_prompt = body, ids, len(ids)
        self.rows: list[np.ndarray[Any, Any]] = []  # log-probabilities after each token
        self.done = threading.Event()


class Batches:
    """One thread answers batch after batch."""

    def __init__(self, engine: PagedEngine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.inbox: queue.Queue[_Asked] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = _Asked(body, self.tokenizer.encode(body["prompt"]))
        self.inbox.put(asked)
        asked.done.wait()
        return self._reply(asked)

    def _work(self) -> None:
        while True:
            batch = [self.inbox.get()]
            while len(batch) <= NEIGHBOURS:
                try:
                    batch.append(self.inbox.get(timeout=GATHER_S))
                except queue.Empty:
                    break
            try:
                self._answer(batch)
            finally:
                for asked in batch:
                    asked.done.set()

    def _answer(self, batch: list[_Asked]) -> None:
        starts = [0] * len(batch)
        for _ in range(1 + max(int(asked.body["max_tokens"]) for asked in batch)):
            chunks = [
                Chunk(
                    np.array(asked.ids[start:], np.int32), start,
                    np.arange(PAGES * i, PAGES * i + PAGES, dtype=np.int32), "all", state_slot=i,
                )
                for i, (asked, start) in enumerate(zip(batch, starts, strict=True))
            ]  # fmt: skip
            for i, output in enumerate(self.engine.forward(chunks)):
                z = output.logits.astype(np.float64)
                z = z - z.max(-1, keepdims=True)
                batch[i].rows.extend(z - np.log(np.exp(z).sum(-1, keepdims=True)))
                starts[i] = len(batch[i].ids)
                batch[i].ids.append(_drawn(z[-1], batch[i]))

    def _reply(self, asked: _Asked) -> dict[str, Any]:
        n, top = int(asked.body["max_tokens"]), int(asked.body.get("logprobs") or 0)
        first = 0 if asked.body.get("echo") else asked.n_prompt
        places = range(first, asked.n_prompt + n)
        rows = [asked.rows[i - 1] if i else None for i in places]
        ids = [asked.ids[i] for i in places]
        names = [self.tokenizer.piece(t).decode("utf-8", "replace") for t in ids]
        best = [
            None if row is None else {
                self.tokenizer.piece(int(j)).decode("utf-8", "replace"): float(row[j]) for j in np.argsort(-row)[:top]
            }
            for row in rows
        ]  # fmt: skip
        own = [None if row is None else float(row[t]) for row, t in zip(rows, ids, strict=True)]
        logprobs = {"tokens": names, "ids": ids, "token_logprobs": own, "top_logprobs": best}
        usage = {"prompt_tokens": asked.n_prompt, "completion_tokens": n}
        return {"choices": [{"text": "".join(names), "finish_reason": "length", "logprobs": logprobs}], "usage": usage}


def _drawn(z: np.ndarray[Any, Any], asked: _Asked) -> int:
    """The best token, or a draw from the softmax of the logits if a temperature is asked for."""
    warmth = float(asked.body.get("temperature") or 0.0)
    if not warmth:
        return int(z.argmax())
    p = np.exp((z - z.max()) / warmth)
    return int(np.random.default_rng((int(asked.body.get("seed") or 0), len(asked.ids))).choice(len(p), p=p / p.sum()))


@contextmanager
def batching(engine: PagedEngine, tokenizer: Tokenizer) -> Iterator[str]:
    """The address of a running server."""
    batches = Batches(engine, tokenizer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(batches.ask(body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
