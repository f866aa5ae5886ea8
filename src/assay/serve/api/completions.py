"""`/v1/completions`: continue a text or ids. With `echo` and `logprobs` the prompt itself is scored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from assay.runtime.sampler import Choice
from assay.runtime.sequence import Job, Progress, Update
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.answer_receipts import signed
from assay.serve.api.llama_server import infill_ids
from assay.serve.api.schemas import CompletionRequest
from assay.serve.api.server_state import HttpCall, State
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import Event, Events, HttpReply, json_template, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader

DEFAULT_TOKENS = 16


async def completions(call: HttpCall, request: CompletionRequest) -> HttpReply | Events:
    state = call.state
    entry = state.models.find(request.model)
    limits, origin = state.limits, common.Origin.of(call.headers)
    n = request.n or 1
    if request.best_of not in (None, n):
        raise ApiError("invalid_value", "best_of: must equal n", "best_of")
    if request.suffix and not isinstance(request.prompt, str):
        raise ApiError("invalid_value", "suffix: needs a prompt that is one text", "suffix")
    if request.suffix and isinstance(request.prompt, str):
        given = [await infill_ids(call, entry, request.prompt, request.suffix)]
    else:
        given = await request_tokens.prompt_ids(state, entry, request.prompt)
    if len(given) * n > limits.prompts:
        raise ApiError(
            "invalid_value", f"n: {len(given)} prompts times {n} choices are more than {limits.prompts}", "n"
        )
    scored = sum(map(len, given)) * (request.logprobs + 1) if request.echo and request.logprobs is not None else 0
    if scored > limits.scores:
        raise ApiError(
            "invalid_value",
            f"echo: {scored} log-probabilities of prompts (at most {limits.scores}); send fewer",
            "echo",
        )
    jobs = await _jobs(request, entry, given, n, state, origin)
    worker = await call.stack.enter_async_context(state.models.use(entry))
    reader = call.stack.enter_context(Reader(worker, jobs, limits.buffer, call.owner, call.pause))
    if request.stream:
        with_usage = bool(request.stream_options and request.stream_options.include_usage)
        receipts = partial(signed, state, entry, reader)
        chunks = _chunks(entry, request, reader, with_usage, origin, receipts)
        return Events(chunks, name=origin.name, seen=origin.seen) if len(jobs) == 1 else Events(chunks)
    answers = [_Answer(entry, request) for _ in jobs]
    async for index, update in reader:
        answers[index].add(update)
    head = common.heading("text_completion", "cmpl", entry.id, origin)
    receipts_made = await signed(state, entry, reader)

    def reply() -> HttpReply:
        return large_reply(
            head
            | {
                "choices": [a.choice(i, s) for i, (a, s) in enumerate(zip(answers, reader.sequences, strict=True))],
                "usage": common.usage(reader.sequences),
                "timings": common.timings(reader.sequences),
            }
            | receipts_made
        )

    large = request.logprobs is not None or request.echo
    return await state.threads.run("reply", reply) if large else reply()


async def _jobs(
    request: CompletionRequest, entry: ServedModel, given: list[list[int]], n: int, state: State, origin: common.Origin
) -> list[Job]:
    limits, threads = state.limits, state.threads
    given_limits = (request.max_tokens, entry.max_tokens, DEFAULT_TOKENS)
    asked = next(limit for limit in given_limits if limit is not None)
    text = request.grammar
    constraint = await common.compile_grammar(lambda: entry.grammars.gbnf(text), threads) if text else None
    scored = common.scored_tokens(
        limits, None if request.stream else request.logprobs, n * len(given), request.max_tokens
    )
    until = common.deadline(limits, request.timeout)
    jobs, biases = [], await common.token_biases(request, entry, threads)
    for prompt in given:
        request_tokens.check(prompt, entry, room=min(asked, 1))
        ids = tuple(prompt)
        most, shift = common.answer_limits(request, entry, ids, asked)
        for index in range(n):
            jobs.append(
                Job(
                    ids=ids,
                    params=common.sampler_params(request, entry, index, origin, biases),
                    adapters=common.adapters(request, entry),
                    max_tokens=min(most, scored),
                    shift=None if request.echo else shift,
                    stop=common.stops(request, entry),
                    logprobs=request.logprobs,
                    prompt_logprobs=request.logprobs if request.echo else None,
                    constraint=constraint,
                    ignore_eos=bool(request.ignore_eos),
                    deadline=until,
                    receipt=state.hashes_rows(request.receipt and shift is None),
                )
            )
    return jobs


async def _chunks(
    entry: ServedModel,
    request: CompletionRequest,
    reader: Reader,
    with_usage: bool,
    origin: common.Origin,
    receipts: Callable[[], Awaitable[dict[str, Any]]],
) -> AsyncIterator[Event]:
    head = common.heading("text_completion", "cmpl", entry.id, origin)
    if with_usage:
        head["usage"] = None
    scored = request.logprobs is not None

    def chunk(index: int, text: str, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return head | {"choices": [choice]}

    plain = [json_template(partial(chunk, index)) for index in range(len(reader.sequences))]
    written = [0] * len(reader.sequences)  # characters so far, for text_offset
    async for index, update in reader:
        if written[index] and not scored and not update.finish:  # the common case, encoded fast
            if update.text:
                written[index] += len(update.text)
                yield plain[index](update.text)
            continue
        sequence = reader.sequences[index]
        text, logprobs = update.text, _Logprobs(entry, written[index])
        if request.echo and not written[index]:
            before = entry.tokenizer.decode(sequence.job.ids)
            text = before + text
            if scored:
                logprobs.prompt(sequence)
        if scored and update.choice:
            logprobs.add(update.choice)
        written[index] += len(text)
        if text or update.finish or scored:
            shown = logprobs.value(request.logprobs or 0) if scored else None
            yield chunk(index, text, shown, update.finish)
    if with_usage:
        totals = {"usage": common.usage(reader.sequences), "timings": common.timings(reader.sequences)}
        yield head | {"choices": []} | totals
    if made := await receipts():
        yield head | {"choices": []} | made


class _Answer:
    """Builds one choice from its updates."""

    def __init__(self, entry: ServedModel, request: CompletionRequest) -> None:
        self._entry = entry
        self._request = request
        self._text: list[str] = []
        self._choices: list[Choice] = []
        self._finish: str | None = None

    def add(self, update: Update) -> None:
        self._text.append(update.text)
        if update.choice:
            self._choices.append(update.choice)
        self._finish = update.finish

    def choice(self, index: int, sequence: Progress) -> dict[str, Any]:
        text, logprobs = "".join(self._text), _Logprobs(self._entry, 0)
        if self._request.echo:
            text = self._entry.tokenizer.decode(sequence.job.ids) + text
            if self._request.logprobs is not None:
                logprobs.prompt(sequence)
        shown = None
        if self._request.logprobs is not None:
            for choice in self._choices:
                logprobs.add(choice)
            shown = logprobs.value(self._request.logprobs)
        return {"index": index, "text": text, "logprobs": shown, "finish_reason": self._finish}


class _Logprobs:
    """OpenAI's older form of logprobs: parallel lists, with the character offset of each token."""

    def __init__(self, entry: ServedModel, offset: int) -> None:
        self._entry = entry
        self._offset = offset
        self._rows: list[tuple[str, float | None, dict[str, float] | None, int, int]] = []

    def prompt(self, sequence: Progress) -> None:
        """Add the tokens of the prompt. The first has no log-probability, because nothing precedes it."""
        self.add(Choice(sequence.job.ids[0]))
        for choice in sequence.prompt_choices:
            self.add(choice)

    def add(self, choice: Choice) -> None:
        text = self._text(choice.id)
        scored = choice.logprob is not None
        top = {self._text(r.id): max(r.logprob, common.LOWEST) for r in reversed(choice.top)} if scored else None
        value = max(choice.logprob, common.LOWEST) if choice.logprob is not None else None
        self._rows.append((text, value, top, self._offset, choice.id))
        self._offset += len(text)

    def _text(self, token: int) -> str:
        """The text of a token; bytes that are not valid UTF-8 are escaped."""
        piece = common.piece_of(self._entry, token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def value(self, top: int) -> dict[str, Any]:
        return {
            "tokens": [row[0] for row in self._rows],
            "token_logprobs": [row[1] for row in self._rows],
            "top_logprobs": [row[2] for row in self._rows] if top else None,
            "text_offset": [row[3] for row in self._rows],
            "ids": [row[4] for row in self._rows],
        }
