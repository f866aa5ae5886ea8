"""Which ids a server fed for a text: those of the file, or those of a tokenizer with a known mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.gguf import GGUFFile
from assay.text import Tokenizer
from assay.text.unigram import Unigram
from assay.text.vocab import SENTENCEPIECE

TEXT = "The capital of France is Paris. The capital of Italy is"
Prompts = dict[tuple[int, ...], tuple[int, ...]]  # the file's ids of a text -> others


def other_tokenizations(
    file: GGUFFile, tokenizer: Tokenizer, texts: Sequence[str]
) -> Iterator[tuple[str, str, Prompts]]:
    """Faults of tokenizers, each with its words and the ids that it gives."""
    right = {text: tokenizer.encode(text) for text in texts}
    if tokenizer.vocab.model != SENTENCEPIECE:
        return
    if tokenizer.vocab.scores is not None:
        unigram = Unigram(file, tokenizer.vocab)
        cut = {text: [*_begin(tokenizer, ids), *unigram.encode(text)] for text, ids in right.items()}
        yield "spm-merge-order", "cut by the best sum of scores, as unigram does", _changed(right, cut)
    bare = {text: [*_begin(tokenizer, ids), *without_space(tokenizer, text)] for text, ids in right.items()}
    yield "spm-space-prefix", "no space before the first word", _changed(right, bare)


def _begin(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    return [ids[0]] if ids and ids[0] == tokenizer.bos else []


def without_space(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in the middle of another, where no space is put before it."""
    front = tokenizer.encode("\n", add_special=False)
    both = tokenizer.encode(f"\n{text}", add_special=False)
    return list(both[len(front) :]) if list(both[: len(front)]) == list(front) else []


def _changed(right: dict[str, list[int]], other: dict[str, list[int]]) -> Prompts:
    return {tuple(right[text]): tuple(ids) for text, ids in other.items() if ids and ids != right[text]}
