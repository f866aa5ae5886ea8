"""How faults are sorted: by the stage of the computation, by what they change, by the run that shows them."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The part of the computation that has the fault, in order. Each stage is a file of the catalogue."""

    PARSING = "gguf parsing"
    DEQUANTISATION = "dequantisation"
    LAYOUT = "weight layout"
    TOKENIZER = "tokenizer"
    TEMPLATE = "prompt template"
    PIXELS = "picture pixels"
    PATCHES = "picture patches"
    TOWER = "vision tower"
    PROJECTOR = "projector"
    PICTURE_PROMPT = "picture prompt"
    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "QKV"
    ROPE = "rope"
    ATTENTION = "attention"
    CACHE = "kv cache"
    CONVOLUTION = "convolution"
    DELTA = "delta rule"
    SCAN = "scan"
    RWKV = "rwkv"
    STATE = "recurrent state"
    FFN = "ffn"
    ADAPTER = "adapter"
    RESIDUAL = "residual"
    HEAD = "output head"
    DRAFT = "draft head"
    SAMPLING = "sampling"
    LOOP = "generation loop"
    RUNTIME = "precision and runtime"


class FaultKind(StrEnum):
    """The part of an engine that the fault changes. It decides how the fault is planted or recognised."""

    COMPUTATION = "computation"  # Another formula: an edit of the graph.
    PRECISION = "precision"  # The right formula in a narrow type; legitimate where the whole engine is narrow.
    WEIGHTS = "weights"  # The right formula on other numbers from the file.
    INPUTS = "inputs"  # Other inputs, positions or cache.
    TOKENS = "tokens"  # Other ids.
    CHOICE = "choice"  # Right logits, another choice: sampling and stopping.


class Probe(StrEnum):
    """The kind of the cheapest run that shows the fault."""

    ONE_TOKEN = "one token"
    TWO_TOKENS = "two tokens"
    DECODE = "decode"  # The same tokens at once and one by one.
    LONG = "long"  # More tokens than a window, a tile or a cache holds.
    BATCH = "batch"  # Two sequences at once.
    TWICE = "twice"  # The same request again.
    VALUES = "values"  # Tokens with large values, or with equal ones.
    TEXT = "text"  # Ids of a text.
    CHAT = "chat"  # Ids of a conversation.
    GENERATED = "generated"  # Tokens chosen from known logits.
    ANY = "any"


ANOTHER_RUN = frozenset({Probe.LONG, Probe.BATCH, Probe.TWICE})  # These need a run of their own.
