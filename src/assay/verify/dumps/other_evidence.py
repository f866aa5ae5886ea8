"""Tells what a text is that holds no values of this model: a loader's log, a benchmark, a run of another model.

`claims_of` reads two things from a text: what kind of text it is, and the sizes that it states (width, layers,
vocabulary, shapes). `of_another_model` compares these sizes with the model's. A text is refused only if all that
it states of a size differs and none of its values is right; one right size or value lets it pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from assay.errors import AssayError
from assay.models import Model
from assay.system.text_files import decode_text
from assay.verify.dumps.observation import Claims, Dump

READ = 1 << 18  # bytes of a text that are searched
PRINT = (
    "print for each layer a line such as `layer 0 out: rms=1.0312 first=[-0.1475, 0.2331, 0.0183]` and the token ids; "
    "see docs/reference/dump-format.md"
)
# Kinds of texts, by words that they have; the first row that matches twice, or in one line of two, decides.
KINDS = (
    (
        "a loader's log",
        r"llama_model_loader|llm_load_\w{1,20}:|load_tensors:|print_info:|Loading checkpoint shards|loading weights|"
        r"model weights took|gguf_init_from_file|KV cache size|buffer size =",
    ),
    (
        "a profile of operators",
        r"event_block_name|\bop_types\b|avg \(ms\)|Self C(?:PU|UDA)|CPU total|cuda_time|# of Calls|\bus/iter\b",
    ),
    (
        "a benchmark",
        r"tokens? per second|\btok(?:en)?s?/s(?:ec)?\b|\bt/s\b|\bTTFT\b|ms per token|throughput|GFLOPS|eval time =",
    ),
    (
        "a traceback",
        r"Traceback \(most recent call last\)|^\s{2,8}File \"|Segmentation fault|panicked at|SIGSEGV|abort",
    ),
    (
        "a comparison of two engines",
        r"max(?:imum)?[ _]?(?:abs(?:olute)?)?[ _]?diff|cos(?:ine)?[ _]?sim|\bMSE\b|allclose|\bmismatch|\bvs\.? |"
        r"compar(?:ing|ison)|\brel[ _]?err|\bgap\b",
    ),
)
_KINDS = [(name, re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for name, pattern in KINDS]
_IS = r"\s{0,40}(?:u32|u64|i32)?\s{0,40}[=:]?\s{0,8}"
_WIDTH = re.compile(
    rf"\b(?:n_embd|hidden[ _]size|embedding[ _]length|d_model|model_dim|n_embed){_IS}(\d{{2,6}})\b", re.I
)
_LAYERS = re.compile(rf"\b(?:n_layers?|block[ _]count|num[ _](?:hidden[ _])?layers){_IS}(\d{{1,4}})\b", re.I)
_VOCABULARY = re.compile(rf"\b(?:n_vocab|vocab(?:ulary)?(?:[ _]size)?){_IS}(\d{{2,7}})\b", re.I)
_LAYER = re.compile(r"\b(?:layers?|blocks?|blk)[ ._#:=\[-]{0,3}(\d{1,3})\b(?!\.\d|%)", re.I)
_SHAPE = re.compile(r"[\[(](\d{1,7}(?:\s?[,x×]\s?\d{1,7}){1,3})[\])]")
_CHOSEN = re.compile(r"\b(?:argmax|chosen|sampled|picked|next token)\W{1,4}(?:id\W{1,3})?\d{1,7}\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d{1,20}\.\d{1,20}")


def claims_of(text: str) -> Claims:
    """The kind of a text, and the sizes that it states."""
    counts = [(name, len(pattern.findall(text))) for name, pattern in _KINDS]
    lines = max(1, sum(1 for line in text.splitlines() if line.strip()))
    kind = next((name for name, n in counts if n >= 2 or (n and lines <= 3)), "") or _unreadable(text)
    shapes = [re.split(r"\D+", m) for m in _SHAPE.findall(text)]
    return Claims(
        kind,
        _numbers(_WIDTH.findall(text)),
        _numbers(_LAYERS.findall(text)),
        _numbers(_VOCABULARY.findall(text)),
        _numbers(shape[-1] for shape in shapes if "0" not in shape),
        _numbers(_LAYER.findall(text)),
    )


def claims_of_file(path: Path, rewritten: Callable[[str], str]) -> Claims:
    """The same of a file, whose text is `rewritten` first: numbers in decimal."""
    with open(path, "rb") as file:
        return claims_of(rewritten(decode_text(file.read(READ), str(path), lenient=True)))


def _numbers(found: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({int(n) for n in found if n}))


def _unreadable(text: str) -> str:
    """The kind of a text that no row of the table matches."""
    strange = sum(c == "\ufffd" or (c < " " and c not in "\n\r\t\x1b") for c in text)
    if strange > len(text) / 20:
        return "binary data of no known format"
    words = re.findall(r"[^\W\d_]{2,40}", text)
    if _NUMBER.search(text) is None and len(_CHOSEN.findall(text)) > 1:
        return "chosen tokens without their logits"
    if _NUMBER.search(text) is None:
        return "a text without numbers" if words else "nothing that can be read"
    return ""


def of_another_model(dump: Dump, model: Model) -> AssayError | None:
    """The error for a text that states sizes of another model. Its values may say otherwise: ffn's size, a count."""
    claims = dump.claims
    if claims is None or not (differs := different_sizes(claims, model)):
        return None
    text = f"{dump.source}: {claims.kind or 'values'} of another model ({differs}); give that model's file"
    return AssayError(text)


def different_sizes(claims: Claims, model: Model) -> str:
    """The sizes that a text states and the model does not have; empty where nothing contradicts it."""
    h = model.hparams
    found: list[tuple[str, str]] = []
    if claims.widths and h.n_embd not in claims.widths:
        found.append((f"{_listed(claims.widths)} wide", f"{h.n_embd} wide"))
    elif not claims.widths and (strange := _strange_axes(claims, model)):
        found.append((f"shapes that end in {_listed(strange)}", f"{h.n_embd} wide"))
    if claims.layers and not {h.n_layer, h.n_layer + 1} & set(claims.layers):
        found.append((f"{_listed(claims.layers)} layers", f"{h.n_layer} layers"))
    elif not claims.layers and len(above := [n for n in claims.numbered if n > h.n_layer]) > 1:
        found.append((f"layers up to {above[-1]}", f"{h.n_layer} layers"))
    if found and claims.vocabularies and h.n_vocab not in claims.vocabularies:
        found.append((f"a vocabulary of {_listed(claims.vocabularies)}", f"a vocabulary of {h.n_vocab}"))
    if not found:
        return ""
    theirs, ours = zip(*found, strict=True)
    return f"found {', '.join(theirs)}, expected {', '.join(dict.fromkeys(ours))} of {model.file.path.name}"


def _strange_axes(claims: Claims, model: Model) -> tuple[int, ...]:
    """Last axes of printed shapes, if there are two or more and no node of the model has such an axis."""
    known = {int(d) for shape in model.graph.shapes.values() for d in shape if not isinstance(d, str)}
    known |= {d for tensor in model.file.tensors.values() for d in tensor.shape}
    large = tuple(n for n in claims.axes if n >= 32)
    return large if len(large) > 1 and not known & set(claims.axes) else ()


def _listed(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers[:3])) + (" …" if len(numbers) > 3 else "")
