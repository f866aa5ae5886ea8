"""Constrained decoding: JSON schemas and grammars (GBNF or Lark) through llguidance.

llguidance receives the vocabulary as bytes. A grammar comes from a client, and compiling some grammars never ends. Each
one is therefore compiled in a sandbox process first (`compiler.py`). The result, a matcher or an error, is cached for
the next request with the same grammar.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from assay.engines.contract import Array
from assay.errors import AssayError
from assay.runtime.sequence import Constraint
from assay.runtime.sequence_errors import GrammarError, NoGrammars
from assay.system.box import Box
from assay.system.terminal import printable
from assay.text import Tokenizer

_CACHED = 32  # compiled grammars cached for each model
_box = Box("grammar", Path(__file__).with_name("compiler.py"))
# Only one spacing of JSON is allowed: a model that may write blanks between any two tokens can write them forever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _llguidance(param: str) -> Any:
    try:
        return import_module("llguidance")
    except ImportError:
        raise NoGrammars(f"{param}: needs llguidance; `pip install llguidance` brings it", param) from None


class _Vocabulary:
    """The tokenizer interface of llguidance."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.n_vocab
        self.tokens = [tokenizer.piece(i) if i < known else b"" for i in range(n_vocab)]
        self._bytes = {piece: i for i, piece in enumerate(self.tokens) if len(piece) == 1}
        self.special_token_ids = [i for i in range(known) if tokenizer.is_special(i)]
        self.bos_token_id = tokenizer.bos
        self.eos_token_id = tokenizer.eot if tokenizer.eot is not None else tokenizer.eos

    def __call__(self, text: bytes | str) -> list[int]:
        """Encode a text that stands inside another: after a byte that merges with nothing, so that no space is added.

        A text that a SentencePiece vocabulary would change (U+2581, its space) is encoded as single bytes.
        """
        data = text.encode() if isinstance(text, str) else text
        before, whole = self._encode(b"\x02"), self._encode(b"\x02" + data)
        ids = whole[len(before) :] if whole[: len(before)] == before else self._encode(data)
        if b"".join(self.tokens[i] for i in ids) != data and all(bytes([b]) in self._bytes for b in data):
            return [self._bytes[bytes([b])] for b in data]
        return ids

    def _encode(self, data: bytes) -> list[int]:
        return self._tokenizer.encode(data, add_special=False, parse_special=False)


class Grammars:
    """The grammars of one model. Safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, most: int = 64 << 10) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._most = most  # longest grammar, in bytes
        self._lock = threading.Lock()
        self._name = uuid.uuid4().hex  # of the vocabulary, in the sandbox
        self._vocabulary: _Vocabulary | None = None
        self._ll: Any = None
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()  # a matcher, or an error

    def schema(self, schema: Mapping[str, Any]) -> Callable[[], Constraint]:
        """Constrain to JSON that matches a JSON schema."""
        return self.lark(f"start: {json_rule(schema)}", "response_format")

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
            found = self._compiled.get((kind, text))
        if found is None:
            found = self._compile(kind, text, param)
        with self._lock:
            self._compiled[kind, text] = found
            self._compiled.move_to_end((kind, text))
            while len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
        if isinstance(found, str):
            raise GrammarError(f"{param}: {found}", param)
        return ConstraintMaker(kind, text, param, found)

    def _compile(self, kind: str, text: str, param: str) -> Any:
        """The matcher, or the error in the grammar."""
        ll = _llguidance(param)
        with self._lock:
            if self._ll is None:
                self._vocabulary = _Vocabulary(self._tokenizer, self._n_vocab)
                if self._vocabulary.eos_token_id is None:
                    raise NoGrammars("this model's vocabulary has no end token; grammars need one", param)
                wrapped = ll.TokenizerWrapper(self._vocabulary)
                self._ll = ll.LLTokenizer(wrapped, n_vocab=self._n_vocab, eos_token=self._ends())
        reply = self._try(kind, text)
        if "lark" not in reply:
            return _complaint(reply)
        compiler = import_module("assay.runtime.compiler")
        matcher = compiler.compiled(self._ll, reply["lark"])
        return f"does not compile ({_short(matcher.get_error())})" if matcher.is_error() else matcher

    def _ends(self) -> list[int]:
        first = self._vocabulary.eos_token_id if self._vocabulary is not None else None
        return sorted(self._tokenizer.eog, key=lambda token: token != first)

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
            "eos": self._ends(),
        }


def _complaint(reply: Mapping[str, Any]) -> str:
    if reply["fault"] == "grammar":
        return _short(str(reply["message"]))
    why = {"time": "takes too long", "memory": "takes too much memory", "busy": "waited too long for a free compiler"}
    return f"does not compile (it {why.get(reply['fault'], 'crashes the compiler')})"


def _short(text: str) -> str:
    return printable(" ".join(text.split()), 300)


def json_rule(schema: Mapping[str, Any]) -> str:
    """A JSON schema as part of a Lark rule."""
    try:
        return "%json " + json.dumps({**schema, "x-guidance": _SPACING})
    except RecursionError:
        raise GrammarError("response_format: the schema is nested too deeply", "response_format") from None


@dataclass(frozen=True)
class ConstraintMaker:
    """Makes a constraint for each sequence. Another process can recreate it from kind and text."""

    kind: str  # "gbnf" | "lark"
    text: str
    param: str
    _matcher: Any = field(repr=False, compare=False)

    def __call__(self) -> Constraint:
        return _GrammarConstraint(self._matcher.deep_copy())


class _GrammarConstraint:
    """The state of one sequence in a grammar."""

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
