"""Shared by chat and completions: jobs from the settings of a request, usage and timings from its sequences."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from re import fullmatch
from typing import Any

from assay.runtime.context_shift import ContextShift
from assay.runtime.draws import fresh_seed, seed_of
from assay.runtime.sampler import Choice, Ranked, SamplerParams
from assay.runtime.sequence import Constraint, Progress
from assay.serve.api.schemas import LIMITS, LoraScale, Sampling
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.models import ServedModel
from assay.serve.pool.threads import Threads
from assay.version import __version__

_SAME_NAME = (
    "top_p", "top_k", "min_p", "typical", "top_n_sigma", "repeat_penalty", "repeat_last_n", "frequency_penalty",
    "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "xtc_probability",
    "xtc_threshold",
)  # fmt: skip
_EVENT = r"([0-9a-f]{32})-([0-9a-f]{1,12})-([0-9a-f]{1,16})-(\d{1,9})"  # request, time, seed, number
LOWEST = -9999.0  # OpenAI's value for a log-probability of minus infinity


@dataclass(frozen=True)
class Origin:
    """The values that the bytes of a response depend on, beside the request's body: id, time and seed.

    The ids of a stream's events contain them. So any server with the same model can resume a stream from the body and
    the last event id, sent as `Last-Event-ID`.
    """

    id: str
    created: int
    seed: int  # used if the body has none
    seen: int = 0  # events that the client already has
    shown: bool = False  # send event ids: only on request, because some clients expect `data:` lines only

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Origin:
        given = headers.get("last-event-id")
        found = fullmatch(_EVENT, given or "")
        if not found:
            return cls(uuid.uuid4().hex, int(time.time()), fresh_seed(), shown=given is not None)
        return cls(found[1], int(found[2], 16), int(found[3], 16), int(found[4]), shown=True)

    @property
    def name(self) -> str:
        """The prefix of its event ids; empty if they are not sent."""
        return f"{self.id}-{self.created:x}-{self.seed:x}" if self.shown else ""


Biases = tuple[tuple[int, float], ...]


async def token_biases(request: Sampling, entry: ServedModel, threads: Threads) -> Biases:
    """The biases of a request by token. A text stands for each of its tokens; `false` forbids them."""
    given = request.logit_bias
    rows = list(given.items()) if isinstance(given, dict) else given or []
    if any(isinstance(key, str) and not fullmatch("[0-9]{1,9}", key) for key, _ in rows):
        found = await threads.run("text", lambda: _biases(rows, entry))
    else:
        found = _biases(rows, entry)
    if len(found) > LIMITS.bias:
        message = f"logit_bias: the texts have {len(found)} tokens (at most {LIMITS.bias})"
        raise ApiError("invalid_value", message, "logit_bias")
    n_vocab = entry.model.hparams.n_vocab
    for token, _ in found:
        if token >= n_vocab:
            raise ApiError(
                "invalid_value", f"logit_bias: token {token} is not in the vocabulary of {n_vocab}", "logit_bias"
            )
    return found


def _biases(rows: Iterable[Seq[Any]], entry: ServedModel) -> Biases:
    found: list[tuple[int, float]] = []
    for key, bias in rows:
        value = -math.inf if bias is False else float(bias)
        if isinstance(key, str) and not fullmatch("[0-9]{1,9}", key):
            found += [(token, value) for token in entry.tokenizer.encode(key, add_special=False)]
        else:
            found.append((int(key), value))
    return tuple(found)


def sampler_params(
    request: Sampling, entry: ServedModel, index: int, origin: Origin, biases: Biases = ()
) -> SamplerParams:
    """The settings of choice `index`. Each of the n choices has its own seed."""
    given: dict[str, Any] = {name: getattr(request, name) for name in _SAME_NAME}
    given["temp"] = request.temperature
    given["seed"] = seed_of(origin.seed if request.seed is None else request.seed, index)
    if biases:
        given["logit_bias"] = biases
    if request.dry_multiplier:
        given["dry_breakers"] = entry.dry_breakers
    return SamplerParams(**{**entry.defaults, **{key: value for key, value in given.items() if value is not None}})


def adapters(request: Sampling, entry: ServedModel) -> tuple[tuple[int, float], ...] | None:
    """The adapters of a request and their scales; None if the model has none."""
    if request.lora is None:
        return tuple(entry.base.lora_scales.items()) or None
    return tuple(lora_scales(request.lora, entry).items())


def lora_scales(asked: Seq[LoraScale], entry: ServedModel) -> dict[int, float]:
    """The scales of a list, which must name adapters of the model, each once."""
    found = {item.id: item.scale for item in asked}
    if len(found) < len(asked) or any(number not in entry.base.lora_scales for number in found):
        raise ApiError(
            "invalid_value",
            f"lora: expected numbers of adapters, each once (found {[item.id for item in asked]}, there are "
            f"{len(entry.base.lora_scales)})",
            "lora",
        )
    return found


def stops(request: Sampling, entry: ServedModel) -> tuple[str, ...]:
    """The stop strings of a request; if it has none, those of the model's preset."""
    if request.stop is None:
        return entry.stop
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def answer_limits(
    request: Sampling, entry: ServedModel, ids: Seq[int], asked: int | None
) -> tuple[int, ContextShift | None]:
    """The most tokens of an answer, and what a full context does. `asked` is the request's limit, if it has one.

    An answer without a limit ends where the context is full. With a context shift it ends at the length that the model
    was trained on, as in llama-server, if that is longer.
    """
    options, tokenizer = entry.options, entry.tokenizer
    wanted = entry.max_tokens if asked is None else asked
    if not options.context_shift:
        room = entry.n_ctx - len(ids)
        return (room if wanted is None else min(wanted, room)), None
    if wanted is None:
        wanted = max(entry.model.hparams.n_ctx_train, entry.n_ctx) - len(ids)
    keep = options.keep if request.n_keep is None else request.n_keep
    return wanted, ContextShift(keep, request.n_discard or 0, bos=tokenizer.add_bos and tokenizer.bos is not None)


def deadline(limits: ServerLimits, asked: float | None = None) -> float:
    """The deadline of a request that arrives now."""
    return time.monotonic() + min(asked or limits.request_s, limits.request_s)


def scored_tokens(limits: ServerLimits, top: int | None, n: int, asked: int | None) -> int:
    """The most tokens of each of n answers that are held whole, with `top` alternatives a token; None: no logprobs."""
    if top is None:
        return 2**31
    most = max(limits.scores // ((top + 1) * n), 1)
    if asked is not None and asked > most:
        raise ApiError(
            "invalid_value",
            f"max_tokens: {asked} tokens have {asked * (top + 1) * n} log-probabilities (at most {limits.scores}); "
            "stream the answer, or ask for fewer",
            "max_tokens",
        )
    return most


async def compile_grammar(make: Callable[[], Callable[[], Constraint]], threads: Threads) -> Callable[[], Constraint]:
    """Compile a grammar off the event loop. The sandbox enforces the time limit."""
    return await threads.run("grammar", make)


def heading(kind: str, prefix: str, model: str, origin: Origin) -> dict[str, Any]:
    """The first fields of every response and every chunk of a request."""
    return {
        "id": f"{prefix}-{origin.id}",
        "object": kind,
        "created": origin.created,
        "model": model,
        "system_fingerprint": f"assay-{__version__}",
    }


def usage(sequences: Seq[Progress]) -> dict[str, Any]:
    """Tokens of all choices; a prompt that several choices share counts once."""
    prompts = {sequence.job.ids: sequence.cached for sequence in reversed(sequences)}
    prompt = sum(map(len, prompts))
    answer = sum(sequence.generated for sequence in sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(prompts.values())},
    }


def timings(sequences: Seq[Progress]) -> dict[str, float]:
    times = [sequence.times for sequence in sequences]
    begun, first = min(t.arrived for t in times), min(t.first or t.arrived for t in times)
    took = max(t.last for t in times) - first
    later = sum(sequence.generated for sequence in sequences) - len(sequences)
    return {
        "queued_s": round(min(t.admitted for t in times) - begun, 6),
        "first_token_s": round(first - begun, 6),
        "tokens_per_second": round(later / took, 3) if took > 0 and later > 0 else 0.0,
    }


def token_logprob(entry: ServedModel, choice: Choice) -> dict[str, Any]:
    """One token with its alternatives, in the chat form. `id` is an extension."""
    own = Ranked(choice.id, choice.logprob or 0.0)
    return _ranked(entry, own) | {"top_logprobs": [_ranked(entry, item) for item in choice.top]}


def _ranked(entry: ServedModel, item: Ranked) -> dict[str, Any]:
    piece = piece_of(entry, item.id)
    return {
        "token": piece.decode("utf-8", "replace"),
        "id": item.id,
        "logprob": max(item.logprob, LOWEST),
        "bytes": list(piece),
    }


def piece_of(entry: ServedModel, token: int) -> bytes:
    """The bytes of a token; empty for an id that the vocabulary lacks."""
    return entry.tokenizer.piece(token) if token < entry.tokenizer.n_vocab else b""
