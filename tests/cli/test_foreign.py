"""Lines that users of llama.cpp, Ollama and vLLM type: they work, or one line says what to type."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from assay.cli import foreign, main, parse, verb_parser, verbs
from assay.cli.foreign_options import HINTS, IGNORED, RENAMED
from assay.errors import AssayError
from assay.serve.api.routes import ROUTES
from tests.cli.conftest import Assay

# A line as its users type it, and what assay makes of it.
LINES = [
    ("run m prompt", {"words": ["m", "prompt"]}),
    ("run -m m -p x -n 64 -c 4096 -t 4 --temp 0.7 -ngl 99", {"model": "m", "predict": 64, "ctx_size": 4096}),
    ("run m -temp 0.5 --top_k 3 --n_predict=9 -seed 7 -p x", {"temp": 0.5, "top_k": 3, "predict": 9, "seed": 7}),
    ("run -no-mmap m -ctx_size 64 -t4 x", {"ctx_size": 64, "threads": 4, "words": ["m", "x"]}),
    ("run m -p --top_k -n 3", {"prompt": "--top_k", "predict": 3}),
    ("run -m m -p x -fa -ngl -1 --keep -1 -b 512", {"model": "m", "prompt": "x"}),
    ("run -m m -fa on -p x --no-mmap --mlock --color", {"prompt": "x"}),
    ("run -fa m prompt", {"words": ["m", "prompt"]}),
    ("run -hf owner/repo:Q4_K_M -p x", {"model": "hf:owner/repo:Q4_K_M"}),
    ("run m prompt --verbose --nowordwrap --keepalive 5m", {"words": ["m", "prompt"], "stats": True, "wrap": False}),
    ("run m --max-tokens 9 --repetition-penalty 1.1 hi", {"predict": 9, "repeat_penalty": 1.1, "words": ["m", "hi"]}),
    ("serve -m m --host 0.0.0.0 --port 8000 -np 4 -ngl 99 --jinja -cb --metrics", {"port": 8000, "parallel": 4}),
    ("serve -m m -a name --slots --threads-http 8 --log-file x", {"alias": ["name"], "model": ["m"]}),
    (
        "serve m --max-model-len 8192 --max-num-seqs 16 --tensor-parallel-size 2 --gpu-memory-utilization 0.9 "
        "--served-model-name n --dtype auto --trust-remote-code --enable-auto-tool-choice --tool-call-parser hermes",
        {"models": ["m"], "ctx_size": 8192, "parallel": 16, "alias": ["n"]},
    ),
    ("serve m --ssl-certfile c.pem --ssl-keyfile k.pem", {"tls_cert": "c.pem", "tls_key": "k.pem"}),
    ("serve -m m --rerank --draft-max 16 -v --cache-ram 8192 --no-slots -to 60", {"models": [], "timeout": 60}),
    ("serve m --disable-log-stats --uvicorn-log-level info --max-logprobs 20", {"models": ["m"]}),
    ("bench -m m -p 512 -n 128 -r 3 -ngl 99 -t 2", {"prefill": [512], "decode": 128, "repeat": 3, "threads": 2}),
    ("quantize in.gguf out.gguf Q4_K_M", {"model": "in.gguf", "output": "out.gguf", "type": "Q4_K_M"}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[line for line, _ in LINES])
def test_lines_of_other_programs_parse(line: str, expected: dict[str, object]) -> None:
    verb, *words = line.split()
    found = vars(parse(verb, words))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", HINTS)
def test_every_hint_is_one_line(name: str) -> None:
    verb = next(v for v in ("run", "serve", "embed", "list") if name not in verb_parser(v)._option_string_actions)
    with pytest.raises(AssayError, match=r"no such option; |which has no ") as caught:
        parse(verb, ["m", name, "x"])
    assert "\n" not in str(caught.value)


def test_a_hint_names_what_exists() -> None:
    """No hint and no note names an option, a verb or a route that assay lacks."""
    options = {option for verb in verbs() for option in verb_parser(verb)._option_string_actions}
    for name, said in [*HINTS.items(), *((name, why) for name, (_, why) in IGNORED.items())]:
        for option in re.findall(r"(?<![\w/])--?[a-z][\w-]*", said):
            assert option in options, f"{name}: {said}"
        for verb in re.findall(r"`assay ([\w-]+)", said):
            assert verb in verbs(), f"{name}: {said}"
        for route in re.findall(r"/[a-z0-9/]+(?= is always)", said):
            assert route in {spec.path for spec in ROUTES}, f"{name}: {said}"


def test_the_tables_do_not_contradict_each_other() -> None:
    tables = (set(RENAMED), set(IGNORED))
    assert not tables[0] & tables[1]
    assert not tables[1] & set(HINTS)
    for table in (foreign.VERBS, foreign.SAME_VERBS, foreign.VERB_HINTS):
        assert not set(table) & set(verbs())
    assert {*foreign.VERBS.values(), *foreign.SAME_VERBS.values()} <= set(verbs())
    known = {option for verb in verbs() for option in verb_parser(verb)._option_string_actions}
    assert set(RENAMED.values()) <= known


def test_verbs_of_other_programs(here: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    assert here("ls", "--json").stdout == here("list", "--json").stdout
    assert here("help", "ls").stdout == here("list", "--help").stdout
    for verb, words in (("stop", "Ctrl-C"), ("create", "Modelfiles"), ("push", "hf upload"), ("models", "assay list"),
                        ("qwen3", "did you mean `assay run qwen3`?"), ("hf:a/b", "assay run hf:a/b")):  # fmt: skip
        done = here(verb)
        assert done.returncode == 2
        assert words in done.stderr


def test_an_alias_names_a_served_model(here: Assay, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.serve import server

    seen = []

    async def run(config: server.Config, ready: object) -> None:
        seen.append([name for name, _ in config.models])

    monkeypatch.setattr(server, "run", run)
    assert main(["serve", str(model), "--alias", "gpt-4o"]) == 0
    assert main(["serve", str(model), str(model), "--alias", "a"]) == 0
    assert seen == [["gpt-4o"], ["a", "tiny"]]
    assert "2 names for 1 models" in here("serve", model, "--alias", "a", "--alias", "b").stderr
    assert "printable" in here("serve", model, "--alias", "a\nb").stderr


def test_ignored_options_are_said_once_each(here: Assay, base_model: Path) -> None:
    done = here("run", base_model, "-p", "x", "-n", "1", "--raw", "-ngl", "99", "--json")
    assert json.loads(done.stdout)["ids"]
    assert done.stderr.splitlines() == ["assay: -ngl: ignored; an engine runs all layers; --engine cuda uses a GPU"]


def test_an_option_for_a_model_is_no_request_for_help() -> None:
    """argparse reads -hf as -h, where a verb has no -m that it stands for."""
    for words in (["-hf", "x"], ["-hf=x"], ["-hfr", "x"]):
        with pytest.raises(AssayError, match="-hf"):
            parse("quantize", words)
