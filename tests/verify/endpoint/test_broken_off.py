"""Audits of servers that stop answering: nothing is concluded from silence, and a file of answers continues them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import assay
from assay import engines
from assay.cli import main
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.verify.endpoint.asking import Interviewer
from assay.verify.endpoint.audit_findings import AuditOptions, AuditResult
from assay.verify.endpoint.audit_report import headline, text
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.kept_answers import KeptAnswers
from assay.verify.endpoint.own_draws import judged_draws
from tests.synthetic import make_kquant
from tests.verify.endpoint.http_server import Reply, http_server, said
from tests.verify.endpoint.own_server import Habits, OwnServer
from tests.verify.endpoint.test_token_bets import SHORT

GONE = Reply(502, b"", {"Retry-After": "0.1"})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("broken") / "synthetic.gguf")


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[OwnServer]:
    with OwnServer(load(open_file(path)), Habits()) as server:
        yield server


class Served:
    """The engine behind HTTP, with a habit of its own; it answers `most` requests and is gone then."""

    def __init__(self, engine: OwnServer, most: int | None = None, habit: Mapping[str, Any] | None = None) -> None:
        self.engine, self.most, self.habit, self.asked = engine, most, habit or {}, 0

    def __call__(self, path: str, body: dict[str, Any], _headers: Mapping[str, str]) -> Reply:
        if self.most is not None and self.asked >= self.most:
            return GONE
        self.asked += 1
        try:
            return said(self.engine.ask(path, {**body, **self.habit}))
        except AssayError as error:
            return Reply(404, str(error).encode())


def _audited(engine: OwnServer, url: str, resume: Path | None = None) -> AuditResult:
    client = Client(url, engine.tokenizer, key="secret", resume=resume)
    options = AuditOptions(prompts=SHORT, threads=1, draws=False)
    return audit_endpoint(engine.model, client, options, lambda _: None)


def test_a_server_that_stops_answering_is_not_judged(engine: OwnServer) -> None:
    with http_server(Served(engine, 2)) as url:
        found = _audited(engine, url)
    assert found.verdict == "inconclusive" and found.unanswered == 1 and not found.findings, text(found)
    assert "got no answer" in headline(found) and any("502" in note for note in found.notes)


def test_an_audit_continues_from_its_file(engine: OwnServer, tmp_path: Path) -> None:
    kept = tmp_path / "answers.jsonl"
    first = Served(engine, 2)
    with http_server(first) as url:
        assert _audited(engine, url, kept).verdict == "inconclusive"
        with kept.open("ab") as file:
            file.write(b'{"path": "/v1/compl')  # killed while it wrote
        first.most = None
        whole = _audited(engine, url, kept)
        once = first.asked
        again = _audited(engine, url, kept)
    assert whole.verdict == "as claimed" and whole.requests == once, text(whole)
    assert again.verdict == whole.verdict and again.path == whole.path and first.asked == once
    assert "secret" not in kept.read_text()
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert lines[0]["url"] == url and len(lines) == once + 1


def test_equal_requests_have_their_answers_in_order_and_refusals_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    first = KeptAnswers(file, "http://a")
    for number in (1, 2):
        first.keep("/x", {"b": 1, "a": 2}, {"n": number})
    first.keep_refusal("/y", {}, "no")
    again = KeptAnswers(file, "http://a")
    assert [again.take("/x", {"a": 2, "b": 1}) for _ in range(3)] == [{"n": 1}, {"n": 2}, None]
    with pytest.raises(AssayError, match=r"^no$"):
        again.take("/y", {})
    assert again.used == 3


def test_files_that_are_no_answers_of_this_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    KeptAnswers(file, "http://a")
    with pytest.raises(AssayError, match="of another endpoint"):
        KeptAnswers(file, "http://b")
    for junk in (b"# notes\n", b"{}\n", b"no end of a line", b"\xff\xfe\n"):
        file.write_bytes(junk)
        with pytest.raises(AssayError, match="name another file"):
            KeptAnswers(file, "http://a")
        assert file.read_bytes() == junk


def test_exit_codes(engine: OwnServer, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 as claimed, 1 differs, 2 undecided."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n\n".join(SHORT))
    words = ["--model", str(path), "-t", "1", "--prompts", str(prompts), "--no-draws", "--no-chat", "--json"]
    hot = {"temperature": 0.8}
    for most, habit, code, verdict in (
        (None, {}, 0, "as claimed"),
        (1, {}, 2, "inconclusive"),
        (None, hot, 1, "differs"),
    ):
        with http_server(Served(engine, most, habit)) as url:
            assert main(["audit", url, *words]) == code
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict


@pytest.mark.skipif("cuda" in engines.ENGINES, reason="there is a card")
def test_an_engine_that_is_missing_is_named_before_anything_is_asked(engine: OwnServer) -> None:
    """The claim is computed on another engine only if that was asked for."""
    asked = list[str]()
    client = Client("here", engine.tokenizer, ask=lambda path, body: asked.append(path) or engine.ask(path, body))
    with pytest.raises(AssayError, match="cuda"):
        audit_endpoint(engine.model, client, AuditOptions(compute="cuda"), lambda _: None)
    assert not asked


def test_no_model_is_no_claim() -> None:
    with pytest.raises(AssayError, match="no model"):
        assay.audit("http://127.0.0.1:1")


class Strict:
    """A gateway that refuses settings beyond OpenAI's, before a server that has a filter of its own."""

    def __init__(self, engine: OwnServer, **habit: Any) -> None:
        self.engine, self.habit = engine, habit

    def __call__(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for key in body:
            if key in ("top_k", "min_p", "repeat_penalty"):
                raise AssayError(f"here: answered 400 (unknown field {key})")
        return self.engine.ask(path, {**body, **self.habit})


def test_a_filter_that_could_not_be_switched_off_is_not_held_against_a_server(engine: OwnServer) -> None:
    """Nothing in the request forbids it. The seed was asked for, so one that is ignored is found."""
    found = {}
    for name, habit in {"plain": {}, "filter": {"min_p": 0.5}, "one seed": {"seed": 5}}.items():
        notes = list[str]()
        client = Client("here", engine.tokenizer, ask=Strict(engine, **habit))
        found[name] = len(judged_draws(client, SHORT, 20, 1e-3, notes))
        assert any("takes no top_k" in note for note in notes)
    assert found == {"plain": 0, "filter": 0, "one seed": 1}
    shown = Interviewer(Client("here", engine.tokenizer, ask=Strict(engine)), None)
    assert shown.drawn(SHORT[0], 4, 1).places and not shown.unfiltered and shown.reading.notes
    client = Client("here", engine.tokenizer, ask=lambda path, body: engine.ask(path, {**body, "min_p": 0.5}))
    (finding,) = judged_draws(client, SHORT, 20, 1e-3, [])
    assert "not drawn as asked" in finding.words  # a server that takes the settings must honour them


@pytest.mark.parametrize("room", [115, 64])  # the first text has 107 tokens, the third one 118
def test_a_server_with_a_narrow_context_is_asked_for_what_fits(engine: OwnServer, room: int) -> None:
    """llama-server refuses prompts that its context has no room for."""

    def ask(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        asked = body.get("prompt") or body.get("messages", [{"content": ""}])[-1]["content"]
        length = len(engine.tokenizer.encode(asked))
        if length > room:
            words = f"request ({length} tokens) exceeds the available context size ({room} tokens), try increasing it"
            raise AssayError(f'here: answered 400 ({{"error":{{"code":400,"message":"{words}"}}}})')
        return engine.ask(path, body)

    client = Client("here", engine.tokenizer, ask=ask)
    found = audit_endpoint(engine.model, client, AuditOptions(threads=1, draws=False, seed=1), lambda _: None)
    assert found.verdict == "as claimed", text(found)
    assert any("texts were cut to 24 tokens, because one was refused: here: answered 400" in n for n in found.notes)
