"""`--draft auto`: measure the ways to draft on this machine with this model, and keep the fastest.

Each way generates the same text after the same prompt, greedily, in a scheduler of its own on the model's engine. All
give the same tokens, so only their time differs. The ways are in the order of what they cost: no drafts, drafts from
the text itself, the file's own head, a draft model. One that costs more must be faster by `_MIN_GAIN`. Those that lose
are closed, so they take neither memory nor time afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job
from assay.runtime.speculation import Speculator
from assay.text import Tokenizer

_MIN_GAIN = 1.04  # less is noise between runs
_TOKENS = 48  # generated for a measurement, of which the first are not timed
_UNTIMED = 8  # tokens in which costs and acceptance rates are learned
_TEXT = (
    "The library opens at nine and closes at six. On Mondays the library opens at ten. Readers may borrow five books "
    "for four weeks; readers who return them late pay a small fee. Here is the same as a table, and then the reason "
    "for each rule:\n\n| day | opens | closes |\n|---|---|---|\n| Monday | ten | six |\n"
)

Maker = Callable[[], Speculator | None]


def choose(
    engine: PagedEngine,
    tokenizer: Tokenizer,
    ways: Mapping[str, Maker],
    measure: Callable[[PagedEngine, Tokenizer, Speculator | None], float] | None = None,
) -> tuple[Speculator | None, str]:
    """The speculator of the fastest way, and a line that says what was measured. `ways` is in the order of cost."""
    rates = dict[str, float]()
    best, chosen = "", None
    for name, make in ways.items():
        made = make()
        rates[name] = (measure or tokens_per_second)(engine, tokenizer, made)
        if not best or rates[name] > _MIN_GAIN * rates[best]:
            best, chosen, made = name, made, chosen
        if made and made.drafter:
            made.drafter.close()
    told = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    return chosen, f"--draft auto: {best} (tokens per second: {told})"


def tokens_per_second(engine: PagedEngine, tokenizer: Tokenizer, speculator: Speculator | None) -> float:
    """How fast a text goes on after a prompt. The cache is empty afterwards, as far as a new scheduler knows."""
    scheduler = Scheduler(engine, tokenizer, speculator=speculator)
    try:
        ids = tuple(tokenizer.encode(_TEXT))
    except AssayError:  # a file without a vocabulary
        ids = tuple(range(64))
    ids = ids[: max(scheduler.n_ctx - _TOKENS, 1)]
    sequence = scheduler.make(Job(ids, max_tokens=_TOKENS, ignore_eos=True), lambda update: None)
    scheduler.add([sequence])
    began, first = 0.0, 0
    while scheduler.busy:
        deliver(scheduler.step())
        if not first and sequence.generated >= _UNTIMED:
            began, first = time.perf_counter(), sequence.generated
    return (sequence.generated - first) / max(time.perf_counter() - began, 1e-9)
