"""Constrained decoding: JSON schemas and grammars (GBNF or Lark) through llguidance.

llguidance is given the vocabulary as bytes. Compiling is bounded by its own fuel, by the size of the text and by a
clock; a compiled grammar is kept for the next request that sends the same one.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from assay.engines.base import Array
from assay.errors import AssayError
from assay.runtime.errors import GrammarError, NoGrammars
from assay.runtime.sequence import Constraint
from assay.text import Tokenizer

_KEPT = 32  # compiled grammars a model remembers
# One way to space JSON: a model that may write blanks between any two tokens can write them for ever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _llguidance(param: str, module: str = "") -> Any:
    try:
        return import_module(f"llguidance{module}")
    except ImportError:
        raise NoGrammars(f"{param}: needs llguidance; `pip install 'assay[serve]'` brings it", param) from None


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.n_vocab
        self.tokens = [tokenizer.piece(i) if i < known else b"" for i in range(n_vocab)]
        self.special_token_ids = [i for i in range(known) if tokenizer.is_special(i)]
        self.bos_token_id = tokenizer.bos
        self.eos_token_id = tokenizer.eot if tokenizer.eot is not None else tokenizer.eos

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text in the middle of others: behind a byte that merges with nothing, so no space is put first."""
        data = text.encode() if isinstance(text, str) else text
        before, whole = self._encode(b"\x02"), self._encode(b"\x02" + data)
        return whole[len(before) :] if whole[: len(before)] == before else self._encode(data)

    def _encode(self, data: bytes) -> list[int]:
        return self._tokenizer.encode(data, add_special=False, parse_special=False)


class Grammars:
    """The grammars of one model. Safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, most: int = 64 << 10) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._most = most  # bytes of a grammar
        self._lock = threading.Lock()
        self._ll: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def schema(self, schema: Mapping[str, Any]) -> Callable[[], Constraint]:
        """JSON that fits a JSON schema."""
        return self.lark(f"start: {json_rule(schema)}", "response_format")

    def gbnf(self, text: str) -> Callable[[], Constraint]:
        """llama.cpp's notation, or Lark: told apart by `::=`."""
        convert = _llguidance("grammar", ".gbnf_to_lark").any_to_lark
        try:
            lark = convert(text)
        except Exception as error:  # the converter raises whatever it meets
            raise GrammarError(f"grammar: is neither GBNF nor Lark ({error})", "grammar") from None
        return self.lark(lark, "grammar")

    def lark(self, text: str, param: str) -> Callable[[], Constraint]:
        """A maker of constraints, one for each sequence."""
        size = len(text.encode())
        if size > self._most:
            raise GrammarError(f"{param}: too long (found {size} bytes, at most {self._most})", param)
        with self._lock:
            matcher = self._compiled.get(text)
            if matcher is None:
                matcher = self._compiled[text] = self._compile(text, param)
                while len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(text)
        return lambda: _Matcher(matcher.deep_copy())

    def _compile(self, text: str, param: str) -> Any:
        ll = _llguidance(param)
        if self._ll is None:
            vocabulary = _Vocabulary(self._tokenizer, self._n_vocab)
            if vocabulary.eos_token_id is None:
                raise NoGrammars("this model's vocabulary has no end token; grammars need one", param)
            ends = sorted(self._tokenizer.eog, key=lambda token: token != vocabulary.eos_token_id)
            self._ll = ll.LLTokenizer(ll.TokenizerWrapper(vocabulary), n_vocab=self._n_vocab, eos_token=ends)
        fuel = ll.LLParserLimits(
            initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=50_000,
            max_grammar_size=100_000, verbose_errors=False,
        )  # fmt: skip
        matcher = ll.LLMatcher(self._ll, ll.LLMatcher.grammar_from_lark(text), log_level=0, limits=fuel)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:300]
            raise GrammarError(f"{param}: does not compile ({reason})", param)
        return matcher


def json_rule(schema: Mapping[str, Any]) -> str:
    """A schema as part of a Lark rule."""
    return "%json " + json.dumps({**schema, "x-guidance": _SPACING})


class _Matcher:
    """One sequence's place in a grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, logits: Array) -> Array:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            self._raise()
        allowed = np.unpackbits(bits, count=min(len(logits), 8 * len(bits)), bitorder="little").view(np.bool_)
        out = np.full_like(logits, -np.inf)
        np.copyto(out[: len(allowed)], logits[: len(allowed)], where=allowed)
        return out

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._raise()

    def _raise(self) -> NoReturn:
        raise AssayError(f"grammar: {' '.join(self._matcher.get_error().split())[:300]}")

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_stopped())
