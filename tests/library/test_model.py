"""The library's model: every way to ask, on a tiny real model."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.engines.contract import Chunk
from tests import tiny

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("library") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[assay.LanguageModel]:
    with assay.load(path) as model:
        yield model


def test_text_ids_and_messages_are_prompts(model: assay.LanguageModel) -> None:
    by_text = model.generate("hello", max_new_tokens=6, **GREEDY)
    by_ids = model.generate(model.tokenize("hello"), max_new_tokens=6, **GREEDY)
    by_array = model.generate(np.array(model.tokenize("hello")), max_new_tokens=6, **GREEDY)
    assert by_text.ids == by_ids.ids == by_array.ids
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    by_chat = model.chat("hello", system="be brief", max_new_tokens=6, **GREEDY)
    assert by_chat.ids == model.generate(messages, max_new_tokens=6, **GREEDY).ids
    assert "<|turn|> user\nhello" in model.detokenize(by_chat.prompt_ids)


def test_a_list_is_a_batch_and_changes_no_token(model: assay.LanguageModel) -> None:
    prompts: list[Any] = ["hello", "the world", model.tokenize("on"), [{"role": "user", "content": "a"}]]
    alone = [model.generate(prompt, max_new_tokens=9, seed=4) for prompt in prompts]
    together = model.generate(prompts, max_new_tokens=9, seed=4)
    assert [r.ids for r in together] == [r.ids for r in alone]
    assert model.generate([], max_new_tokens=1) == []


def test_more_prompts_than_run_at_once(path: Path) -> None:
    prompts = [[5 + i, 7] for i in range(40)]
    with assay.load(path, parallel=3) as model:
        together = model.generate(prompts, max_new_tokens=1 + 3, **GREEDY)
        assert [r.ids for r in together] == [model.generate(p, max_new_tokens=4, **GREEDY).ids for p in prompts]


def test_several_answers_have_the_seeds_that_follow(model: assay.LanguageModel) -> None:
    several = model.generate("hello", n=3, seed=2**64 - 2, temperature=2, max_new_tokens=8)
    assert [r.seed for r in several] == [2**64 - 2, 2**64 - 1, 0]
    for result in several:
        assert model.generate("hello", seed=result.seed, temperature=2, max_new_tokens=8).ids == result.ids


def test_a_stream_gives_events_then_a_result(model: assay.LanguageModel) -> None:
    stream = model.stream("hello", seed=1, max_new_tokens=7, logprobs=2)
    events = list(stream)
    assert [event.id for event in events] == stream.result.ids
    assert "".join(event.text for event in events) == stream.result.text
    assert all(len(event.top) == 2 and event.logprob is not None for event in events)


def test_a_cut_stream_goes_on(model: assay.LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "repetition_penalty": 1.2, "max_new_tokens": 20, "seed": 9}
    whole = model.generate("hello", **options)
    assert model.generate("hello", resume=whole.ids[:7], **options).ids == whole.ids[7:]
    with pytest.raises(assay.AssayError, match="resume: needs one prompt"):
        model.generate(["a", "b"], resume=[1])


def test_results_print_and_turn_into_json(model: assay.LanguageModel) -> None:
    result = model.generate("hello", max_new_tokens=3, seed=1, logprobs=1)
    assert str(result) == result.text
    assert "3 tokens" in repr(result)
    assert "ended by length, seed 1" in repr(result)
    found = json.loads(json.dumps(result.to_dict()))
    assert found["ids"] == result.ids
    assert [len(c["top"]) for c in found["logprobs"]] == [1, 1, 1]
    assert "tiny.gguf on" in repr(model)


def test_other_peoples_names(model: assay.LanguageModel) -> None:
    ours = model.generate("a", params=assay.SamplerParams(temp=1.7, repeat_penalty=1.1, seed=3), max_tokens=9)
    theirs = model.generate("a", temperature=1.7, repetition_penalty=1.1, seed=3, max_new_tokens=9)
    assert ours.ids == theirs.ids
    assert model.generate("a", do_sample=False, max_tokens=4).ids == model.generate("a", temp=0, max_tokens=4).ids
    token = model.tokenize("x", add_special=False)[0]
    assert set(model.generate("a", logit_bias={token: 1e6}, max_tokens=4, ignore_eos=True).ids) == {token}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temprature": 1}, r"temprature: no such setting; did you mean temperature\?"),
        ({"temperature": 1, "temp": 2}, "temp is also given"),
        ({"max_tokens": 1, "max_new_tokens": 2}, "give different lengths"),
        ({"max_tokens": -2}, "max_tokens: must be an integer"),
        ({"max_tokens": True}, "max_tokens: must be an integer"),
        ({"top_k": 1.5}, "top_k: must be a whole number"),
        ({"temperature": "hot"}, "temp: must be a number .found .hot"),
        ({"top_p": 2.0}, "top_p: must be between 0.0 and 1.0"),
        ({"grammar": "root ::= a", "json_schema": {}}, "json_schema is also given"),
        ({"params": {"temp": 1}}, "params: must be SamplerParams"),
    ],
)
def test_settings_that_cannot_be(model: assay.LanguageModel, given: dict[str, Any], message: str) -> None:
    with pytest.raises(assay.AssayError, match=message):
        model.generate("a", **given)


def test_prompts_that_cannot_be(model: assay.LanguageModel) -> None:
    for prompt, message in (([1, 999], "not in the vocabulary"), ([True, 1], "must be a text, ids or messages"),
                            (["a", 1.5], "must be a text"), ([5] * 300, "do not fit the context of 256")):  # fmt: skip
        with pytest.raises((assay.AssayError, TypeError), match=f"{message}|not iterable"):
            model.generate(prompt)  # type: ignore[arg-type]
    assert model.generate("still well", max_new_tokens=2, **GREEDY).ids


def test_a_schema_holds(model: assay.LanguageModel) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    for seed in range(4):
        result = model.generate("a", json_schema=schema, seed=seed)
        assert json.loads(result.text)["a"] in ("x", "y")
        assert result.finish_reason in ("grammar", "eos")
    assert model.generate("a", grammar='root ::= "yes" | "no"').text in ("yes", "no")
    with pytest.raises(assay.AssayError, match="Rule 'nowhere' not found"):
        model.generate("a", grammar="root ::= nowhere")


def test_logits_are_those_of_the_engine(model: assay.LanguageModel, path: Path) -> None:
    ids = model.tokenize("hello the world")
    logits = model.logits("hello the world")
    assert logits.shape == (len(ids), model.model.hparams.n_vocab)
    chunk = Chunk(np.array(ids, np.int32), 0, np.arange(8, dtype=np.int32), "all")
    with assay.load(path) as other:
        assert np.array_equal(other.engine.forward([chunk])[0].logits, logits)
    choice = model.generate("hello the world", max_new_tokens=1, logprobs=0, **GREEDY)
    assert choice.ids == [int(logits[-1].argmax())]
    assert choice.logprobs is not None
    row = logits[-1].astype(np.float64)
    assert choice.logprobs[0].logprob == pytest.approx(row.max() - math.log(np.exp(row).sum()), abs=1e-6)


def test_embeddings_are_pooled_rows_of_result_norm(model: assay.LanguageModel) -> None:
    rows = model.trace("hello the world", nodes="^result_norm$")["result_norm"]
    mean, last = model.embed("hello the world"), model.embed("hello the world", pooling="last")
    assert mean == pytest.approx(rows.mean(0) / np.linalg.norm(rows.mean(0)), abs=1e-6)
    assert last == pytest.approx(rows[-1] / np.linalg.norm(rows[-1]), abs=1e-6)
    both = model.embed(["hello the world", "on"])
    assert np.array_equal(both[0], mean)
    assert np.linalg.norm(both, axis=1) == pytest.approx([1, 1], abs=1e-6)
    assert model.embed([]).shape == (0, rows.shape[1])
    with pytest.raises(assay.AssayError, match="mean, first, last"):
        model.embed("a", pooling="max")


def test_a_trace_is_a_mapping_that_prints(model: assay.LanguageModel, tmp_path: Path) -> None:
    before = model.generate("hello", max_new_tokens=5, **GREEDY)
    trace = model.trace("hello", decode=1)
    assert list(trace) == [node.name for node in model.model.graph if node.name in trace]
    assert np.array_equal(trace["result_output"], model.logits("hello"))
    assert "nodes" in repr(trace)
    assert trace.to_dict()["nodes"]["embd"]["shape"] == list(trace["embd"].shape)
    trace.save(tmp_path / "trace.npz")
    assert np.array_equal(np.load(tmp_path / "trace.npz")["embd"], trace["embd"])
    assert model.generate("hello", max_new_tokens=5, **GREEDY).ids == before.ids  # the cache was not left in ruins
    stream = iter(model.stream("hello", max_new_tokens=5, **GREEDY))
    next(stream)
    with pytest.raises(assay.AssayError, match="a generation is running"):
        model.trace("hello")
    stream.close()  # type: ignore[attr-defined]
    model.trace("hello", nodes="embd")


def test_threads_share_the_steps(model: assay.LanguageModel) -> None:
    prompts = [f"hello {word}" for word in ("a", "the", "world", "on", "in", "er")]
    expected = [model.generate(prompt, max_new_tokens=12, **GREEDY).ids for prompt in prompts]
    found: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        found[i] = model.generate(prompts[i], max_new_tokens=12, **GREEDY).ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(len(prompts))] == expected
    model.generator.pages.check()


def test_two_streams_at_once(model: assay.LanguageModel) -> None:
    a, b = (model.stream(text, max_new_tokens=10, **GREEDY) for text in ("hello", "the"))
    pairs = list(zip(a, b, strict=True))
    assert [x.id for x, _ in pairs] == model.generate("hello", max_new_tokens=10, **GREEDY).ids
    assert [y.id for _, y in pairs] == model.generate("the", max_new_tokens=10, **GREEDY).ids


def test_closing_ends_what_is_under_way(path: Path) -> None:
    model = assay.load(path, engine="reference")
    stream = model.stream("hello", **GREEDY)
    events = iter(stream)
    next(events)
    model.close()
    model.close()
    assert stream.result.finish_reason == "interrupted"
    assert list(events) == []
    with pytest.raises(assay.AssayError, match="has been closed"):
        model.generate("hello")
    assert "closed" in repr(model)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "base.gguf", template=None)
    with assay.load(path) as model, pytest.raises(assay.AssayError, match="has no chat template"):
        model.chat("hi")
    with assay.load(path, template="chatml") as model:
        assert "<|im_start|>user\nhi" in model.detokenize(model.chat("hi", max_new_tokens=1).prompt_ids)


def test_a_batch_goes_on_past_what_fails(model: assay.LanguageModel) -> None:
    requests: list[Any] = [
        ("hello", {"max_tokens": 3} | GREEDY),
        assay.AssayError("not even a request"),
        ([5] * 300, {}),
        ("hello", {"max_tokens": 3, "colour": 1}),
        ("hello", {"max_tokens": 4} | GREEDY),
    ]
    done = list(model.batch(requests))
    assert len(done[0].result.ids) == 3
    assert len(done[4].result.ids) == 4
    for pending, message in zip(done[1:4], ("not even", "do not fit", "no such setting"), strict=True):
        with pytest.raises(assay.AssayError, match=message):
            _ = pending.result
