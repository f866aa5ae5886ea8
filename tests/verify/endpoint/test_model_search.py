"""What is served, where no list has it: numbers, cut prompts, switches of templates, and the place of a difference."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.convert.conversion import convert
from assay.gguf import open_file
from assay.gguf.importance import Importance, ImportanceEntry
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.gguf.writer import Tensor, write
from assay.library.auditing import audit
from assay.models import Model, load
from assay.text import ChatTemplate, Tokenizer
from assay.verify.endpoint.alternatives import (
    Alternative,
    chat_prompts,
    cut_prompts,
    no_rope,
    penalties,
    rope_scales,
)
from assay.verify.endpoint.audit_findings import AuditOptions, AuditResult
from assay.verify.endpoint.audit_report import text
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import CHAT
from assay.verify.endpoint.fitted_numbers import Numbered, fitted
from assay.verify.endpoint.served_text import Place, ServedText
from assay.verify.endpoint.standings import Scoreboard
from tests.convert.folders import make
from tests.synthetic import make_kquant
from tests.verify.endpoint.http_server import http_server, said
from tests.verify.endpoint.own_server import Habits, OwnServer

TALK = [[{"role": "user", "content": "What is rain?"}]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make_kquant(tmp_path_factory.mktemp("model") / "claim.gguf")))


def with_keys(model: Model, path: Path, **changes: Any) -> Model:
    """The same model with other metadata under `llama.rope`."""
    file = model.file
    changed = {f"llama.rope.{key.replace('__', '.')}": value for key, value in changes.items()}
    kept = {key: file.metadata.typed(key) for key in file.metadata} | changed
    write(path, kept, [Tensor(t.name, t.shape, t.type, file.raw(t.name)) for t in file.tensors.values()])
    return load(open_file(path))


@pytest.fixture(scope="module")
def odd(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same model with a base of RoPE that nobody uses."""
    return with_keys(model, tmp_path_factory.mktemp("odd") / "odd.gguf", freq_base=31415.0)


@pytest.fixture(scope="module")
def yarned(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same model with YaRN."""
    yarn = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64}
    return with_keys(model, tmp_path_factory.mktemp("yarn") / "yarn.gguf", **yarn)


def numbered(right: float | None) -> Numbered:
    return Numbered(lambda p: Alternative(f"{p:g}", f"{p:g}", "rope"), (1e4, 1e5, 1e6), 100.0, 1e8, right)


@pytest.mark.parametrize("true", [3.1e3, 31415.0, 6.8e4, 2.2e5, 7e6])
def test_a_number_is_found_between_the_usual_ones(true: float) -> None:
    def loss(p: float) -> float:
        return abs(math.log(p / true)) ** 1.5

    known = {p: loss(p) for p in (*numbered(None).usual, 5e4)}
    found = fitted(numbered(5e4), known, lambda alternative: loss(float(alternative.name)))
    assert found is not None and float(found.name) == pytest.approx(true, rel=0.06)


def test_no_number_is_named_where_none_is_better() -> None:
    """The claim's own is the best; and a search that gains nothing ends early."""
    tried: list[str] = []

    def flat(alternative: Alternative) -> float:
        tried.append(alternative.name)
        return 1.0

    assert fitted(numbered(5e4), {1e4: 1.0, 5e4: 1.0, 1e5: 1.0}, flat) is None
    assert len(tried) <= 4
    assert fitted(numbered(5e4), {1e4: 1.0, 5e4: 0.0, 1e5: 1.0}, lambda a: abs(math.log(float(a.name) / 5e4))) is None


def test_no_rotation_is_an_alternative_of_its_own(model: Model) -> None:
    """Positions multiplied by next to nothing predict the same, and have another name."""
    served = ServedText((1, 7, 8, 9, 20), 2, (Place(5, {}, 9),))
    with ClaimedModel(model, threads=1) as claimed:
        (none,), (nearly,) = no_rope(model), rope_scales(model, [1e-6])
        rows = [found for a in (none, nearly) if (found := a.rows(claimed, served)) is not None]
        assert none.fault == "rope-missing" and np.allclose(*rows, atol=1e-3)
        assert not np.allclose(rows[0], claimed.rows(served), atol=1e-2)


def test_an_audit_goes_on_while_the_capital_grows(model: Model) -> None:
    """Two and a half times the honest noise at every block: too little for an alarm at first."""
    with ClaimedModel(model, threads=1) as claimed:
        board = Scoreboard(claimed, 1e-3, texts=[ServedText((1, 7), 1, (Place(1, {}, 7),) * 48)], alone=False)
        for blocks, odd in ((2, False), (12, True)):
            board.claim, board.gaps = [0.04**2] * blocks, [0.015**2] * blocks
            assert board.suspicious == odd and max(board.evidence_path()) < board.goal
        assert board.more_tokens()


def test_cut_prompts(model: Model) -> None:
    """By the number that the server counts; a prompt that is short enough stays as it is."""
    tokenizer = Tokenizer.from_gguf(model.file)
    long, short = (tuple(tokenizer.encode(t)) for t in ("a long text about " * 9, "a text"))
    texts = [ServedText((*ids, 5), len(ids), (Place(len(ids), {}, 5),)) for ids in (long, short)]
    found = {a.name: a for a in cut_prompts(tokenizer, texts, [(len(long), 20), (len(short), len(short))])}
    assert found["cut to the last 20 tokens"].prompts == {long: long[-20:], short: short}
    assert found["cut to BOS and the last 19 tokens"].prompts[long] == (long[0], *long[-19:])
    assert found["cut to the first 20 tokens"].prompts[long] == long[:20]
    assert {a.name for a in cut_prompts(tokenizer, texts, [])} >= {"cut to the last 32 tokens"}


def test_a_switch_of_thinking(model: Model) -> None:
    tokenizer = Tokenizer.from_gguf(model.file)
    source = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<off>{% endif %}"
    found = chat_prompts(tokenizer, ChatTemplate(source, name="x"), TALK)
    (other,) = (a for a in found if "enable_thinking" in a.words)
    assert other.words.endswith("set to false") and len(next(iter(other.prompts.values()))) > 0


def test_a_penalty_in_tokens_alone(model: Model) -> None:
    """It lowers the tokens that came before, and no others."""
    served = ServedText((1, 7, 7, 9), 2, (Place(3, {}, 9),))
    with ClaimedModel(model, threads=1) as claimed:
        plain = claimed.rows(served)[0]
        for alternative in penalties():
            rows = alternative.rows(claimed, served)
            assert rows is not None
            gap = plain - rows[0]
            nats, _, each = alternative.penalty or (0, 0, False)
            assert gap[7] == pytest.approx(nats * (2 if each else 1), abs=1e-5)
            assert set(np.flatnonzero(gap).tolist()) == {1, 7}


def audited(model: Model, ask: Any) -> AuditResult:
    client = Client("own", Tokenizer.from_gguf(model.file), ask=ask)
    return audit_endpoint(model, client, AuditOptions(threads=1, draws=False), progress=lambda _: None)


def test_an_odd_base_is_named(model: Model, odd: Model) -> None:
    with OwnServer(odd, Habits()) as server:
        found = audited(model, server.ask)
    words = found.findings[0].words
    assert words.startswith("RoPE with a base of about 3"), text(found)
    assert float(words.split("about ")[1].split(" ")[0]) == pytest.approx(31415, rel=0.06)


def test_yarn_is_named(model: Model, yarned: Model) -> None:
    """Where it is served and not claimed, and where it is claimed and not served."""
    with OwnServer(yarned, Habits()) as server:
        added = audited(model, server.ask)
    with OwnServer(model, Habits()) as server:
        left_out = audited(yarned, server.ask)
    found = re.fullmatch(r"RoPE with YaRN, a factor of about (\S+) for a context .*", added.findings[0].words)
    assert found and float(found[1]) == pytest.approx(4, rel=0.1), text(added)
    assert "RoPE without the YaRN of the file" in left_out.findings[0].words, text(left_out)


@pytest.mark.slow
def test_another_quantisers_file_is_thought_of(model: Model, tmp_path: Path) -> None:
    """Of the same original, in the same mix: it is detected, no list has it, and the words say so."""
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    entries = {
        t.name: ImportanceEntry(np.geomspace(0.01, 10, t.shape[-1], dtype=np.float32)[None], np.ones(1, np.float32))
        for t in model.file.tensors.values() if len(t.shape) > 1
    }  # fmt: skip
    quantize(model.file, one, mix_by_name("Q4_K_M"), allow_requantize=True)
    quantize(model.file, other, mix_by_name("Q4_K_M"), allow_requantize=True, importance=Importance(entries))
    with OwnServer(load(open_file(other)), Habits()) as server:
        found = audited(load(open_file(one)), server.ask)
    assert "rounded in another way" in found.findings[0].words and found.findings[0].confidence < 0.5, text(found)


def test_a_folder_of_safetensors_is_the_claim(tmp_path: Path) -> None:
    """It is converted. Eight bits are noise for a file in floats, which a note says."""
    folder, file = make(tmp_path / "hf", "llama"), tmp_path / "served.gguf"
    convert(folder, file)
    with (
        OwnServer(load(open_file(file)), Habits()) as server,
        http_server(lambda path, body, _: said(server.ask(path, body))) as url,
    ):
        found = audit(url, folder, others=[folder], chat=False, draws=False, tokens=24, threads=1)
    assert found.verdict != "differs" and found.model == "hf.gguf" and found.result.distance < 0.1, repr(found)
    assert any("weights in 8 bits" in note for note in found.result.notes)


def test_scores_that_are_larger_are_not_called_yarn_alone(model: Model, tmp_path: Path) -> None:
    """A wrong scale of attention looks like YaRN in short texts."""
    longer = with_keys(model, tmp_path / "longer.gguf", scaling__attn_factor=1.15)
    with OwnServer(longer, Habits()) as server:
        found = audited(model, server.ask)
    first = found.findings[0]
    assert any("scores of attention" in words for words in (first.words, *first.equivalent)), text(found)
    assert "YaRN" not in first.words or first.confidence < 0.9, text(found)


def test_what_differs_in_conversations_is_the_model_or_the_prompt(model: Model, odd: Model) -> None:
    """A model that fails on conversations fails on their prompts as plain texts, too; a changed prompt does not."""
    with OwnServer(model, Habits()) as right, OwnServer(odd, Habits()) as wrong:
        assert right.template is not None
        mark = right.template.render(TALK[0])[:6]

        def on_conversations(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            talk = path == CHAT or mark in str(body["prompt"])[:12]
            return (wrong if talk else right).ask(path, body)

        def other_words(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            """As many tokens, other words."""
            if path == CHAT:
                said = body["messages"][-1]["content"]
                body = {**body, "messages": [{"role": "user", "content": said[1:] + said[:1]}]}
            return right.ask(path, body)

        by_model, by_prompt = audited(model, on_conversations), audited(model, other_words)
    assert by_model.verdict == "differs" and by_model.findings[0].area == "model", text(by_model)
    assert not any("chat prompt" in f.words for f in by_model.findings), text(by_model)
    assert by_prompt.verdict == "differs" and "chat prompt" in by_prompt.findings[0].words, text(by_prompt)
