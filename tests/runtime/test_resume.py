"""A stream that was cut anywhere and resumed elsewhere goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from assay.errors import AssayError
from assay.runtime.generate import Generation, Generator
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import GREEDY, SamplerParams
from tests import tiny

N = 50
LIVELY = SamplerParams(temp=1.3, top_k=0, top_p=1.0, min_p=0.0, seed=11)
PENALISED = replace(
    LIVELY, repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1, dry_multiplier=0.8, xtc_probability=0.5,
    typical=0.95,
)  # fmt: skip
# Long enough for fifty tokens, of which many are forced and some are free.
GRAMMAR = 'root ::= word (" " word){40,60}\nword ::= [a-f] [a-z] [a-z] | "the" | "1" [0-9]* "."'
SETTINGS: dict[str, dict[str, Any]] = {
    "sampled": {"params": LIVELY, "stop": ["never so", "zzzz"]},
    "greedy": {"params": GREEDY},
    "penalties": {"params": PENALISED},
    "grammar": {"params": LIVELY, "grammar": GRAMMAR},
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(tiny.make(tmp_path_factory.mktemp("resume") / "tiny.gguf", n_ctx=512), OpenOptions(cache_size=0))


@pytest.fixture(scope="module")
def start(opened: Opened) -> Callable[..., Generation]:
    def begin(fresh: bool = False, grammar: str | None = None, **options: Any) -> Generation:
        if fresh:  # an empty cache: what is resumed is computed from nothing
            generator.pages.clear()
        made = opened.grammars.gbnf(grammar) if grammar else None
        prompt = opened.tokenizer.encode("hello the world")
        return generator.generate(prompt, max_tokens=N, ignore_eos=True, logprobs=2, constraint=made, **options)

    generator = Generator(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
    return begin


@pytest.mark.parametrize("name", SETTINGS)
def test_at_every_token(start: Callable[..., Generation], name: str) -> None:
    """Ids, text, log-probabilities and the reason of the end."""
    if name == "grammar":
        pytest.importorskip("llguidance")
    options = SETTINGS[name]
    whole = start(**options)
    events = list(whole)
    assert len(events) == N
    for cut in range(N + 1):
        rest = start(fresh=True, answered=[event.id for event in events[:cut]], **options)
        assert list(rest) == events[cut:], f"cut at {cut}"
        assert rest.result.finish_reason == whole.result.finish_reason == "length"


def test_a_stop_string_across_the_cut(start: Callable[..., Generation]) -> None:
    """What was held back before the cut is shown, or taken for the stop string, after it."""
    free = list(start(params=LIVELY))
    text = "".join(event.text for event in free)
    stop = text[20:26]
    whole = start(params=LIVELY, stop=[stop])
    events = list(whole)
    assert whole.result.finish_reason == "stop"
    for cut in range(len(events) + 1):
        rest = start(params=LIVELY, stop=[stop], answered=[event.id for event in events[:cut]])
        assert list(rest) == events[cut:]
        assert rest.result.finish_reason == "stop"


def test_a_seed_that_nobody_chose_is_told(start: Callable[..., Generation]) -> None:
    free = replace(LIVELY, seed=None)
    whole = start(params=free).run()
    assert whole.seed != start(params=free).run().seed
    rest = start(params=replace(free, seed=whole.seed), answered=whole.ids[:20]).run()
    assert rest.ids == whole.ids[20:]


def test_answers_that_cannot_be_resumed(start: Callable[..., Generation], opened: Opened) -> None:
    ids = start(params=LIVELY).run().ids
    with pytest.raises(AssayError, match=r"resume: the answer ends at its token 49 \(the requested number of tokens"):
        start(params=LIVELY, answered=[*ids, 5])
    with pytest.raises(AssayError, match="token 999 is not in the vocabulary"):
        start(params=LIVELY, answered=[999])
    with pytest.raises(AssayError, match="do not fit the context of 512"):
        start(params=LIVELY, answered=[5] * 600)


def test_the_place_in_a_batch_does_not_matter(start: Callable[..., Generation]) -> None:
    """The same request gives the same draws alone, resumed and among others."""
    alone = start(params=LIVELY).run()
    several = [start(params=replace(LIVELY, seed=seed)) for seed in (3, 11, 4)]
    several.append(start(params=LIVELY, answered=alone.ids[:25]))
    done = [g.result for g in several[0]._generator.together(several)]
    assert done[1].ids == alone.ids
    assert done[3].ids == alone.ids[25:]
    assert done[0].ids != alone.ids
