"""A server of a file in this process, in one of the arithmetics of honest engines: the opponent of an audit.

`OwnServer.ask` answers as an OpenAI server does (completions and chat, echo, log-probabilities with ids). Tokens after
a prompt are guessed by the cpu engine and then computed in one pass, so an arithmetic that only the reference has costs
a pass or two an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import engines
from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.models import Model
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.verify.dumps.observation import inputs_of
from assay.verify.endpoint.claimed_model import ClaimedModel, Setting
from assay.verify.endpoint.dialects import CHAT, COMPLETIONS
from assay.verify.endpoint.served_text import log_softmax_rows
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.rounding import Rounding, hooks, roundings, weights_of

Array = NDArray[Any]
Choose = Callable[[Array, int], int]  # a row of log-probabilities and its index -> a token
RULES = {rule.name: rule for rule in roundings(ARITHMETICS[-1])}
DRAFT = Setting(precision="fast")
LONGEST = 1024  # tokens of a prompt and its answer


@dataclass(frozen=True)
class Habits:
    """How an honest server computes and what it shows."""

    arithmetics: tuple[Setting | str, ...] = (DRAFT,)  # of each request one, drawn; a name is a rule of the reference
    top: int = 20  # log-probabilities at most; 0: none
    ids: bool = True  # token ids where they are asked for
    digits: int | None = None
    echo: bool = False


class OwnServer:
    """Answers requests about one model. Use it as a context manager."""

    def __init__(self, model: Model, habits: Habits, seed: int = 0) -> None:
        self.model, self.habits = model, habits
        self.tokenizer = Tokenizer.from_gguf(model.file)
        self.template = ChatTemplate.from_gguf(model.file, self.tokenizer)
        self._claimed = ClaimedModel(model, threads=1)
        self._draft = engines.create("cpu", model, n_pages=pages_for(LONGEST), precision="fast", threads=1)
        self._weights = Weights(model.file, np.float32)
        self._rng = np.random.default_rng(seed)

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._claimed.__exit__()
        self._draft.close()

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = path == CHAT
        if path not in (CHAT, COMPLETIONS) or (chat and self.template is None):
            raise AssayError(f"{path}: answered 404 (not served here)")
        if chat:
            assert self.template is not None
            prompt = encode_chat(self.tokenizer, self.template, body["messages"])
        else:
            prompt = self.tokenizer.encode(body["prompt"])
        kinds = self.habits.arithmetics
        kind = kinds[int(self._rng.integers(len(kinds)))]
        ids, rows = self._continued(list(prompt), int(body["max_tokens"]), kind, self._chooser(body))
        first = 0 if body.get("echo") and self.habits.echo else len(prompt)
        text = b"".join(map(self.tokenizer.piece, ids[first:])).decode("utf-8", "replace")
        ended = ids[-1] in self.tokenizer.eog
        choice: dict[str, Any] = {"text": text, "finish_reason": "stop" if ended else "length"}
        if chat:
            choice["message"] = {"content": text}
        asked = (body.get("top_logprobs") if chat else body.get("logprobs")) or 0
        if min(asked, self.habits.top):
            shown = [self._entry(ids[i], rows[i - 1] if i else None, min(asked, self.habits.top))
                     for i in range(first, len(ids))]  # fmt: skip
            choice["logprobs"] = {"content": shown}
        elif body.get("return_token_ids") and self.habits.ids:
            choice["token_ids"] = ids[first:]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids) - len(prompt)}
        return {"choices": [choice], "usage": usage}

    def _continued(self, ids: list[int], n: int, kind: Setting | str, choose: Choose) -> tuple[list[int], Array]:
        """The ids with `n` more, and the log-probabilities after every id but the last."""
        until = len(ids) + n
        while True:
            drafted = self._drafted(ids, until, choose)
            rows = log_softmax_rows(self._logits(drafted[:-1], kind))
            while len(ids) < until:
                token = choose(rows[len(ids) - 1], len(ids))
                ids.append(token)
                if token in self.tokenizer.eog:
                    return ids, rows
                if token != drafted[len(ids) - 1]:
                    break
            else:
                return ids, rows
            if len(ids) == until:
                return ids, rows

    def _drafted(self, ids: Sequence[int], until: int, choose: Choose) -> list[int]:
        found, start = list(ids), 0
        pages = np.arange(pages_for(until), dtype=np.int32)
        while len(found) < until:
            chunk = Chunk(np.asarray(found[start:], np.int32), start, pages, "last")
            row = log_softmax_rows(self._draft.forward([chunk])[0].logits[-1:])[0].astype(np.float32)
            start = len(found)
            found.append(choose(row, start))
        return found if len(found) > len(ids) else [*found, 0]

    def _logits(self, ids: list[int], kind: Setting | str) -> Array:
        if isinstance(kind, Setting):
            return self._claimed.at(ids, range(1, len(ids) + 1), kind, keep=False)
        rule: Rounding = RULES[kind]
        graph = self.model.graph
        weights = weights_of(rule, self._weights, graph)
        given = inputs_of(ids, range(len(ids)))
        return interpret(graph, weights, given, [graph.output], hooks=hooks(rule, self.model.file))[graph.output]

    def _entry(self, token: int, row: Array | None, top: int) -> dict[str, Any]:
        if row is None:
            return {"id": token, "token": self._piece(token), "logprob": None}
        best = np.argsort(-row)[:top].tolist()
        own = {"id": token, "token": self._piece(token), "logprob": self._printed(row[token])}
        shown = [{"id": j, "token": self._piece(j), "logprob": self._printed(row[j])} for j in best]
        return own | {"top_logprobs": shown}

    def _piece(self, token: int) -> str:
        return self.tokenizer.piece(token).decode("utf-8", "replace")

    def _printed(self, value: float) -> float:
        return float(value) if self.habits.digits is None else round(float(value), self.habits.digits)

    def _chooser(self, body: Mapping[str, Any]) -> Choose:
        """The best token, or a draw by the place and the request's seed, or a seed of its own."""
        heat, seed, least = float(body.get("temperature") or 0.0), body.get("seed"), float(body.get("min_p") or 0.0)
        if not heat or body.get("top_k") == 1:
            return lambda row, _: int(row.argmax())
        number = int(self._rng.integers(1 << 30) if seed is None else seed)

        def draw(row: Array, place: int) -> int:
            p = np.exp((row - row.max()) / heat)
            p[p < least] = 0.0
            u = np.random.default_rng((number, place)).random()
            return int(np.searchsorted(np.cumsum(p / p.sum()), u).clip(0, len(p) - 1))

        return draw
