"""Trial compilation of grammars, inside the sandbox process of `assay.system.box`. The server never imports it.

A grammar comes from a client, and compiling some grammars never ends. Each one is therefore compiled here first, under
the sandbox's limits on time and memory, with the same vocabulary and the same fuel. A grammar that compiles here costs
no more when the server compiles it again for use.

A request is `{"vocabulary": name, "lark" or "gbnf": text}`. An answer is `{"lark": text}`, `{"fault": "grammar",
"message": str}`, or `{"fault": "untaught"}` if the vocabulary was not sent yet. It is sent once, as
`{"vocabulary": name, "tokens": [base64, …], "special": [id, …], "bos": id, "eos": [id, …]}`.
"""

from __future__ import annotations

import base64
from typing import Any

import llguidance

from assay.runtime.gbnf import to_lark

FUEL: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000, "max_lexer_states": 50_000,
    "max_grammar_size": 100_000, "verbose_errors": False,
}  # fmt: skip
_known: dict[str, Any] = {}


class Vocabulary:
    """The tokenizer interface of llguidance. It encodes a text as single bytes, which is enough for a trial."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.tokens = [base64.b64decode(token) for token in request["tokens"]]
        self.special_token_ids = request["special"]
        self.bos_token_id = request["bos"]
        self.eos_token_id = request["eos"][0]
        self._bytes = {token: i for i, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._bytes.get(data[i : i + 1], 0) for i in range(len(data))]


def compiled(tokenizer: Any, lark: str) -> Any:
    """The matcher of a grammar. If the grammar is wrong, the matcher holds the error."""
    limits = llguidance.LLParserLimits(**FUEL)
    return llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits)


def warm() -> None:
    tokens = [base64.b64encode(bytes([i])).decode() for i in range(256)]
    answer({"vocabulary": "", "tokens": tokens, "special": [], "bos": None, "eos": [0]})
    answer({"vocabulary": "", "lark": "start: /[a-z]+/"})
    answer({"vocabulary": "", "gbnf": 'root ::= "a" [0-9]*'})
    answer({"vocabulary": "", "lark": 'start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}'})
    answer({"vocabulary": "", "lark": "nonsense ::"})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    name = request["vocabulary"]
    if "tokens" in request:
        if len(_known) > 3:
            _known.clear()
        wrapped = llguidance.TokenizerWrapper(Vocabulary(request))
        _known[name] = llguidance.LLTokenizer(wrapped, n_vocab=len(request["tokens"]), eos_token=request["eos"])
        return {}
    if name not in _known:
        return {"fault": "untaught"}
    try:
        lark = to_lark(request["gbnf"]) if "gbnf" in request else request["lark"]
    except Exception as error:  # the converter raises exceptions of many types
        return {"fault": "grammar", "message": f"is neither GBNF nor Lark ({error})"}
    try:
        matcher = compiled(_known[name], lark)
        if not matcher.is_error():
            matcher.compute_bitmask()
        said = matcher.get_error() if matcher.is_error() else ""
    except MemoryError:
        raise
    except BaseException as error:  # a panic in the Rust library is a BaseException
        said = f"{type(error).__name__}: {error}"
    return {"fault": "grammar", "message": f"does not compile ({said})"} if said else {"lark": lark}
