"""Constrained decoding: JSON schemas and grammars (GBNF or Lark) through llguidance.

llguidance receives the vocabulary as bytes. A grammar comes from a client, and compiling some grammars never ends. Each
one is therefore compiled in a sandbox process first (`compiler.py`). Matching it may take long, too. Each grammar and
each sequence therefore has a process of its own (`matchers.py`). The result of a compilation, a grammar's process or an
error, is cached for the next request with the same grammar.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from assay.runtime.closed_schema import closed
from assay.runtime.matcher_vocabulary import MatcherVocabulary
from assay.runtime.matchers import CompiledGrammar, Matcher, MatcherProcesses
from assay.runtime.sequence import Constraint
from assay.runtime.sequence_errors import CompilersBusy, GrammarError, NoGrammars
from assay.system.box import Box
from assay.system.terminal import printable
from assay.text import Tokenizer

Kept = TypeVar("Kept")
_CACHED = 16  # grammars of each model whose process, or whose error, is kept
_box = Box("grammar", Path(__file__).with_name("compiler.py"))
# Only one spacing of JSON is allowed: a model that may write blanks between any two tokens can write them forever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _require_llguidance(param: str) -> None:
    if find_spec("llguidance") is None:
        raise NoGrammars(f"{param}: needs llguidance; `pip install llguidance` brings it", param)


class Grammars:
    """The grammars of one model. Safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, most: int = 64 << 10) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._most = most  # longest grammar, in bytes
        self._lock = threading.Lock()
        self._name = uuid.uuid4().hex  # of the vocabulary, in the sandbox
        self._vocabulary: MatcherVocabulary | None = None
        self._processes: MatcherProcesses | None = None
        # Apart from each other, so that a client's wrong grammars do not displace the others' right ones.
        self._compiled: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str], str] = OrderedDict()  # the errors of wrong ones

    def schema(self, schema: Mapping[str, Any], param: str = "response_format") -> Callable[[], Constraint]:
        """Constrain to JSON that matches a JSON schema. `param` is what the caller calls it."""
        return self.lark(f"start: {json_rule(schema, param)}", param)

    def gbnf(self, text: str) -> Callable[[], Constraint]:
        """Constrain to a grammar in llama.cpp's notation or in Lark; `::=` tells them apart."""
        return self._maker("gbnf", text, "grammar")

    def lark(self, text: str, param: str) -> Callable[[], Constraint]:
        """Constrain to a Lark grammar. Each call of the result gives a constraint for one sequence."""
        return self._maker("lark", text, param)

    def again(self, kind: str, text: str, param: str) -> Callable[[], Constraint]:
        """Recreate a `ConstraintMaker` of another process."""
        return self._maker(kind, text, param)

    def _maker(self, kind: str, text: str, param: str) -> Callable[[], Constraint]:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > self._most:
            raise GrammarError(f"{param}: too long (found {size} bytes, at most {self._most})", param)
        with self._lock:
            found = self._compiled.get((kind, text)) or self._refused.get((kind, text))
        if found is None or (isinstance(found, CompiledGrammar) and not found.alive):
            found = self._compile(kind, text, param)
        with self._lock:
            if isinstance(found, str):
                _remember(self._refused, (kind, text), found)
            else:
                _remember(self._compiled, (kind, text), found)
        if isinstance(found, str):
            raise GrammarError(f"{param}: {found}", param)
        return ConstraintMaker(kind, text, param, found)

    def _compile(self, kind: str, text: str, param: str) -> CompiledGrammar | str:
        """The grammar's process, or the error in the grammar."""
        _require_llguidance(param)
        with self._lock:
            if self._processes is None:
                vocabulary = MatcherVocabulary(self._tokenizer, self._n_vocab)
                if vocabulary.eos_token_id is None:
                    raise NoGrammars("this model's vocabulary has no end token; grammars need one", param)
                self._vocabulary = vocabulary
                self._processes = MatcherProcesses(self._tokenizer.path, vocabulary)
        self._processes.begin()  # it starts while the sandbox compiles
        reply = self._try(kind, text)
        if reply.get("fault") == "busy":
            raise CompilersBusy(param)
        if "lark" not in reply:
            return _complaint(reply)
        found = self._processes.compile(reply["lark"])
        return f"does not compile ({_short(found)})" if isinstance(found, str) else found

    def _try(self, kind: str, text: str) -> dict[str, Any]:
        """Compile in the sandbox."""
        return _box.ask({"vocabulary": self._name, kind: text}, teach=self._vocabulary_request)

    def _vocabulary_request(self) -> dict[str, Any]:
        """The vocabulary, for a sandbox process that does not have it yet."""
        assert self._vocabulary is not None
        return {
            "vocabulary": self._name,
            "tokens": [base64.b64encode(token).decode() for token in self._vocabulary.tokens],
            "special": self._vocabulary.special_token_ids,
            "bos": self._vocabulary.bos_token_id,
            "eos": self._vocabulary.ends,
        }


def _remember(cache: OrderedDict[tuple[str, str], Kept], key: tuple[str, str], value: Kept) -> None:
    """Add the most recent entry of a bounded cache."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _CACHED:
        cache.popitem(last=False)


def _complaint(reply: Mapping[str, Any]) -> str:
    if reply["fault"] == "grammar":
        return _short(str(reply["message"]))
    why = {"time": "takes too long", "memory": "takes too much memory"}
    return f"does not compile (it {why.get(reply['fault'], 'crashes the compiler')})"


def _short(text: str) -> str:
    return printable(" ".join(text.split()), 300)


def json_rule(schema: Mapping[str, Any], param: str) -> str:
    """A JSON schema as part of a Lark rule. Objects have no other keys than their schema names, unless it says so."""
    try:
        return "%json " + json.dumps({**closed(schema), "x-guidance": _SPACING})
    except RecursionError:
        raise GrammarError(f"{param}: the schema is nested too deeply", param) from None


@dataclass(frozen=True)
class ConstraintMaker:
    """Makes a constraint for each sequence. Another process can recreate it from kind and text."""

    kind: str  # "gbnf" | "lark"
    text: str
    param: str
    _grammar: CompiledGrammar = field(repr=False, compare=False)

    def __call__(self) -> Constraint:
        return Matcher(self._grammar, self.param)
