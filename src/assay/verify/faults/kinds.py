"""How faults are sorted: by the stage of the computation, by what they change, by the run that shows them."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """Where a token meets the fault, in the order of the computation. A stage is a file of the catalogue."""

    PARSING = "gguf parsing"
    DEQUANTISATION = "dequantisation"
    LAYOUT = "weight layout"
    TOKENIZER = "tokenizer"
    TEMPLATE = "prompt template"
    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "QKV"
    ROPE = "rope"
    ATTENTION = "attention"
    CACHE = "kv cache"
    FFN = "ffn"
    RESIDUAL = "residual"
    HEAD = "output head"
    SAMPLING = "sampling"
    LOOP = "generation loop"
    RUNTIME = "precision and runtime"


class FaultKind(StrEnum):
    """What is other than it should be, which tells how the fault is planted or recognised."""

    COMPUTATION = "computation"  # another formula: an edit of the graph
    PRECISION = "precision"  # the right formula in a narrow type, which is legitimate where the whole engine is so
    WEIGHTS = "weights"  # the right formula on other numbers from the file
    INPUTS = "inputs"  # other inputs, positions or cache
    TOKENS = "tokens"  # other ids
    CHOICE = "choice"  # right logits, another choice: sampling and stopping


class Probe(StrEnum):
    """The kind of the cheapest run that shows the fault."""

    ONE_TOKEN = "one token"
    TWO_TOKENS = "two tokens"
    DECODE = "decode"  # the same tokens at once and one by one
    LONG = "long"  # more tokens than a window, a tile or a cache holds
    BATCH = "batch"  # two sequences at once
    TWICE = "twice"  # the same request again
    VALUES = "values"  # tokens whose values are large, or all alike
    TEXT = "text"  # ids of a text
    CHAT = "chat"  # ids of a conversation
    GENERATED = "generated"  # what was chosen from known logits
    ANY = "any"


ANOTHER_RUN = frozenset({Probe.LONG, Probe.BATCH, Probe.TWICE})  # no observation of the run at hand stands for these
