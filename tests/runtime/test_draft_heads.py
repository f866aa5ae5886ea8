"""Speculation on models with a state, by every kind of draft: other steps, and no bit of the result is another."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.engines.contract import Chunk, PagedEngine
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.runtime.draft_model import DraftModel
from assay.runtime.generate import Generator, Result
from assay.runtime.head_alone import head_alone
from assay.runtime.head_draft import HeadDrafter, own_head
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Drafter, Speculator
from assay.text import Tokenizer
from tests import draft_files, tiny
from tests.engines import on_cuda
from tests.models import recurrent

SAMPLED = SamplerParams(temp=0.7, seed=11, top_k=40)
ROUND = [300, 301, 302, 303, 304, 305] * 4 + [290, 300, 301]  # n-grams repeat
# The assistant of gemma4 is a file of its own: test_assistant.py.
OTHERS = tuple(name for name in draft_files.ROWS if name not in (draft_files.STATES, "gemma4"))


class Eager(Speculator):
    """Drafts in every step, from the text or by the drafter alone, and counts."""

    def __init__(self, drafter: Drafter | None = None, most: int = 3) -> None:
        super().__init__(drafter)
        self.most, self.drafted, self.accepted = most, 0, 0

    def choose(self, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        room = {sequence: min(n, self.most) for sequence, n in room.items() if n}
        for sequence, n in room.items():
            sequence.ngrams.propose(sequence.ids, 0 if self.drafter else n)
        found = {s: list(s.ngrams.tokens) for s in room if s.ngrams.tokens}
        self._drafted = self.drafter.draft(room) if self.drafter else found
        return self._drafted

    def learn(self, sequence: Sequence, drawn: list[int]) -> None:
        if draft := self._drafted.get(sequence):
            self.drafted, self.accepted = self.drafted + len(draft), self.accepted + len(drawn) - 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("heads")
    made: dict[str, Model] = {}

    def get(name: str = draft_files.STATES) -> Model:
        if name not in made:
            made[name] = load(open_file(draft_files.make(folder / f"{len(made)}.gguf", name)))
        return made[name]

    return get


def results(engine: PagedEngine, speculator: Speculator | None, jobs: list[dict[str, Any]]) -> list[str]:
    """All that a client gets of each job, to the last digit. The engine and the drafter are closed."""
    model = engine.model
    tokenizer = Tokenizer.from_gguf(model.file, nameless=model.hparams.n_vocab)
    generator = Generator(engine, tokenizer, n_ctx=256, running=4, speculator=speculator)
    found = [told(work.result) for work in generator.together(generator.generate(**job) for job in jobs)]
    generator.pages.check()
    if speculator and speculator.drafter:
        speculator.drafter.close()
    engine.close()
    return found


def finished(generator: Generator, **job: Any) -> Result:
    return next(iter(generator.together([generator.generate(**job)]))).result


def told(result: Result) -> str:
    choices = [(c.id, c.logprob, c.top) for c in result.logprobs or []]
    return json.dumps([result.ids, result.text, result.finish_reason, repr(choices)])


def jobs(n: int = 50) -> list[dict[str, Any]]:
    """Greedy, sampled, with penalties, around page ends, and two prompts with one beginning."""
    long = list(range(200, 240))
    return [
        {"prompt_ids": ROUND, "params": GREEDY, "max_tokens": n, "ignore_eos": True},
        {"prompt_ids": ROUND, "params": SAMPLED, "max_tokens": n, "logprobs": 3},
        {"prompt_ids": [1, 300], "params": replace(SAMPLED, repeat_penalty=1.3), "max_tokens": n, "logprobs": 0},
        {"prompt_ids": long, "params": GREEDY, "max_tokens": n, "ignore_eos": True, "logprobs": 2},
        {"prompt_ids": [*long, 5, 6], "params": replace(SAMPLED, seed=4), "max_tokens": n, "ignore_eos": True},
        {"prompt_ids": [7], "params": GREEDY, "max_tokens": 1},
    ]


def cpu(model: Model, **options: Any) -> PagedEngine:
    return CpuEngine(model, **{"n_pages": 64, "threads": 2, **options})


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("kind", ["text", "model", "head"])
def test_every_bit_is_the_same_with_drafts(kind: str, most: int, models: Callable[..., Model]) -> None:
    """Together and one by one; the draft model is the model itself, so that it has a state, too."""
    model, work = models(), jobs(90 if kind == "text" else 50)  # a text must repeat itself first
    plain = results(cpu(model), None, work)
    drafters: dict[str, Callable[[], Drafter | None]] = {
        "text": lambda: None, "model": lambda: DraftModel(cpu(model)), "head": lambda: HeadDrafter(own_head(model)),
    }  # fmt: skip
    speculator = Eager(drafters[kind](), most)
    assert results(cpu(model), speculator, work) == plain
    assert speculator.accepted > 20, "too few drafts are accepted to test them"
    assert speculator.accepted < speculator.drafted or kind == "model", "no draft is rejected"
    assert [results(cpu(model), Eager(drafters[kind](), most), [job])[0] for job in work[:2]] == plain[:2]


def test_a_draft_model_with_a_state_is_always_right_about_itself(models: Callable[..., Model]) -> None:
    """So its own drafted tokens are taken back from its state, too."""
    greedy = [job for job in jobs() if job["params"] is GREEDY]
    speculator = Eager(DraftModel(cpu(models())))
    results(cpu(models()), speculator, greedy)
    assert speculator.accepted >= 0.97 * speculator.drafted > 50


@pytest.mark.parametrize("name", OTHERS)
def test_heads_of_models_without_a_state(name: str, models: Callable[..., Model]) -> None:
    model, work = models(name), jobs()
    speculator = Eager(HeadDrafter(own_head(model)))
    assert results(cpu(model), speculator, work) == results(cpu(model), None, work)
    assert 20 < speculator.accepted < speculator.drafted


@pytest.mark.parametrize(
    "make",
    [
        ReferenceEngine,
        lambda model, **k: CudaEngine(model, device=on_cuda.device(), **k),
        lambda model, **k: CudaEngine(model, device=on_cuda.device(), precision="mixed", **k),
    ],
    ids=["reference", "cuda", "cuda, mixed"],
)
def test_other_engines(make: Callable[..., PagedEngine], models: Callable[..., Model]) -> None:
    model, work = models(), jobs(12)[1:4]
    speculator = Eager(HeadDrafter(own_head(model)), 2)
    assert results(make(model, n_pages=64), speculator, work) == results(make(model, n_pages=64), None, work)
    assert speculator.accepted > 5


def test_the_speculator_decides_by_time(models: Callable[..., Model]) -> None:
    """The plain class, which drafts where it pays: the same bits, whatever it decides."""
    model, work = models(), jobs()
    plain = results(cpu(model), None, work)
    quick = Speculator(HeadDrafter(own_head(model)))
    quick._draft_seconds = 1e-9  # the head seems free
    assert results(cpu(model), quick, work) == plain
    assert results(cpu(model), Speculator(HeadDrafter(own_head(model))), work) == plain


@pytest.mark.parametrize("tight", [{"n_pages": 9}, {"state_slots": 8}, {"n_pages": 7, "state_slots": 3}])
def test_a_full_cache(tight: dict[str, int], models: Callable[..., Model]) -> None:
    """Few pages and few states: sequences are preempted and resumed at snapshots, and drafts are shorter."""
    model = models()
    work = [{**job, "max_tokens": 60, "ignore_eos": True} for job in jobs()[:4]]
    plain = results(cpu(model), None, work)
    for drafter in (HeadDrafter(own_head(model)), None):
        speculator = Eager(drafter, 8)
        assert results(cpu(model, **tight), speculator, work) == plain
        assert speculator.accepted > 0


def test_a_snapshot_is_taken_inside_a_draft(models: Callable[..., Model]) -> None:
    """Page ends lie between drafted tokens; the next turn goes on at the last one, with the bits of a fresh start."""
    model = models()
    tokenizer = Tokenizer.from_gguf(model.file)
    generator = Generator(cpu(model), tokenizer, n_ctx=256, speculator=Eager(HeadDrafter(own_head(model)), 7))
    first = finished(generator, prompt_ids=list(range(200, 220)), params=GREEDY, max_tokens=90, ignore_eos=True)
    turn = [*first.prompt_ids, *first.ids, 4, 5]
    job = {"prompt_ids": turn, "params": SAMPLED, "max_tokens": 30, "logprobs": 1}
    again = finished(generator, **job)
    assert again.timing.cached_tokens == 96
    assert told(again) == results(cpu(model), None, [job])[0]


def test_a_prefix_from_the_cache_serves_the_head_too(models: Callable[..., Model]) -> None:
    """The second sequence begins at a page end; its drafts are those of the first."""
    model, counts = models(), []
    tokenizer = Tokenizer.from_gguf(model.file)
    speculator = Eager(HeadDrafter(own_head(model)))
    generator = Generator(cpu(model), tokenizer, n_ctx=256, speculator=speculator)
    for _ in range(2):
        speculator.accepted = 0
        finished(generator, prompt_ids=list(range(200, 270)), params=GREEDY, max_tokens=60, ignore_eos=True)
        counts.append(speculator.accepted)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", ["nemotron_h_moe-mtp", "qwen35-mtp"])
def test_guesses_are_those_of_one_pass_over_the_whole_text(name: str) -> None:
    """Golden models, whose heads read every row: prompt in chunks, drafts taken back, page ends, a prefix reused."""
    model = recurrent.calls(name).model
    speculator = Eager(HeadDrafter(own_head(model)), 2)
    guesses: dict[int, list[int]] = {}
    draft = speculator.drafter.draft  # type: ignore[union-attr]

    def noted(wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        found = draft(wanted)
        guesses.update({len(sequence.ids): tokens for sequence, tokens in found.items()})
        return found

    speculator.drafter.draft = noted  # type: ignore[union-attr,method-assign]
    tokenizer = Tokenizer.from_gguf(model.file, nameless=model.hparams.n_vocab)
    generator = Generator(cpu(model), tokenizer, n_ctx=256, chunk=40, speculator=speculator)
    prompt = np.random.default_rng(2).integers(0, model.hparams.n_vocab, 70).tolist()
    trunk = cpu(model)
    assert trunk.beside and model.draft
    head = trunk.beside(model.draft, 64)
    for longer in ([], [3, 1, 4]):
        guesses.clear()
        result = finished(generator, prompt_ids=[*prompt, *longer], params=SAMPLED, max_tokens=30, ignore_eos=True)
        ids = np.array([*result.prompt_ids, *result.ids], np.int32)
        pages = np.arange(4, dtype=np.int32)
        rows = trunk.forward([Chunk(ids, 0, pages, "none", state_slot=1)], ["result_norm"])[0].nodes["result_norm"]
        chunk = Chunk(ids, 0, pages, "all", rows={"mtp_hidden": np.concatenate([0 * rows[:1], rows[:-1]])})
        expected = head.forward([chunk])[0].logits.argmax(axis=1)
        assert len(guesses) > 20
        assert all(tokens[0] == expected[at - 1] for at, tokens in guesses.items())


def test_constraints_and_stops(models: Callable[..., Model]) -> None:
    """A grammar that may be late, and a stop string inside a draft."""
    model = models()
    opened = open_model(model.file.path, OpenOptions(engine="cpu", cache_size=2048))
    schema = opened.grammars.schema({"type": "array", "items": {"enum": ["abc", "abd"]}, "minItems": 4})
    work = [{"prompt_ids": ROUND, "params": SAMPLED, "max_tokens": 40, "constraint": schema}, jobs()[0]]
    text = json.loads(results(cpu(model), None, work[1:])[0])[1]
    work.append({**work[1], "stop": (text[7:10],)})
    plain = results(cpu(model), None, work)
    for drafter in (None, HeadDrafter(own_head(model))):
        assert results(cpu(model), Eager(drafter, 5), work) == plain


def test_the_library(models: Callable[..., Model], tmp_path: Path) -> None:
    path = models().file.path
    plain, drafts = assay.load(path, lookahead=False), assay.load(path, draft="mtp")
    for params in (GREEDY, SAMPLED):
        found = [m.generate("hello world", params=params, max_tokens=40, ignore_eos=True).ids for m in (plain, drafts)]
        assert found[0] == found[1]
    without = tiny.make(tmp_path / "tiny.gguf")
    with pytest.raises(AssayError, match=r"--draft mtp: tiny.gguf: it has no draft head .found no llama.nextn"):
        assay.load(without, draft="mtp")


def test_a_head_that_cannot_be_run_is_said_so(tmp_path: Path) -> None:
    """The key promises a head, and the file has none, a part of one, or an architecture without; the model runs."""
    path = tiny.make(tmp_path / "a.gguf", metadata={"llama.nextn_predict_layers": 1, "llama.block_count": 3})
    with pytest.raises(AssayError, match=r"a.gguf: its draft head cannot be run .no head is defined for llama"):
        open_model(path, OpenOptions(draft="mtp"))
    for missing, why in (
        ("nextn.eh_proj", "not in the file"),
        ("attn_q.weight", "blk.2.attn_q"),
        ("nextn.enorm", "enorm"),
    ):
        path = draft_files.make(tmp_path / "b.gguf", without=f"blk.2.{missing}")
        assert open_model(path).model.draft is None
        with pytest.raises(AssayError, match=rf"b.gguf: its draft head cannot be run .*{why}.*; use a file with"):
            open_model(path, OpenOptions(draft="mtp"))


def test_a_head_in_a_file_of_its_own(models: Callable[..., Model], tmp_path: Path) -> None:
    """llama.cpp's form: the draft block without the model's layers. It guesses what a head in it does."""
    both, last = models().file, models().hparams.n_layer
    arch = models().hparams.arch

    def part(name: str, keep: Callable[[str], bool], **keys: Any) -> Path:
        tensors = [Tensor(t.name, t.shape, t.type, both.raw(t.name)) for t in both.tensors.values() if keep(t.name)]
        changed = {f"{arch}.{key}": value for key, value in keys.items()}
        metadata = {key: value for key, value in {**both.metadata, **changed}.items() if value is not None}
        write(tmp_path / name, metadata, tensors)
        return tmp_path / name

    own = f"blk.{last}."
    bare = part("model.gguf", lambda n: not n.startswith(own), nextn_predict_layers=None, block_count=last)
    head = part("head.gguf", lambda n: n.startswith((own, "token_embd")))
    model, work = load(open_file(bare)), jobs()
    assert model.draft is None
    plain = results(cpu(model), None, work)
    inside, alone = Eager(HeadDrafter(own_head(models()))), Eager(HeadDrafter(head_alone(open_file(head), model, "h")))
    assert results(cpu(model), alone, work) == plain == results(cpu(models()), inside, work)
    assert (alone.drafted, alone.accepted) == (inside.drafted, inside.accepted) and alone.accepted > 20
    found = assay.load(bare, draft=str(head)).generate("hello world", params=GREEDY, max_tokens=20, ignore_eos=True).ids
    assert found == assay.load(bare, lookahead=False).generate(
        "hello world", params=GREEDY, max_tokens=20, ignore_eos=True).ids  # fmt: skip
    with pytest.raises(
        AssayError, match=r"head.gguf: is a draft head of qwen35 alone and no model; .*--draft head.gguf"
    ):
        load(open_file(head))
    for name in ("glm4moe", "deepseek2"):
        with pytest.raises(AssayError, match=f"--draft h: is a draft head of qwen35 .found a model of {name}"):
            head_alone(open_file(head), models(name), "h")
    other = part("other.gguf", lambda n: n.startswith((own, "token_embd")), embedding_length=32)
    with pytest.raises(AssayError, match=r"--draft h: is the head of another model .*embedding_length"):
        head_alone(open_file(other), model, "h")
    lacks = part("lacks.gguf", lambda n: n.startswith((own, "token_embd")) and "eh_proj" not in n)
    with pytest.raises(AssayError, match=r"--draft h: its draft head cannot be run .*eh_proj.*not in the file"):
        head_alone(open_file(lacks), model, "h")


def test_the_command_line(
    models: Callable[..., Model],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))

    def said(code: int, *arguments: str) -> tuple[str, str]:
        assert main(list(arguments)) == code
        return capsys.readouterr()

    path, without = str(models().file.path), str(tiny.make(tmp_path / "tiny.gguf"))
    plain = said(0, "run", path, "-p", "hello", "-n", "30", "--temp", "0")
    assert said(0, "run", path, "-p", "hello", "-n", "30", "--temp", "0", "--draft", "mtp")[0] == plain[0]
    assert "--draft mtp: tiny.gguf: it has no draft head" in said(2, "run", without, "-p", "hello", "--draft", "mtp")[1]
    assert "draft head" in said(0, "inspect", path)[0] and "draft head" not in said(0, "inspect", without)[0]


def test_garbage_in_the_heads_rows_costs_only_speed(models: Callable[..., Model]) -> None:
    """A head that gives NaN: its drafts are ids all the same, and every one may be wrong."""
    model, work = models(), jobs(20)[:3]
    drafter = HeadDrafter(own_head(model))
    forward = drafter._forward

    def spoilt(chunks: Any) -> Any:
        return [(token, np.full_like(row, np.nan)) for token, row in forward(chunks)]

    drafter._forward = spoilt  # type: ignore[method-assign]
    assert results(cpu(model), Eager(drafter), work) == results(cpu(model), None, work)
