"""Settings are typed: what an editor completes is what `settings` takes, and a type checker finds mistakes."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import assay
from assay.library.language_model import LanguageModel
from assay.library.settings import _OTHER, ALIASES, GenerationSettings
from tests import tiny

SRC = Path(__file__).parents[2] / "src"


def test_the_typed_settings_are_those_that_are_taken() -> None:
    taken = {*ALIASES, *_OTHER, *(field.name for field in fields(assay.SamplerParams))}
    assert set(get_type_hints(GenerationSettings)) == taken


@pytest.mark.parametrize("name", ["generate", "stream", "chat"])
def test_help_lists_every_setting(name: str) -> None:
    function = getattr(LanguageModel, name)
    shown = inspect.signature(function).parameters
    assert set(GenerationSettings.__annotations__) <= set(shown)
    assert all(p.kind is not p.VAR_KEYWORD for p in shown.values())
    assert "top_k: 'int | None' = None" in str(inspect.signature(function))
    assert ">>> model." in function.__doc__ or ">>> for event" in function.__doc__


def test_every_public_method_has_an_example() -> None:
    without = {"close", "detokenize", "ids", "batch", "evaluate"}  # docs/reference/python.md has theirs
    for name, function in inspect.getmembers(LanguageModel, inspect.isfunction):
        if not name.startswith("_") and name not in without:
            assert ">>> " in (function.__doc__ or ""), name
    assert ">>> " in (assay.load.__doc__ or "")


USES = """
import assay
from assay import LanguageModel

def good(model: LanguageModel) -> None:
    one: assay.Result = model.generate("a", max_new_tokens=3, temperature=0.5, stop=["x"], seed=None)
    ids: assay.Result = model.generate([1, 2], top_k=3)
    said: assay.Result = model.generate([{"role": "user", "content": "a"}], json_schema={"type": "object"})
    many: list[assay.Result] = model.generate(["a", "b"], min_p=0.1)
    model.chat("a", system="b", logprobs=2, logit_bias={3: 1.0})
    for event in model.stream("a", params=assay.SamplerParams(temp=0.0)):
        event.text.upper()

def bad(model: LanguageModel) -> None:
    model.generate("a", temprature=1)  # WRONG
    model.generate("a", temperature="hot")  # WRONG
    model.stream("a", top_k=1.5)  # WRONG
    model.chat("a", stop=3)  # WRONG
    model.generate(123)  # WRONG
"""


def test_a_type_checker_finds_mistakes(tmp_path: Path) -> None:
    """What mypy knows of the package is kept for the next run: it looks again at files that have changed."""
    pytest.importorskip("mypy")
    file = tmp_path / "uses.py"
    file.write_text(USES)
    options = ("--strict", "--no-error-summary", "--follow-imports=silent", f"--cache-dir={SRC.parent}/build/mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(file)],
        capture_output=True, text=True, env={"MYPYPATH": str(SRC), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )  # fmt: skip
    found = {
        int(line) for line in re.findall(r"^uses\.py:(\d+): error", done.stdout.replace(str(tmp_path) + "/", ""), re.M)
    }
    expected = {i for i, line in enumerate(USES.splitlines(), 1) if line.endswith("# WRONG")}
    assert found == expected, done.stdout + done.stderr


# --- what is no prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return assay.load(tiny.make(tmp_path_factory.mktemp("settings") / "tiny.gguf"))


@pytest.mark.parametrize(
    "prompt", [123, 1.5, None, True, object(), b"bytes", {"role": "user", "content": "a"}, [1.5], [b"x"]]
)
def test_what_is_no_prompt_is_one_line(model: LanguageModel, prompt: object) -> None:
    for call in (model.generate, model.stream, model.logits, model.embed, model.trace):
        with pytest.raises(assay.AssayError, match="must be a text, ids or messages"):
            call(prompt)  # type: ignore[operator]
    if not isinstance(prompt, list):
        with pytest.raises(assay.AssayError, match="messages: must be a text or a list of messages"):
            model.chat(prompt)  # type: ignore[arg-type]


def test_an_iterator_and_a_count_that_cannot_be(model: LanguageModel) -> None:
    with pytest.raises(assay.AssayError, match="must be a list, not an iterator"):
        model.generate(iter(["a"]))  # type: ignore[call-overload]
    for n in (0, -1, 1.5, True, "2"):
        with pytest.raises(assay.AssayError, match="n: must be a whole number"):
            model.generate("a", n=n)  # type: ignore[call-overload]


# --- what is shown


def test_a_generation_says_where_it_is(model: LanguageModel) -> None:
    generation = model.stream("hello", max_new_tokens=3, seed=1)
    assert repr(generation).endswith("not started, seed 1>")
    events = iter(generation)
    next(events)
    assert "1 token after" in repr(generation) and "running" in repr(generation)
    assert "running" in generation._repr_html_()
    list(events)
    assert "ended by length" in repr(generation)
    assert generation.text == generation.result.text


def test_an_answer_in_a_notebook_is_escaped(model: LanguageModel) -> None:
    result = model.generate("a", grammar='root ::= "<script>alert(1)</script>"', logprobs=1)
    page = result._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("probability") == len(result.ids)
    assert f"seed {result.seed}" in page


def test_dir_shows_the_public_names_alone() -> None:
    assert dir(assay) == sorted(assay.__all__)
    assert not [name for name in dir(assay) if name in ("import_module", "annotations", "TYPE_CHECKING", "_HOMES")]


# --- arguments of other types


@pytest.mark.parametrize(
    "given",
    [
        {"threads": "2"}, {"threads": 1.5}, {"threads": -1}, {"ctx_size": "8"}, {"ctx_size": -5}, {"ctx_size": 1.5},
        {"cache_size": "x"}, {"cache_size": -1}, {"parallel": 0}, {"parallel": "2"}, {"engine": 5}, {"precision": 3},
        {"kv_type": 5}, {"template": 5}, {"template_arguments": [1]}, {"draft": 5}, {"progress": 3},
    ],
    ids=str,
)  # fmt: skip
def test_options_of_load_that_cannot_be(model: LanguageModel, given: dict[str, Any]) -> None:
    with pytest.raises(assay.AssayError, match=f"{next(iter(given))}: must be"):
        assay.load(model.path, **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate("a", resume=5), "resume: must be token ids"),
        (lambda m: m.generate("a", resume=["x"]), "resume: must be token ids"),
        (lambda m: m.tokenize(5), "text: must be a text"),
        (lambda m: m.detokenize(5), "ids: must be token ids"),
        (lambda m: m.detokenize("12"), "ids: must be token ids"),
        (lambda m: m.detokenize(["x"]), "ids: must be token ids"),
        (lambda m: m.embed("a", dimensions="x"), "dimensions: must be a whole number"),
        (lambda m: m.trace("a", nodes=5), "nodes: must be a text"),
        (lambda m: m.trace("a", decode="x"), "decode: must be a whole number"),
        (lambda m: m.evaluate(5), "text: must be a text"),
        (lambda m: m.evaluate("a b", against=5), "against: must be a LanguageModel"),
        (lambda m: m.chat([5]), "messages: each must be an object with a role and a content"),
        (lambda m: m.chat([{"role": "user"}]), "messages: each must be an object with a role and a content"),
        (lambda m: m.chat("a", system=5), "system: must be a text"),
        (lambda m: m.chat("a", tools=5), "tools: must be a list"),
        (lambda m: m.chat("a", template_arguments=5), "template_arguments: must be a mapping"),
        (lambda m: m.batch(5), "requests: must be an iterable"),
        (lambda m: next(m.batch([5])).result, "request: must be a prompt and its settings"),
        (lambda m: next(m.batch([("a", 5)])).result, "request: must be a prompt and its settings"),
    ],
)
def test_arguments_that_cannot_be(model: LanguageModel, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(assay.AssayError, match=message):
        call(model)
