"""`assay run`: prompts from everywhere, the JSON object, streaming, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.gguf import open_file
from assay.runtime import sampler, sequence
from assay.text import Tokenizer
from tests import tiny
from tests.cli.conftest import Assay, environment

GREEDY = ("--temp", "0", "-n", "8")
REFERENCE = ("--engine", "reference")


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(model))


def test_the_object(here: Assay, base_model: Path, tokenizer: Tokenizer) -> None:
    found = result(here("run", base_model, "-p", "hello world", *GREEDY, "--json", "--logprobs", "2"))
    assert found["prompt_ids"] == tokenizer.encode("hello world")
    assert len(found["ids"]) == 8
    assert found["text"] == tokenizer.decode(found["ids"], special=False)
    assert found["finish_reason"] == "length"
    assert found["timing"]["prompt_tokens"] == len(found["prompt_ids"])
    assert found["timing"]["tokens"] == 8
    assert found["engine"]
    first = found["logprobs"][0]
    assert first["id"] == found["ids"][0] == first["top"][0]["id"]
    assert first["logprob"] == first["top"][0]["logprob"] < 0
    assert len(first["top"]) == 2


def test_the_prompt_may_come_from_anywhere(here: Assay, base_model: Path, tmp_path: Path) -> None:
    text = "hello\nworld é\n"
    file = tmp_path / "prompt.txt"
    file.write_text(text)
    expected = result(here("run", base_model, "-p", text, *GREEDY, "--json"))
    ids = ",".join(map(str, expected["prompt_ids"]))
    for args, stdin in (
        ((base_model, "-f", file), ""),
        ((base_model, "-f", "-"), text),
        ((base_model,), text),
        ((base_model, "--ids", ids), ""),
        ((base_model, "--ids", f"[{ids.replace(',', ', ')}]"), ""),
        (("-p", text, base_model), ""),
        (("-e", "-p", r"hello\nworld é\n", base_model), ""),
    ):
        found = result(here("run", *args, *GREEDY, "--json", stdin=stdin))
        assert (found["prompt_ids"], found["ids"]) == (expected["prompt_ids"], expected["ids"]), args


def test_the_chat_template_is_applied_unless_raw(here: Assay, model: Path, tokenizer: Tokenizer) -> None:
    chat = result(here("run", model, "-p", "hi", *GREEDY, "--json"))
    assert tokenizer.decode(chat["prompt_ids"]) == "<s><|turn|> user\nhi<|end|> \n<|turn|> assistant\n"
    raw = result(here("run", model, "--raw", "-p", "hi", *GREEDY, "--json"))
    assert raw["prompt_ids"] == tokenizer.encode("hi")
    system = result(here("run", model, "--system", "be brief", "-p", "hi", *GREEDY, "--json"))
    assert tokenizer.decode(system["prompt_ids"]).startswith("<s><|turn|> system\nbe brief<|end|>")


def test_a_system_message_needs_a_template(here: Assay, model: Path, base_model: Path) -> None:
    for args in ((model, "--raw"), (base_model,)):
        done = here("run", *args, "--system", "x", "-p", "hi")
        assert done.returncode == 2
        assert "--system: needs a chat template" in done.stderr


def test_text_goes_to_stdout_and_speed_to_stderr(here: Assay, base_model: Path) -> None:
    expected = result(here("run", base_model, "-p", "hi", *GREEDY, "--json"))
    done = here("run", base_model, "-p", "hi", *GREEDY)
    assert done.stdout.rstrip("\n") == expected["text"].rstrip("\n")
    assert done.stderr == ""
    for option in ("--stats", "--verbose", "-v"):
        asked = here("run", base_model, "-p", "hi", *GREEDY, option)
        assert asked.stdout == done.stdout
        assert "answer 8 tokens" in asked.stderr
        assert "ended by length" in asked.stderr


def test_the_model_and_the_prompt_in_any_order(here: Assay, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result(here("run", base_model, "-p", "hello world", *GREEDY, "--json"))["prompt_ids"]
    for args in (
        (base_model, "hello world"),
        (base_model, "hello", "world"),
        ("-m", base_model, "hello world"),
        ("hello world", "-m", base_model),
        ("--model", base_model, "-p", "hello world"),
    ):
        assert result(here("run", *args, *GREEDY, "--json"))["prompt_ids"] == expected, args
    monkeypatch.setattr("assay.runtime.hub.DEFAULT", str(base_model))  # a sentence is no model
    assert result(here("run", "hello world", *GREEDY, "--json"))["prompt_ids"] == expected


def test_standard_input_comes_before_the_prompt(here: Assay, base_model: Path) -> None:
    expected = result(here("run", base_model, "-p", "some notes\n\nSummarise.", *GREEDY, "--json"))["prompt_ids"]
    for args in (("-p", "Summarise."), ("Summarise.",)):
        found = result(here("run", base_model, *args, *GREEDY, "--json", stdin="some notes\n"))
        assert found["prompt_ids"] == expected


def test_words_of_other_programs(here: Assay, base_model: Path) -> None:
    expected = result(here("run", base_model, "-p", "hi", *GREEDY, "--json"))
    done = here("run", "-m", base_model, "-p", "hi", "--temperature", "0", "--num-predict", "8", "-no-cnv",
                "-fa", "on", "--no-warmup", "-b", "512", "-c", "64", "-t", "1", "--json")  # fmt: skip
    assert result(done)["ids"] == expected["ids"]
    assert "-fa: ignored; attention has only one implementation" in done.stderr
    assert done.stderr.count("\n") == 3


def test_the_form_of_an_answer(here: Assay, base_model: Path, tmp_path: Path) -> None:
    found = result(here("run", base_model, "-p", "hi", "--grammar", 'root ::= "yes" | "no"', "--json"))
    assert found["text"] in ("yes", "no")
    rule = tmp_path / "rule.gbnf"
    rule.write_text('root ::= "maybe"')
    assert here("run", base_model, "-p", "hi", "--grammar-file", rule).stdout == "maybe\n"
    schema = '{"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": false}'
    assert json.loads(here("run", base_model, "-p", "hi", "-j", schema).stdout) == {"n": 7}
    done = here("run", base_model, "-p", "hi", "-j", "{")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_seed_repeats(here: Assay, base_model: Path) -> None:
    args = ("run", base_model, "-p", "hi", "-n", "12", "--temp", "2", "--json", "--seed")
    assert result(here(*args, "7"))["ids"] == result(here(*args, "7"))["ids"]
    assert result(here(*args, "7"))["ids"] != result(here(*args, "8"))["ids"]


def test_stop_and_bias(here: Assay, base_model: Path) -> None:
    whole = result(here("run", base_model, "-p", "hi", "-n", "20", "--temp", "0", "--json"))
    stop = whole["text"][3:5]
    cut = result(here("run", base_model, "-p", "hi", "-n", "20", "--temp", "0", "--json", "--stop", stop))
    assert (cut["finish_reason"], cut["text"]) == ("stop", whole["text"][: whole["text"].index(stop)])
    ended = result(here("run", base_model, "-p", "hi", "--json", "--logit-bias", "2+1000"))
    assert (ended["finish_reason"], ended["ids"], ended["text"]) == ("eos", [2], "")
    forbidden = whole["ids"][0]
    other = result(here("run", base_model, "-p", "hi", *GREEDY, "--json", "-l", f"{forbidden}-inf"))
    assert forbidden not in other["ids"]


def test_the_context_ends_it(here: Assay, base_model: Path) -> None:
    found = result(here("run", base_model, "-p", "hi", "--temp", "0", "--ignore-eos", "-c", "32", "--json"))
    assert found["finish_reason"] == "context"
    assert len(found["prompt_ids"]) + len(found["ids"]) == 33


def test_dry_with_breakers(here: Assay, base_model: Path) -> None:
    """The default breakers are looked up in the vocabulary; the run differs from one without DRY."""
    args = ("run", base_model, "-p", "hi", "-n", "40", "--temp", "0", "--ignore-eos", "--json")
    plain, dry = result(here(*args)), result(here(*args, "--dry-multiplier", "20"))
    assert plain["ids"] != dry["ids"]


def test_logprobs_need_json(here: Assay, base_model: Path) -> None:
    done = here("run", base_model, "-p", "hi", "--logprobs", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_engines_and_precisions(here: Assay, base_model: Path) -> None:
    for precision in ("f64", "f32"):
        args = ("run", base_model, "-p", "hi", *GREEDY, "--engine", "reference", "--precision", precision, "--json")
        assert result(here(*args))["engine"] == "reference"
    for wrong in (["--engine", "abacus"], ["--engine", "reference", "--precision", "f7"]):
        done = here("run", base_model, "-p", "hi", *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_ctrl_c_ends_the_process_in_order(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "long.gguf", n_ctx=100_000, template=None)
    args = ["run", path, "-p", "hi", "--temp", "2", "--ignore-eos", "--seed", "1", "-c", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.read(5)  # text comes while the model still talks
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"ended by interrupted" in errors


def test_ctrl_c_keeps_the_partial_answer(here: Assay, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes between two steps, after the third token was drawn."""
    drawn = []

    def draw(*args: Any, **options: Any) -> sampler.Choice:
        drawn.append(sampler.sample(*args, **options))
        if len(drawn) == 3:
            signal.raise_signal(signal.SIGINT)
        return drawn[-1]

    monkeypatch.setattr(sequence, "sample", draw)
    done = here("run", base_model, "-p", "hi", "--temp", "0", "--ignore-eos", "--json")
    assert done.returncode == 130
    found = json.loads(done.stdout)
    assert found["finish_reason"] == "interrupted"
    assert found["ids"] == [choice.id for choice in drawn]
    assert len(drawn) == 3


def test_a_real_model_tells_its_story(here: Assay, stories260k: Path, shared_dir: Path) -> None:
    golden = json.loads((shared_dir / "data/golden/stories_greedy_f32_numpy.json").read_text())["stories260K"]
    found = result(here("run", stories260k, "-p", "", "--temp", "0", "-n", "200", "--json", *REFERENCE))
    assert found["prompt_ids"] == golden["prompt_ids"]
    assert found["ids"] == golden["greedy_ids"]
    assert found["text"].strip() == golden["text"].strip()


@pytest.mark.slow
def test_the_default_model_answers(here: Assay, smollm2: Path, shared_dir: Path) -> None:
    """Prompt ids and greedy answer of a chat as recorded from llama.cpp, with no model named."""
    golden = json.loads((shared_dir / "data/golden/smollm2_greedy.json").read_text())["chat"][0]
    found = result(
        here("run", "-p", golden["user"], "--temp", "0", "-n", str(len(golden["greedy_ids"])), "--json", *REFERENCE)
    )
    assert found["prompt_ids"] == golden["prompt_ids"]
    assert found["ids"] == golden["greedy_ids"]
    assert found["finish_reason"] == "eos"
