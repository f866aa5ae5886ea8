"""Where options may stand, and the range of every number that a verb takes."""

from __future__ import annotations

import argparse
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli import parse, serve, verb_parser, verbs
from assay.cli.foreign_options import IGNORED, RENAMED
from assay.errors import AssayError
from assay.runtime.params import LIMITS, SamplerParams
from tests.cli.conftest import Assay

# For every verb with positionals: its positional words, and options that take a value, a flag, and none.
ORDERS = {
    "run": (["m", "What is 2+2?"], ["--temp", "0", "--raw", "-n", "8"]),
    "chat": (["m"], ["--temp", "0", "-v"]),
    "serve": (["a", "b"], ["--port", "0", "--json", "--cluster", "local:2"]),
    "pull": (["m"], ["--json"]),
    "show": (["m"], ["--template"]),
    "search": (["llama"], ["--json"]),
    "rm": (["a", "b"], ["--json"]),
    "inspect": (["m"], ["--graph", "-c", "64"]),
    "tokenize": (["m", "some text"], ["--no-bos", "--system", "x"]),
    "embed": (["m", "a cat", "a dog"], ["-p", "text", "--dimensions", "4"]),
    "trace": (["m"], ["-p", "text", "-o", "out.npz"]),
    "diff": (["m", "dump.npz"], ["--json", "--window", "64"]),
    "check": (["m"], ["--engine", "cpu", "--lengths", "1,2"]),
    "diagnose": (["m", "dump.npz"], ["--map", "names.json", "--json"]),
    "watch": (["m"], ["-p", "text", "--once"]),
    "audit": (["http://localhost:1"], ["--model", "m", "--alpha", "0.01", "--json"]),
    "verify": (["answer.json"], ["-m", "m", "--positions", "4"]),
    "bisect": (["a", "b"], ["-m", "m", "--json"]),
    "kit": (["m"], ["-o", "kit", "--json"]),
    "bench": (["m"], ["-n", "4", "--json"]),
    "eval": (["m"], ["-f", "text", "--worst", "0"]),
    "imatrix": (["m"], ["-f", "text", "-o", "out"]),
    "quantize": (["in", "out", "Q4_0"], ["--dry-run", "-t", "2"]),
    "convert": (["folder", "out"], ["--json"]),
    "export-web": (["m"], ["-o", "site", "--raw"]),
    "completion": (["bash"], ["--json"]),
    "ci": (["assay.toml"], ["--report", "out", "--json"]),
}


def _options(words: list[str]) -> list[list[str]]:
    """The options of a list, each with its value."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


def test_every_verb_with_positionals_is_in_the_table() -> None:
    have = {v for v in verbs() if any(not a.option_strings for a in verb_parser(v)._actions)}
    assert have == set(ORDERS)


@pytest.mark.parametrize("verb", ORDERS)
def test_options_stand_before_between_and_after_the_words(verb: str) -> None:
    words, options = ORDERS[verb]
    pairs = _options(options)
    expected = vars(parse(verb, [*words, *options]))
    assert vars(parse(verb, [*options, *words])) == expected
    for at in range(len(words) + 1):  # all options at one place between the words
        assert vars(parse(verb, [*words[:at], *options, *words[at:]])) == expected
    rows = zip_longest([[word] for word in words], pairs, fillvalue=[])
    mixed = [part for row in rows for parts in row for part in parts]
    assert vars(parse(verb, mixed)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["m", "--temp", "0", "hi"], {"words": ["m", "hi"], "temp": 0.0}),
        (["m", "-n64", "hi"], {"words": ["m", "hi"], "predict": 64}),
        (["-vn", "5", "m", "hi"], {"words": ["m", "hi"], "predict": 5, "stats": True}),
        (["m", "--temp=0", "hi"], {"words": ["m", "hi"], "temp": 0.0}),
        (["m", "-n", "-1", "hi"], {"words": ["m", "hi"], "predict": -1}),
        (["m", "-p", "-x is an option"], {"words": ["m"], "prompt": "-x is an option"}),
        (["m", "-p", "-x"], {"words": ["m"], "prompt": "-x"}),
        (["m", "--prompt", "--weird"], {"words": ["m"], "prompt": "--weird"}),
        (["m", "-5 degrees"], {"words": ["m", "-5 degrees"]}),
        (["m", "--temp", "0", "--", "--help", "-n"], {"words": ["m", "--help", "-n"], "temp": 0.0}),
        (["-m", "m", "--", "-ngl"], {"model": "m", "words": ["-ngl"]}),
        (["m", "--max-tokens", "9", "hi"], {"words": ["m", "hi"], "predict": 9}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_lines_that_people_type(line: list[str], expected: dict[str, object]) -> None:
    found = vars(parse("run", line))
    assert {key: found[key] for key in expected} == expected


def test_an_option_between_model_and_prompt_answers(here: Assay, base_model: Path) -> None:
    done = here("run", base_model, "--temp", "0", "hello", "-n", "2", "--raw")
    assert done.returncode == 0, done.stderr
    assert done.stdout == here("run", base_model, "hello", "--raw", "--temp", "0", "-n", "2").stdout


# --- numbers

# The range of each numeric option. Options of the same name have the same range in every verb, unless VERB is given.
RANGES: dict[str, tuple[list[str], list[str]]] = {
    "--temp": (["0", "0.7", "5"], ["-1", "-0.001"]),
    "--top-k": (["0", "40", "-1"], ["1.5", "9" * 20]),
    "--top-p": (["0", "1"], ["-0.1", "1.1"]),
    "--min-p": (["0", "1"], ["-0.1", "1.1"]),
    "--typical": (["0", "1"], ["-0.1", "1.1"]),
    "--top-n-sigma": (["-1", "0", "2"], ["x"]),
    "--reasoning-budget": (["-1", "0", "512"], ["-2", "1.5"]),
    "--keep": (["-1", "0", "64"], ["-2", "1.5"]),
    "--repeat-last-n": (["-1", "0", "64"], ["-2", "1.5"]),
    "--repeat-penalty": (["1", "0.5"], ["0", "-1"]),
    "--frequency-penalty": (["-2", "0", "2"], ["x"]),
    "--presence-penalty": (["-2", "0", "2"], ["x"]),
    "--dry-multiplier": (["0", "0.8"], ["-1"]),
    "--dry-base": (["1.75"], ["-1"]),
    "--dry-allowed-length": (["0", "2"], ["-1"]),
    "--dry-penalty-last-n": (["-1", "0"], ["-2"]),
    "--xtc-probability": (["0", "1"], ["2", "-1"]),
    "--xtc-threshold": (["0", "1"], ["2", "-1"]),
    "--predict": (["-1", "0", "64"], ["-2", "1.5"]),
    "--seed": (["-1", "0", str(2**64 - 1)], ["-2", str(2**64)]),
    "--logprobs": (["0", "5"], ["-1"]),
    "--cpu-experts": (["0", "48"], ["-1", "10001", "x"]),
    "--threads": (["1", "1024"], ["0", "-1", "1025"]),
    "--tier": (["0", "2"], ["-1", "3"]),
    "--ctx-size": (["0", "4096"], ["-1", str(2**27)]),
    "--parallel": (["1"], ["0", "-1"]),
    "--port": (["0", "8080", "65535"], ["-1", "65536", "99999"]),
    "--http": (["1", "65535"], ["0", "65536"]),
    "--queue": (["0"], ["-1"]),
    "--chunk": (["1"], ["0"]),
    "--cache-size": (["1"], ["0", str(2**27)]),
    "--timeout": (["0.5", "600"], ["0", "-1"]),
    "--drain": (["0", "30"], ["-1"]),
    "--models-memory": (["4G", "512M", "1"], ["0", "-1", "4X", "9" * 30 + "T"]),
    "--upload": (["256M"], ["0", "-1", "4X"]),
    "--cache-dir-size": (["20G", "1"], ["0", "-1", "4X"]),
    "--models-max": (["1", "8"], ["0", "-1"]),
    "--sleep-idle": (["0.5", "300"], ["0", "-1"]),
    "--diagnose-memory": (["4G"], ["0", "-1", "4X"]),
    "--state-slots": (["2", "4096"], ["1", "-1", "4097"]),
    "--replicas": (["1", "1:4"], ["0", "-1", "4:1", "2000"]),
    "--split": (["2", "8G"], ["0", "-1"]),
    "--alpha": (["0.001", "0.05"], ["0", "1", "-1"]),
    "--pause": (["0", "1.5"], ["-1"]),
    "--texts-seed": (["0", "7"], ["-1"]),
    "--positions-seed": (["0", "7"], ["-1"]),
    "--positions": (["1"], ["0", "-1"]),
    "--audit": (["0", "0.5", "1"], ["-0.1", "1.1"]),
    "--dimensions": (["1"], ["0"]),
    "--window": (["4", "512"], ["1", "-4", "9" * 12]),
    "--windows": (["1"], ["0"]),
    "--chunks": (["1"], ["0"]),
    "--max-tokens": (["4"], ["0"]),
    "--worst": (["0"], ["-1"]),
    "--limit": (["1"], ["0"]),
    "--decode": (["1"], ["-1", "9" * 12]),
    "--prefill": (["1", "1,2"], ["0", "", "1,-1"]),
    "--depth": (["1", "1,2"], ["0", "", "1,-1"]),
    "--repeat": (["1"], ["0"]),
    "--lengths": (["1,2,7"], ["0", "-1", "", "9" * 12]),
    "--budget": (["4.2"], ["0", "-1"]),
    "--interval": (["0.1"], ["0", "-1"]),
    "--seconds": (["0.5", "30"], ["0", "-1"]),
    "--ids": (["1,2", "[0 5]"], ["-1", "1.5", str(2**31)]),
    "--tokens": (["1,2", "[0 5]"], ["-1", "1.5", str(2**31)]),
    "--check": ([], []),  # ids or a file
    "--logit-bias": (["5+1", "5-inf"], ["5"]),
}
HOSTILE = ("nan", "inf", "-inf", "1e999", "x", "", "--", "0x10", "9" * 5000, "\x00", "½")


def _numeric() -> list[tuple[str, argparse.Action]]:
    """Every option of every verb whose type is a function of this package that converts to numbers."""
    words = ("text_argument", "_template_argument", "_path")
    return [
        (verb, action)
        for verb in verbs()
        for action in verb_parser(verb)._actions
        if action.option_strings and action.type is not None and getattr(action.type, "__name__", "") not in words
    ]


def _long(action: argparse.Action) -> str:
    return next((o for o in action.option_strings if o in RANGES), action.option_strings[-1])


def test_every_numeric_option_has_a_range_in_the_table() -> None:
    assert {_long(action) for _, action in _numeric()} <= set(RANGES)


def test_every_number_is_held_to_its_range() -> None:
    for verb, action in _numeric():
        convert = action.type
        assert callable(convert)
        assert convert not in (int, float), f"{verb} {_long(action)}: a bare type has no range"
        good, bad = RANGES[_long(action)]
        for text in good:
            convert(text)
        for text in (*bad, *HOSTILE):
            if text == "" and _long(action) in ("--ids", "--tokens"):
                continue  # no ids
            with pytest.raises(argparse.ArgumentTypeError) as caught:
                convert(text)
                pytest.fail(f"assay {verb} {_long(action)} {text!r:.40} is accepted")
            assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", LIMITS)
def test_the_library_holds_the_same_ranges(name: str) -> None:
    low, high, above = LIMITS[name]
    with pytest.raises(AssayError, match=f"{name}: must be"):
        SamplerParams(**{name: low if above else low - 1})  # type: ignore[arg-type]
    if high < float("inf"):
        with pytest.raises(AssayError, match=f"{name}: must be"):
            SamplerParams(**{name: high + 1})  # type: ignore[arg-type]


def test_a_negative_temperature_is_one_line(here: Assay, base_model: Path) -> None:
    done = here("run", base_model, "-p", "x", "--temp", "-1")
    assert done.returncode == 2
    assert "argument --temp/--temperature: expected at least 0 (found -1)" in done.stderr
    done = here("serve", base_model, "--port", "99999")
    assert done.returncode == 2
    assert "argument --port: expected 0 to 65535 (found 99999)" in done.stderr


# --- nothing to say


@pytest.mark.parametrize("stdin", ["", "\n", "  \n\n"])
def test_an_empty_prompt_is_refused(here: Assay, model: Path, stdin: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text(stdin)
    for line in (["run", model], ["run", model, "-f", empty], ["run", model, "-f", "-"], ["run", model, "-p", stdin]):
        done = here(*line, "-n", "2", stdin=stdin)
        assert done.returncode == 2, line
        assert "is empty; give one with -p TEXT, -f FILE or on standard input" in done.stderr
        assert done.stdout == ""


def test_an_empty_prompt_without_a_template_is_the_bos_token(here: Assay, model: Path, base_model: Path) -> None:
    assert here("run", base_model, "-p", "", "-n", "2", "--temp", "0").returncode == 0
    assert here("run", model, "--raw", "-p", "", "-n", "2", "--temp", "0").returncode == 0


# --- any line


_WORDS = [
    "m",
    "qwen3",
    "-",
    "--",
    "",
    "-1",
    "-x",
    "=",
    "--=",
    "-p",
    "hi there",
    "@file",
    "\x00",
    "½",
    "--temp=",
    "-n=-1",
    "é",
    "-nn",
]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_line_is_parsed_or_refused_in_one_line(data: st.DataObject) -> None:
    verb = data.draw(st.sampled_from(verbs()))
    options = sorted({*verb_parser(verb)._option_string_actions, *RENAMED, *IGNORED} - {"-h", "--help"})
    words = data.draw(st.lists(st.sampled_from([*_WORDS, *options, *(f"{o}=x" for o in options)]), max_size=8))
    try:
        parse(verb, words)
    except AssayError as error:
        assert len(str(error)) < 4000


@pytest.mark.parametrize(("option", "other", "reason"), serve._EXCLUSIVE)
def test_options_of_serve_that_exclude_each_other(option: str, other: str, reason: str, tmp_path: Path) -> None:
    """Each pair is refused before a model is opened; a value is given to the options that take one."""
    verb = verb_parser("serve")._option_string_actions
    words = [w for name in (option, other) for w in ([name] if verb[name].nargs == 0 else [name, "1"])]
    cluster = ["--cluster", "local:2"] if other == "--split" else []
    with pytest.raises(AssayError, match=f"{option}: not with {other}: {reason}"):
        serve.run(parse("serve", [str(tmp_path / "m.gguf"), *words, *cluster]))
