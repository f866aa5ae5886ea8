"""A small OpenAI-compatible server over the second engine, with faults to choose from, to test `--endpoint` on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import open_file
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.unigram import Unigram
from tests.second_engine import Engine

NAMED = {  # faults of the server around the engine; all others are the engine's
    "bos-missing", "bos-double", "tmpl-missing", "tmpl-genprompt", "special-as-text", "kv-stale-request", "kv-refeed",
    "gen-double-first", "samp-topp-order", "samp-topp-boundary", "samp-rng", "tmpl-wrong-family", "no-echo",
    "spm-merge-order",
}  # fmt: skip


class Brain:
    """Prompts to ids, ids to log-probabilities, draws."""

    def __init__(self, path: Path, faults: set[str]) -> None:
        self.faults = faults
        self.file = open_file(path)
        self.tokenizer = Tokenizer.from_gguf(self.file)
        self.template = ChatTemplate.from_gguf(self.file, self.tokenizer)
        self.engine = Engine(path, faults - NAMED)
        self.held: list[int] = []  # ids in a cache that is never cleared
        self.ran: tuple[list[int], tuple[int, ...]] = [], ()  # the engine's last run: ids and steps
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray[Any, Any]] = {}  # logits of all runs

    def ids(self, text: str) -> list[int]:
        found = self.tokenizer.encode(text)
        if "spm-merge-order" in self.faults:  # tokenised as with a unigram vocabulary
            found = [*found[:1], *Unigram(self.file, self.tokenizer.vocab).encode(text)]
        return self._bos(found)

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        assert self.template is not None
        if "tmpl-missing" in self.faults:
            return self.tokenizer.encode(messages[-1]["content"])
        if "special-as-text" in self.faults:
            return self.tokenizer.encode(self.template.render(messages), parse_special=False)
        template = ChatTemplate.named("llama2", self.tokenizer) if "tmpl-wrong-family" in self.faults else self.template
        genprompt = "tmpl-genprompt" not in self.faults
        return self._bos(encode_chat(self.tokenizer, template, messages, add_generation_prompt=genprompt))

    def _bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos
        if "bos-missing" in self.faults and ids[:1] == [bos]:
            return ids[1:]
        return [bos, *ids] if "bos-double" in self.faults and bos is not None else ids

    def logprobs(self, ids: list[int], prompt: int) -> np.ndarray[Any, Any]:
        """All rows for a prompt and tokens fed one by one."""
        fed = list(ids)
        steps = (prompt, *(1,) * (len(ids) - prompt))
        rows = list(range(len(ids)))
        if "kv-stale-request" in self.faults and self.held:
            fed = [*self.held, *ids]
            rows = list(range(len(self.held), len(fed)))
            steps = (len(self.held) + prompt, *steps[1:])
        if "kv-refeed" in self.faults and len(ids) > prompt:
            fed = [*ids[:prompt], ids[prompt - 1], *ids[prompt:]]
            rows = [*range(prompt), *range(prompt + 1, len(fed))]
            steps = (prompt, 1, *steps[1:])
        with np.errstate(all="ignore"):
            z = self.logits(fed, steps)[rows].astype(np.float64)
        z = z - z.max(-1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(-1, keepdims=True)))

    def logits(self, fed: list[int], steps: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """All rows. An engine gives the same for the same steps, so only steps that it has not just run are run."""
        key = (tuple(fed), steps)
        if key not in self.known:
            ids, done = self.ran
            if done and fed[: len(ids)] == ids and steps[: len(done)] == done:
                rows, start = [self.known[tuple(ids), done]], len(ids)
                for n in steps[len(done) :]:
                    rows.append(self.engine.more(fed[start : start + n])["result_output"])
                    start += n
                self.known[key] = np.concatenate(rows)
            else:
                self.known[key] = self.engine.run(fed, steps)["result_output"]
            self.ran = list(fed), steps
        return self.known[key]

    def draw(self, scores: np.ndarray[Any, Any], body: dict[str, Any]) -> int:
        if not body.get("temperature"):
            return int(scores.argmax())
        p = np.exp(scores / body["temperature"])
        p /= p.sum()
        order = np.argsort(p) if "samp-topp-order" in self.faults else np.argsort(-p)
        mass = np.cumsum(p[order])
        kept = int(np.searchsorted(mass, body.get("top_p", 1.0))) + ("samp-topp-boundary" not in self.faults)
        chosen = order[: max(kept, 1)]
        seed = 1 if "samp-rng" in self.faults else int(body.get("seed", 0))
        return int(np.random.default_rng(seed).choice(chosen, p=p[chosen] / p[chosen].sum()))

    def answer(self, ids: list[int], body: dict[str, Any], chat: bool) -> dict[str, Any]:
        n, top = int(body.get("max_tokens", 16)), int(body.get("top_logprobs") or body.get("logprobs") or 0)
        prompt = len(ids)
        out = list(ids)
        for _ in range(n):
            out.append(self.draw(self.logprobs(out, prompt)[-1], body))
        scored = self.logprobs(out, prompt)
        if "kv-stale-request" in self.faults:
            self.held = out
        entries = []
        first = 0 if body.get("echo") else prompt
        for i in range(first, len(out)):
            row = scored[i - 1] if i else None
            entries.append((out[i], row, [] if row is None else np.argsort(-row)[:top].tolist()))
        text = self.tokenizer.decode(out[first:])
        usage = {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if chat:
            content = [
                {**self._one(t, row), "top_logprobs": [self._one(j, row) for j in best]} for t, row, best in entries
            ]
            choice |= {"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}}
        else:
            choice |= {
                "text": text,
                "logprobs": {
                    "tokens": [self._piece(t) for t, _, _ in entries],
                    "token_logprobs": [None if row is None else float(row[t]) for t, row, _ in entries],
                    "top_logprobs": [
                        None if row is None else {self._piece(j): float(row[j]) for j in best}
                        for _, row, best in entries
                    ],
                },
            }
        return {"choices": [choice], "usage": usage}

    def _piece(self, token: int) -> str:
        return self.tokenizer.piece(token).decode("utf-8", "replace")

    def _one(self, token: int, row: Any) -> dict[str, Any]:
        return {"token": self._piece(token), "id": token, "logprob": float(row[token])}


@contextmanager
def serving(path: Path, *faults: str) -> Iterator[str]:
    """The address of a running server."""
    brain = Brain(path, set(faults))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                if self.path == "/v1/chat/completions":
                    found, code = brain.answer(brain.chat_ids(body["messages"]), body, chat=True), 200
                elif body.get("echo") and "no-echo" in brain.faults:
                    found, code = {"error": {"message": "echo is not supported"}}, 400
                else:
                    found, code = brain.answer(brain.ids(body["prompt"]), body, chat=False), 200
            data = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
