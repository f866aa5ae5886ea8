"""The generation loop on a tiny real model: every way to end, and that it makes no difference how it got there."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.engines.contract import Chunk, Output
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.generate import Generation, Generator
from assay.runtime.sampler import GREEDY, SamplerParams
from assay.runtime.session import Session
from assay.runtime.stops import StopStrings
from assay.text import Tokenizer
from tests import tiny

PROMPT = "hello world, the quick brown fox jumps over the lazy dog and on and on"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> Tokenizer:
    return Tokenizer.from_gguf(model.file)


@pytest.fixture
def generator(model: Model, tokenizer: Tokenizer) -> Generator:
    return Generator(ReferenceEngine(model), tokenizer)


def test_greedy_is_the_argmax_of_full_forward_passes(model: Model, generator: Generator) -> None:
    prompt = generator.tokenizer.encode(PROMPT)
    result = generator.generate(prompt, GREEDY, max_tokens=8, logprobs=3).run()
    ids = list(prompt)
    assert result.logprobs is not None
    for choice in result.logprobs:  # each from an empty cache, the whole sequence at once
        chunk = Chunk(np.array(ids, np.int32), 0, np.arange(8, dtype=np.int32))
        logits = ReferenceEngine(model).forward([chunk])[0].logits[-1]
        assert choice.id == int(logits.argmax())
        logprobs = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        assert choice.logprob == pytest.approx(logprobs[choice.id], abs=1e-9)
        assert [r.id for r in choice.top] == np.argsort(-logprobs)[:3].tolist()
        ids.append(choice.id)
    assert result.ids == ids[len(prompt) :]
    assert (result.prompt_ids, result.finish_reason) == (prompt, "length")
    assert result.timing.prompt_tokens == len(prompt)
    assert result.timing.tokens == 8


@pytest.mark.parametrize("chunk", [1, 7, 32, 512])
def test_the_chunk_size_makes_no_difference(model: Model, generator: Generator, chunk: int) -> None:
    prompt = generator.tokenizer.encode(PROMPT)
    expected = generator.generate(prompt, GREEDY, max_tokens=6).run()
    other = Generator(ReferenceEngine(model), generator.tokenizer, chunk=chunk)
    assert other.generate(prompt, GREEDY, max_tokens=6).run().ids == expected.ids


def test_a_cached_prefix_makes_no_difference(generator: Generator) -> None:
    prompt = generator.tokenizer.encode(PROMPT)
    assert len(prompt) > 64
    first = generator.generate(prompt, GREEDY, max_tokens=40, ignore_eos=True).run()
    second = generator.generate(prompt, GREEDY, max_tokens=40, ignore_eos=True).run()
    assert first.timing.cached_tokens == 0
    assert second.timing.cached_tokens == len(prompt) - 1  # two pages shared, the start of a third copied
    assert second.ids == first.ids
    longer = generator.generate(prompt + first.ids[:30], GREEDY, max_tokens=10, ignore_eos=True).run()
    assert longer.ids == first.ids[30:]
    assert longer.timing.cached_tokens == 96
    generator.pages.check()


def test_events_spell_the_result(generator: Generator) -> None:
    generation = generator.generate(generator.tokenizer.encode("hi"), SamplerParams(seed=4), max_tokens=60)
    events = list(generation)
    result = generation.result
    assert [event.id for event in events] == result.ids
    assert "".join(event.text for event in events) == result.text
    shown = [token for token in result.ids if token not in generator.tokenizer.eog]
    assert result.text == generator.tokenizer.decode(shown, special=False)


def test_a_seed_repeats_and_another_differs(generator: Generator) -> None:
    prompt = generator.tokenizer.encode("hi")

    def ids(seed: int) -> list[int]:
        return generator.generate(prompt, SamplerParams(seed=seed, temp=2.0), max_tokens=20).run().ids

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


# --- every way to end


def test_stop_strings_across_token_borders(generator: Generator) -> None:
    prompt = generator.tokenizer.encode("hi")
    pieces = [event.text for event in generator.generate(prompt, SamplerParams(seed=8), max_tokens=30)]
    text = "".join(pieces)
    for size in (1, 2, 5):
        for start in range(0, len(text) - size, 3):
            stop = text[start : start + size]
            generation = generator.generate(prompt, SamplerParams(seed=8), max_tokens=30, stop=["never so", stop])
            shown = "".join(event.text for event in generation)
            assert generation.result.finish_reason == "stop"
            assert shown == generation.result.text == text[: text.index(stop)]


def test_a_stop_string_that_only_begins_is_shown_at_the_end(generator: Generator) -> None:
    prompt = generator.tokenizer.encode("hi")
    text = generator.generate(prompt, GREEDY, max_tokens=9).run().text
    generation = generator.generate(prompt, GREEDY, max_tokens=9, stop=[text[-2:] + "…never"])
    assert "".join(event.text for event in generation) == text
    assert generation.result.finish_reason == "length"


def test_every_end_of_generation_token_ends(generator: Generator) -> None:
    prompt = generator.tokenizer.encode("hi")
    assert len(generator.tokenizer.eog) == 2
    for token in generator.tokenizer.eog:
        params = SamplerParams(temp=0, logit_bias=((token, 1e6),))
        result = generator.generate(prompt, params, max_tokens=5).run()
        assert (result.ids, result.text, result.finish_reason) == ([token], "", "eos")
        result = generator.generate(prompt, params, max_tokens=5, ignore_eos=True).run()
        assert (result.ids, result.finish_reason) == ([token] * 5, "length")


def test_the_context_ends_it(model: Model, tokenizer: Tokenizer) -> None:
    for n_ctx in (16, 40):
        generator = Generator(ReferenceEngine(model, n_pages=2), tokenizer, n_ctx=n_ctx)
        prompt = tokenizer.encode("hi")
        result = generator.generate(prompt, GREEDY, ignore_eos=True).run()
        assert result.finish_reason == "context"
        assert len(prompt) + len(result.ids) == n_ctx + 1  # the last one was drawn but has no place
    exact = [1] * n_ctx
    assert len(generator.generate(exact, GREEDY, ignore_eos=True).run().ids) == 1
    with pytest.raises(AssayError, match=r"41 tokens do not fit the context of 40; shorten it by 1,"):
        generator.generate([1] * 41, GREEDY)


def test_no_tokens_asked_for_computes_the_prompt_only(generator: Generator) -> None:
    result = generator.generate([1] * 40, GREEDY, max_tokens=0).run()
    assert (result.ids, result.text, result.finish_reason) == ([], "", "length")
    assert generator.pages.match([1] * 40) == 32


def test_prompts_that_cannot_be(generator: Generator) -> None:
    with pytest.raises(AssayError, match="no tokens"):
        generator.generate([], GREEDY)
    for token in (-1, 320):
        with pytest.raises(AssayError, match=rf"token {token} is not in the vocabulary of 320"):
            generator.generate([1, token], GREEDY)


def test_broken_weights_are_an_error(tmp_path: Path, tokenizer: Tokenizer, model: Model) -> None:
    """A NaN in the forward pass is reported; id 0 is not drawn."""
    path = tiny.make(tmp_path / "nan.gguf")
    data = bytearray(path.read_bytes())
    offset = open_file(path).tensors["output_norm.weight"].offset
    data[offset : offset + 4] = b"\x00\x00\xc0\x7f"
    path.write_bytes(data)
    generator = Generator(ReferenceEngine(load(open_file(path))), tokenizer)
    generation = generator.generate([1], SamplerParams())
    with pytest.raises(AssayError, match="320 of 320 are NaN"):
        generation.run()
    assert not generation.ended
    generator.pages.check()


# --- interruption


class Interrupted(ReferenceEngine):
    """Ctrl-C comes in the middle of a step."""

    at = 3

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: object = None) -> list[Output]:
        self.at -= 1
        if self.at == 0:
            raise KeyboardInterrupt
        return super().forward(batch, keep)


def test_ctrl_c_while_computing_keeps_what_there_is(model: Model, generator: Generator) -> None:
    prompt = generator.tokenizer.encode("hi")
    whole = generator.generate(prompt, GREEDY, max_tokens=9).run()
    other = Generator(Interrupted(model), generator.tokenizer)
    result = other.generate(prompt, GREEDY, max_tokens=9).run()
    assert result.finish_reason == "interrupted"
    assert result.ids == whole.ids[:2]
    other.pages.check()
    assert other.generate(prompt, GREEDY, max_tokens=9).run().ids == whole.ids


def test_ctrl_c_in_the_prompt(model: Model, tokenizer: Tokenizer) -> None:
    generator = Generator(Interrupted(model), tokenizer, chunk=4)
    result = generator.generate([1] * 40, GREEDY).run()
    assert (result.ids, result.text, result.finish_reason) == ([], "", "interrupted")
    generator.pages.check()


def test_interrupt_between_steps(generator: Generator) -> None:
    generation = generator.generate(generator.tokenizer.encode("hi"), GREEDY, ignore_eos=True)
    for count, _ in enumerate(generation, 1):
        if count == 4:
            generation.interrupt()
    assert generation.result.finish_reason == "interrupted"
    assert len(generation.result.ids) == 4


def test_a_reader_who_leaves(generator: Generator) -> None:
    generation = generator.generate([1] * 40, GREEDY)
    events = iter(generation)
    next(events)
    with pytest.raises(RuntimeError, match="not ended"):
        _ = generation.result
    events.close()  # type: ignore[attr-defined]
    assert generation.result.finish_reason == "interrupted"
    generator.pages.check()
    assert generator.pages.available == generator.pages.n_pages
    with pytest.raises(RuntimeError, match="once"):
        next(iter(generation))


# --- stop strings alone


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings_by_definition(parts: list[str], stops: list[str]) -> None:
    watcher = StopStrings(stops)
    shown = ""
    text = ""
    for part in parts:
        shown += watcher.push(part)
        text += part
        assert text.startswith(shown)  # nothing is shown early that is taken back
        if watcher.found is not None:
            break
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if first is None:
        assert watcher.found is None
        assert shown + watcher.flush() == text
    else:
        assert watcher.found in stops
        assert shown == text[:first]
        assert watcher.push("b") == watcher.flush() == ""


def test_nothing_is_held_back_without_need() -> None:
    watcher = StopStrings(["END"])
    assert watcher.push("a") == "a"
    assert watcher.push("bE") == "b"
    assert watcher.push("x") == "Ex"


# --- conversations


def encode_lines(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    return tokenizer.encode("\n".join(f"{m['role']}: {m['content']}" for m in messages))


@pytest.fixture
def session(generator: Generator) -> Session:
    return Session(
        generator, lambda m, _: (encode_lines(generator.tokenizer, m), ()), GREEDY, system="be brief", max_tokens=6
    )


def test_a_session_remembers_and_reuses(session: Session) -> None:
    first = "".join(event.text for event in session.ask("a question of some length, for whole pages"))
    list(session.ask("and another"))
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert session.messages[2]["content"] == first
    assert isinstance(session.generation, Generation)
    assert session.generation.result.timing.cached_tokens >= 32
    session.reset()
    assert session.messages == [{"role": "system", "content": "be brief"}]
    session.set_system(None)
    assert session.messages == []
    assert not session.can_repeat


def test_another_answer_replaces_the_last(session: Session) -> None:
    list(session.ask("hi"))
    before = list(session.messages)
    list(session.again())
    assert session.messages == before


def test_a_partial_answer_stays_in_the_history(session: Session) -> None:
    events = session.ask("hi")
    first = next(events).text
    assert session.generation is not None
    session.generation.interrupt()
    list(events)
    assert session.messages[-1]["role"] == "assistant"
    assert session.messages[-1]["content"].startswith(first)


def test_a_message_that_does_not_fit_is_not_kept(session: Session) -> None:
    list(session.ask("hi"))
    before = list(session.messages)
    with pytest.raises(AssayError, match="do not fit the context of 256"):
        session.ask("x" * 1000)
    assert session.messages == before
