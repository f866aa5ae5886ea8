"""EAGLE-3 heads: the formulas, every bit the plain one with drafts, prefixes, refusals, and the three ways to ask."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay import engines
from assay.cli import main
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.models.eagle3 import HIDDEN, OWN, ROWS, row_before
from assay.runtime import draft_choice
from assay.runtime.eagle_draft import eagle_head
from assay.runtime.generate import Generator
from assay.runtime.head_draft import DraftHead, HeadDrafter
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import GREEDY
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Speculator
from assay.text import Tokenizer
from tests import draft_files, eagle_files, tiny
from tests.eagle_files import Form
from tests.engines import on_cuda
from tests.runtime.test_draft_heads import SAMPLED, Eager, cpu, finished, jobs, results

FORMS = {
    "plain": Form(),
    "norms": Form(norm_before_fc=True, norm_before_residual=True, mixed=1.0),
    "groups": Form(rope_freqs=True, n_head_kv=2, own_table=True, mixed=1.0),
    "borrowed": Form(kept=0, mixed=1.0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eagle")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Callable[..., tuple[Model, Path]]:
    """A model of `draft_files` and a head for it, each made once."""
    made: dict[tuple[str, Form], tuple[Model, Path]] = {}

    def get(name: str = "glm4moe", form: Form | None = None) -> tuple[Model, Path]:
        key = name, form or Form()
        if key not in made:
            model = load(open_file(draft_files.make(folder / f"{len(made)}.gguf", name)))
            path = eagle_files.make(folder / f"head{len(made)}.gguf", model.file.path, key[1])
            made[key] = model, path
        return made[key]

    return get


def opened(model: Model, path: Path) -> DraftHead:
    return eagle_head(open_file(path), model, path.name)


@pytest.mark.parametrize("form", FORMS)
def test_the_formulas_are_the_textbooks(form: str, pair: Callable[..., tuple[Model, Path]]) -> None:
    """Model rows in float64 into both; all logits of a text, and of a guess that reads the head's own row."""
    model, path = pair(form=FORMS[form])
    head = opened(model, path)
    ids = np.random.default_rng(3).integers(3, 300, 40).astype(np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    trunk = ReferenceEngine(model, n_pages=4)
    nodes = trunk.forward([Chunk(ids, 0, pages, "none")], head.reads)[0].nodes
    rows = np.concatenate([nodes[name] for name in head.reads], axis=1)
    book = eagle_files.Textbook(open_file(path), model.file)
    g = book.fused(rows)
    expected = book.logits(ids.tolist(), g)
    block = trunk.beside(head.graph, 4, head.model)
    assert block.beside and head.fuse
    fused = block.beside(head.fuse, 2).forward([Chunk(ids[:0], 0, pages, "all", rows={ROWS: rows})])[0].logits
    assert np.abs(fused - g).max() < 1e-9 * np.abs(g).max()
    found = block.forward([Chunk(ids[1:], 0, pages, "all", rows={HIDDEN: fused[:-1]})], [OWN])[0]
    assert np.abs(found.logits - expected).max() < 1e-9 * np.abs(expected).max()
    own = found.nodes[OWN][-1:]
    guess = block.forward([Chunk(np.array([7], np.int32), len(ids) - 1, pages, "last", rows={HIDDEN: own})])[0].logits
    further = book.logits([*ids.tolist(), 7], np.concatenate([g[:-1], own]))[-1:]
    assert np.abs(guess - further).max() < 1e-9 * np.abs(further).max()


@pytest.mark.parametrize(("name", "most"), [("glm4moe", 1), ("glm4moe", 4), (draft_files.STATES, 4)])
def test_every_bit_is_the_same_with_drafts(name: str, most: int, pair: Callable[..., tuple[Model, Path]]) -> None:
    """Greedy and sampled, several sequences at once; also on a model with a recurrent state."""
    model, path = pair(name)
    work = jobs()
    speculator = Eager(HeadDrafter(opened(model, path)), most)
    assert results(cpu(model), speculator, work) == results(cpu(model), None, work)
    assert 20 < speculator.accepted < speculator.drafted


def on_wgpu(model: Model, n_pages: int) -> PagedEngine:
    if "wgpu" not in engines.ENGINES:
        pytest.skip("wgpu or a Vulkan driver is not installed")
    return engines.create("wgpu", model, n_pages=n_pages)


@pytest.mark.parametrize(
    "make",
    [
        ReferenceEngine,
        lambda model, **k: CudaEngine(model, device=on_cuda.device(), **k),
        pytest.param(on_wgpu, marks=pytest.mark.slow),
    ],
)
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


def test_guesses_are_those_of_one_pass_over_the_whole_text(pair: Callable[..., tuple[Model, Path]]) -> None:
    """A head that reads every row: prompt in chunks, drafts taken back, page ends, a prefix from the cache."""
    model, path = pair(form=FORMS["norms"])
    head = opened(model, path)
    speculator = Eager(HeadDrafter(head), 2)
    drafter, guesses = speculator.drafter, dict[int, list[int]]()
    assert drafter
    draft = drafter.draft

    def noted(wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        found = draft(wanted)
        guesses.update({len(sequence.ids): tokens for sequence, tokens in found.items()})
        return found

    drafter.draft = noted  # type: ignore[method-assign]
    generator = Generator(cpu(model), Tokenizer.from_gguf(model.file), n_ctx=256, chunk=40, speculator=speculator)
    prompt = np.random.default_rng(2).integers(3, 300, 70).tolist()
    trunk = cpu(model)
    block = trunk.beside(head.graph, 64, head.model)  # type: ignore[misc]
    fuse = block.beside(head.fuse, 1)  # type: ignore[misc,arg-type]
    for longer in ([], [3, 1, 4]):
        guesses.clear()
        result = finished(generator, prompt_ids=[*prompt, *longer], params=SAMPLED, max_tokens=30, ignore_eos=True)
        ids, pages = np.array([*result.prompt_ids, *result.ids], np.int32), np.arange(4, dtype=np.int32)
        nodes = trunk.forward([Chunk(ids, 0, pages, "none")], head.reads)[0].nodes
        rows = np.concatenate([nodes[name] for name in head.reads], axis=1)
        g = fuse.forward([Chunk(ids[:0], 0, 0 * pages, "all", rows={ROWS: rows})])[0].logits
        logits = block.forward([Chunk(ids[1:], 0, pages, "all", rows={HIDDEN: g[:-1]})])[0].logits
        assert head.tokens is not None and len(guesses) > 20
        expected = head.tokens[logits.argmax(axis=1)]
        assert all(tokens[0] == expected[at - 2] for at, tokens in guesses.items())


def test_rows_before_layers(tmp_path: Path) -> None:
    """The residual stream, under the names of other architectures."""
    for name, inside, after in (
        ("glm4moe", "l_out-0", "l_out-1"), (draft_files.STATES, "l_out-0", "l_out-1"), ("deepseek2", "l_out-0", None),
    ):  # fmt: skip
        graph = load(open_file(draft_files.make(tmp_path / "a.gguf", name))).graph
        assert row_before(graph, 0) == "embd" and row_before(graph, 1) == inside
        assert after in (None, row_before(graph, graph.layers.stop))
        assert row_before(graph, graph.layers.stop + 1) is None


BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("no layers", {"keys": {"eagle3.target_layers": None}}, "target_layers: bad value .found None, expected 3"),
    ("two layers", {"form": Form(layers=(0, 1))}, "target_layers.*expected 3 numbers of layers"),
    ("a layer too many", {"form": Form(layers=(0, 1, 9))}, "is the head of another model .found layer 9"),
    (
        "another width",
        {"keys": {"eagle3.target_hidden_size": 32}, "replaced": {"fc.weight": np.zeros((64, 96))}},
        "is the head of another model .found rows of 32 numbers, expected 64",
    ),
    ("no fc", {"replaced": {"fc.weight": None}}, "fc.weight"),
    ("a narrow fc", {"replaced": {"fc.weight": np.zeros((32, 192))}}, "fc.weight does not fit .found 32 rows"),
    ("ids outside", {"replaced": {"d2t": np.arange(100, 380)}}, "d2t has ids outside the model's vocabulary"),
    ("a short map", {"replaced": {"d2t": np.arange(5)}}, r"d2t does not fit output.weight .found I64 \[5\]"),
    ("a map of floats", {"replaced": {"d2t": np.zeros(280)}}, r"d2t does not fit output.weight .found F32"),
    ("no map", {"replaced": {"d2t": None}}, "has another vocabulary .found 280 tokens and no d2t, expected 320"),
    ("another block", {"keys": {"eagle3.block_count": 2}}, "block_count"),
    (
        "another vocabulary",
        {"keys": {"tokenizer.ggml.tokens": ["xyz", *tiny.TOKENS[1:]]}},
        "another vocabulary .token 0",
    ),
)


@pytest.mark.parametrize(("options", "match"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_heads_that_do_not_fit_are_refused(
    options: dict[str, Any], match: str, pair: Callable[..., tuple[Model, Path]], tmp_path: Path
) -> None:
    path = eagle_files.make(tmp_path / "bad.gguf", pair()[0].file.path, **options)
    with pytest.raises(AssayError, match=rf"--draft .*bad\.gguf: .*{match}"):
        assay.load(pair()[0].file.path, engine="cpu", draft=str(path)).close()


def test_a_head_without_a_vocabulary_is_taken(pair: Callable[..., tuple[Model, Path]], tmp_path: Path) -> None:
    keys = dict.fromkeys(draft_files.TOKENIZER)
    path = eagle_files.make(tmp_path / "bare.gguf", pair()[0].file.path, keys=keys)
    with assay.load(pair()[0].file.path, engine="cpu", draft=str(path)) as model:
        assert len(model.generate("hello", max_tokens=5, ignore_eos=True).ids) == 5


def test_the_library_and_auto(pair: Callable[..., tuple[Model, Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, head = pair()
    path = model.file.path
    given: list[dict[str, Any]] = [
        {"max_tokens": 40, "ignore_eos": True, "params": params} for params in (GREEDY, SAMPLED)
    ]
    with assay.load(path, engine="cpu", lookahead=False) as plain:
        expected = [plain.generate("hello world", **options).ids for options in given]
    with assay.load(path, engine="cpu", draft=str(head)) as drafts:
        assert [drafts.generate("hello world", **options).ids for options in given] == expected
    seen: list[Speculator | None] = []

    def rates(engine: Any, tokenizer: Any, speculator: Speculator | None) -> float:
        seen.append(speculator)
        return measured(engine, tokenizer, speculator) * 0 + len(seen)  # the last way wins

    measured = draft_choice.tokens_per_second
    monkeypatch.setattr(draft_choice, "tokens_per_second", rates)
    with assay.load(path, engine="cpu", draft=f"auto:{head}") as chosen:
        assert chosen.opened.draft_choice.startswith(f"--draft auto: {head} (")
        assert [chosen.generate("hello world", **options).ids for options in given] == expected
    assert isinstance(seen[-1] and seen[-1].drafter, HeadDrafter)


def test_the_command_line(
    pair: Callable[..., tuple[Model, Path]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))

    def said(code: int, *arguments: str) -> tuple[str, str]:
        assert main(list(arguments)) == code
        return capsys.readouterr()

    model, head = str(pair()[0].file.path), str(pair()[1])
    ask = ("-p", "hello", "-n", "30", "--temp", "0", "--engine", "cpu")
    assert said(0, "run", model, *ask, "--draft", head)[0] == said(0, "run", model, *ask)[0]
    assert f"{head} " in said(0, "run", model, *ask, "-v", "--draft", f"auto:{head}")[1].partition("tokens per")[2]
    refused = said(2, "run", head, *ask)[1]
    assert "is an EAGLE-3 head and no model" in refused and "--draft" in refused
    assert "draft head  an EAGLE-3 head" in said(0, "inspect", head)[0]


def test_the_cache_of_the_head_counts(pair: Callable[..., tuple[Model, Path]]) -> None:
    model, head = pair()
    sizes = [open_model(model.file.path, OpenOptions("cpu", draft=d)).cache_bytes for d in (None, str(head))]
    assert sizes[1] > sizes[0]
