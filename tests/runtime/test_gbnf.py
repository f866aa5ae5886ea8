"""Grammars of llama.cpp mean here what they mean there, also where llguidance's converter alone would refuse them."""

from __future__ import annotations

import contextlib
import time

import pytest

llguidance = pytest.importorskip("llguidance")

from assay.runtime.gbnf import to_lark  # noqa: E402  needs llguidance

# A grammar, texts that it accepts, and texts that it does not.
CASES: list[tuple[str, list[str], list[str]]] = [
    ('root ::= ([0-9]+)? "x"', ["x", "12x"], ["12"]),
    ('root ::= ([a-z]{0,9}){0,9} "1"', ["1", "abc1"], ["a"]),
    ('root ::= ((("a"+)?)*)+ "b"', ["b", "aab"], ["c", "ac"]),
    ('root ::= ("a" | "b"+)? "c"', ["c", "ac", "bbc"], ["abc"]),
    ('root ::= ( "a" "b" ) {2} "c"', ["ababc"], ["abc"]),
    ('root ::= "a"{,3}', ["", "aaa"], ["aaaa"]),
    (r'root ::= "\u00e9" [\u00e8-\u00ea]', ["éè"], ["ee"]),
    (r"root ::= [^\u0000-\u001f]+", ["abc"], ["\n"]),
    (r'root ::= "\U0001f600" "\\u00e9"', ["\U0001f600\\u00e9"], ["\U0001f600é"]),
    (r'root ::= "\u0022" [\u005d]', ['"]'], ['"a']),
    ('root ::= start\nstart ::= "a" start | "b"', ["aab"], ["a"]),
    ('root ::= ws WS\nws ::= " "\nWS ::= "x"', [" x"], ["  "]),
    ('root ::= 1a 1-a\n1a ::= "a"\n1-a ::= "b"', ["ab"], ["aa"]),
    ("root ::= [a&&b]+", ["a&b"], ["c"]),
    ("root ::= [+--]+", ["+,-"], ["a"]),
    ("root ::= [a~~b-]+", ["a~-"], ["c"]),
    (r'root ::= "]" [\]]', ["]]"], ["]a"]),
    (r'root ::= "\"" [^"\\\x7F\x00-\x1F]* "\"" # a "comment" [', ['"a~"'], ['"\n"']),
    ('root ::= "€" [α-ω] "a/b" [/]', ["€βa/b/"], ["€ba/b/"]),
    ('start: "a" /[b-c]/', ["ab"], ["aa"]),
]


@pytest.mark.parametrize(("grammar", "accepted", "refused"), CASES, ids=[case[0] for case in CASES])
def test_a_grammar_accepts_its_texts_and_no_others(grammar: str, accepted: list[str], refused: list[str]) -> None:
    tokenizer = llguidance.LLTokenizer("byte")
    lark = to_lark(grammar)
    for text in accepted + refused:
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = tokenizer.tokenize_str(text)
        whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert whole == (text in accepted), text


@pytest.mark.parametrize(
    "grammar",
    ['root ::= "a', "root ::= [a", "root ::= [", r'root ::= "\ud800"', r"root ::= [\q]",
     'root ::= "a"{' + "9" * 5000 + "}", "root ::= " + "(" * 20000 + '"a"' + ")" * 20000],
    ids=lambda grammar: grammar[:20],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(
        Exception, match=r"at line 1|Lark|surrogate|5000 digits \(at most 9\)|nested too deeply"
    ) as caught:
        lark = to_lark(grammar)
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), lark, log_level=0)
        raise ValueError(f"Lark: {matcher.get_error()}" if matcher.is_error() else "accepted")
    assert "accepted" not in str(caught.value)


@pytest.mark.parametrize("part", ['"', "[", "(", "\\", "a", "{", '"\\u'])
def test_rewriting_takes_linear_time(part: str) -> None:
    began = time.process_time()
    with contextlib.suppress(Exception):  # most of them are no grammar
        to_lark("root ::= " + part * 3000)
    assert time.process_time() - began < 2
