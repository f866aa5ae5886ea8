"""Gemma 4's assistants: formulas, llama.cpp's logits, every bit the plain one with drafts, refusals, ways to ask."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.engines.contract import Array, Chunk, PagedEngine, pages_for
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.models.gemma4_assistant import OWN, ROWS
from assay.runtime.assistant_draft import assistant_head
from assay.runtime.generate import Generator
from assay.runtime.head_draft import DraftHead, HeadDrafter
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import GREEDY
from assay.runtime.sequence import Sequence
from assay.text import Tokenizer
from tests import assistant_files, draft_files, tiny
from tests.engines import on_cuda
from tests.models.golden import nmse
from tests.runtime.test_draft_heads import SAMPLED, Eager, cpu, finished, jobs, results

KEYS, VALUES = (("Kcur-0", "Kcur-1"), ("Vcur-0", "Vcur-1"))  # of the last local and full layers that have their own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assistant")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Callable[..., tuple[Model, Path]]:
    """A model and an assistant that is often right, and a pair whose layers say much; each made once."""
    made: dict[float, tuple[Model, Path]] = {}

    def get(mixed: float = 0.05) -> tuple[Model, Path]:
        if mixed not in made:
            path = draft_files.make(folder / f"{mixed}.gguf", "gemma4", mixed=mixed)
            made[mixed] = load(open_file(path)), assistant_files.make(folder / f"head{mixed}.gguf", path, mixed=mixed)
        return made[mixed]

    return get


def opened(model: Model, path: Path) -> DraftHead:
    return assistant_head(open_file(path), model, path.name)


def trunk_rows(model: Model, head: DraftHead, ids: list[int]) -> tuple[Array, Any, Any]:
    """The rows that the head is given, and the keys and values that the textbook is given."""
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    engine = ReferenceEngine(model, n_pages=8)
    nodes = engine.forward([Chunk(np.array(ids, np.int32), 0, pages, "none")], {*head.reads, *KEYS, *VALUES})[0].nodes
    assert head.reads == ("result_norm", "Kcur-0", "Vcur-0", "Kcur-1", "Vcur-1")
    rows = np.concatenate([nodes[name].reshape(len(ids), -1) for name in head.reads], axis=1)

    def cut(names: tuple[str, str]) -> dict[bool, Array]:
        widths = assistant_files.WIDTH_LOCAL, assistant_files.WIDTH
        return {not i: nodes[n].reshape(len(ids), -1, widths[i]) for i, n in enumerate(names)}

    return rows, cut(KEYS), cut(VALUES)


def test_the_formulas_are_the_textbooks(pair: Callable[..., tuple[Model, Path]]) -> None:
    """Every pair of a text, and two guesses that read the head's own row at the same place."""
    model, path = pair(1.0)
    head = opened(model, path)
    ids = np.random.default_rng(3).integers(3, 300, 40).tolist()
    rows, keys, values = trunk_rows(model, head, ids)
    book = assistant_files.Textbook(open_file(path), model.file)
    block = ReferenceEngine(model, n_pages=4).beside(head.graph, 4, head.model)
    pages = np.arange(4, dtype=np.int32)
    at = np.arange(1, 40, dtype=np.int32)
    found = block.forward([Chunk(np.array(ids[1:], np.int32), 0, pages, "all", at, {ROWS: rows[:-1]})], [OWN])[0]
    n_embd = model.hparams.n_embd
    for i, place in enumerate(at):
        logits, own = book.guess(ids[place], int(place), rows[i, :n_embd], keys, values)
        assert np.abs(found.logits[i] - logits).max() < 1e-9 * np.abs(logits).max(), place
        assert np.abs(found.nodes[OWN][i] - own).max() < 1e-9 * np.abs(own).max(), place
    token, own = int(found.logits[-1].argmax()), found.nodes[OWN][-1]
    for _ in range(2):
        given = np.append(own, rows[38, n_embd:])[None]
        again = block.forward([Chunk(np.array([token], np.int32), 38, pages, "last", at[-1:], {ROWS: given})], [OWN])[0]
        logits, _ = book.guess(token, 39, own, keys, values)
        assert np.abs(again.logits[0] - logits).max() < 1e-9 * np.abs(logits).max()
        token, own = int(again.logits[0].argmax()), again.nodes[OWN][-1]


def test_llamacpps_logits(tmp_path: Path) -> None:
    """Three guesses behind a text, as llama.cpp makes them; its GELU is a table of halves."""
    model_path, path = assistant_files.files(tmp_path)
    model, recorded = load(open_file(model_path)), np.load(assistant_files.GOLDEN)
    head = opened(model, path)
    ids = assistant_files.IDS.tolist()
    rows, _, _ = trunk_rows(model, head, ids[:-1])
    n_embd, last = model.hparams.n_embd, len(ids) - 2
    assert nmse(rows[last, :n_embd], recorded["h"].astype(np.float64)) < 1e-6
    block = ReferenceEngine(model, n_pages=4).beside(head.graph, 4, head.model)
    pages, at = np.arange(4, dtype=np.int32), np.arange(1, len(ids), dtype=np.int32)
    step = Chunk(np.array(ids[1:], np.int32), 0, pages, "last", at, {ROWS: rows})
    for logits in recorded["logits"]:
        found = block.forward([step], [OWN])[0]
        assert nmse(found.logits[0], logits.astype(np.float64)) < 1e-6
        token, own = int(logits.argmax()), found.nodes[OWN][-1]
        step = Chunk(np.array([token], np.int32), last, pages, "last", at[-1:],
                     {ROWS: np.append(own, rows[last, n_embd:])[None]})  # fmt: skip
    assert nmse(own, recorded["last_h"].astype(np.float64)) < 1e-6


@pytest.mark.parametrize("most", [1, 4])
def test_every_bit_is_the_same_with_drafts(most: int, pair: Callable[..., tuple[Model, Path]]) -> None:
    """Greedy and sampled, several sequences at once."""
    model, path = pair()
    work = jobs()
    speculator = Eager(HeadDrafter(opened(model, path)), most)
    assert results(cpu(model), speculator, work) == results(cpu(model), None, work)
    assert 20 < speculator.accepted < speculator.drafted


@pytest.mark.parametrize("make", [ReferenceEngine, lambda model, **k: CudaEngine(model, device=on_cuda.device(), **k)])
def test_other_engines(make: Callable[..., PagedEngine], pair: Callable[..., tuple[Model, Path]]) -> None:
    model, path = pair()
    work = jobs(12)[1:4]
    speculator = Eager(HeadDrafter(opened(model, path)), 2)
    assert results(make(model, n_pages=64), speculator, work) == results(make(model, n_pages=64), None, work)
    assert speculator.accepted > 5


def test_a_full_cache(pair: Callable[..., tuple[Model, Path]]) -> None:
    """Sequences are preempted and resumed, in the middle of a page, too."""
    model, path = pair()
    work = [{**job, "max_tokens": 60, "ignore_eos": True} for job in jobs()[:4]]
    speculator = Eager(HeadDrafter(opened(model, path)), 6)
    assert results(cpu(model, n_pages=9), speculator, work) == results(cpu(model), None, work)
    assert speculator.accepted > 0


def test_guesses_are_the_textbooks(pair: Callable[..., tuple[Model, Path]]) -> None:
    """First and second guesses: prompt in chunks, drafts taken back, page ends, a prefix from the cache."""
    model, path = pair(1.0)
    head = opened(model, path)
    book = assistant_files.Textbook(open_file(path), model.file)
    speculator = Eager(HeadDrafter(head), 2)
    drafter, guesses = speculator.drafter, dict[int, list[int]]()
    assert drafter
    draft = drafter.draft

    def noted(wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        found = draft(wanted)
        guesses.update({len(sequence.ids): tokens for sequence, tokens in found.items()})
        return found

    drafter.draft = noted  # type: ignore[method-assign]
    engine = cpu(model, precision="exact", kv_type="f32")
    generator = Generator(engine, Tokenizer.from_gguf(model.file), n_ctx=256, chunk=40, speculator=speculator)
    prompt, right, all_of_them = np.random.default_rng(2).integers(3, 300, 70).tolist(), 0, 0
    for longer in ([], [3, 1, 4]):
        guesses.clear()
        result = finished(generator, prompt_ids=[*prompt, *longer], params=SAMPLED, max_tokens=20, ignore_eos=True)
        ids = [*result.prompt_ids, *result.ids]
        rows, keys, values = trunk_rows(model, head, ids)
        for length, tokens in guesses.items():
            token, h = ids[length - 1], rows[length - 2, : model.hparams.n_embd]
            for guessed in tokens:
                logits, h = book.guess(token, length - 1, h, keys, values)
                token = guessed
                right, all_of_them = right + (int(logits.argmax()) == guessed), all_of_them + 1
    assert all_of_them > 30 and right == all_of_them


BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("no table", {"replaced": {"token_embd.weight": None}}, "token_embd.weight"),
    ("no projection", {"replaced": {"nextn.pre_projection.weight": None}}, "nextn.pre_projection.weight"),
    ("no width", {"keys": {"gemma4-assistant.embedding_length_out": None}}, "embedding_length_out: missing"),
    (
        "another width",
        {"keys": {"gemma4-assistant.embedding_length_out": 32}},
        "embedding_length_out: bad value .found 32, expected 64, the width of the model's rows",
    ),
    ("a wide end", {"replaced": {"nextn.post_projection.weight": np.ones((80, 80))}}, "found 80 rows, expected 64"),
    (
        "other heads",
        {"keys": {"gemma4-assistant.attention.head_count_kv": 4}},
        "is the head of another model .found 4 local key heads of 8 and 8, expected 2 local key heads of 8 and 8",
    ),
    (
        "another vocabulary",
        {"keys": {"tokenizer.ggml.tokens": ["xyz", *tiny.TOKENS[1:]]}},
        "another vocabulary .token 0",
    ),
    (
        "a short table",
        {"replaced": {"token_embd.weight": np.ones((40, 80))}, "keys": dict.fromkeys(draft_files.TOKENIZER)},
        "has another vocabulary .found 40 tokens, expected 320",
    ),
    ("no window", {"keys": {"gemma4-assistant.attention.sliding_window": 1}}, "sliding_window: bad value .found 1"),
)


@pytest.mark.parametrize(("options", "match"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_assistants_that_do_not_fit_are_refused(
    options: dict[str, Any], match: str, pair: Callable[..., tuple[Model, Path]], tmp_path: Path
) -> None:
    path = assistant_files.make(tmp_path / "bad.gguf", pair()[0].file.path, **options)
    with pytest.raises(AssayError, match=rf"--draft .*bad\.gguf: .*({match})"):
        assay.load(pair()[0].file.path, engine="cpu", draft=str(path)).close()


def test_only_gemma4_has_assistants(pair: Callable[..., tuple[Model, Path]], tmp_path: Path) -> None:
    other = draft_files.make(tmp_path / "other.gguf", "glm4moe")
    with pytest.raises(AssayError, match=r"is an assistant of Gemma 4 .found a model of glm4moe, expected gemma4"):
        assay.load(other, engine="cpu", draft=str(pair()[1])).close()


def test_the_library_and_the_command_line(
    pair: Callable[..., tuple[Model, Path]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With separate pages for the model's window, which is shorter than the texts."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    model, head = str(pair()[0].file.path), str(pair()[1])
    given: list[dict[str, Any]] = [{"max_tokens": 90, "ignore_eos": True, "params": p} for p in (GREEDY, SAMPLED)]
    with assay.load(model, engine="cpu", lookahead=False) as plain:
        expected = [plain.generate("hello world", **options).ids for options in given]
    with assay.load(model, engine="cpu", draft=head) as drafts:
        assert [drafts.generate("hello world", **options).ids for options in given] == expected

    def said(code: int, *arguments: str) -> tuple[str, str]:
        assert main(list(arguments)) == code
        return capsys.readouterr()

    ask = ("-p", "hello", "-n", "30", "--temp", "0", "--engine", "cpu")
    assert said(0, "run", model, *ask, "--draft", head)[0] == said(0, "run", model, *ask)[0]
    refused = said(2, "run", head, *ask)[1]
    assert "is an assistant of Gemma 4 and no model" in refused and "--draft" in refused
    assert "draft head  an assistant of Gemma 4" in said(0, "inspect", head)[0]
    sizes = [open_model(Path(model), OpenOptions("cpu", draft=d)).cache_bytes for d in (None, head)]
    assert sizes[1] > sizes[0]
