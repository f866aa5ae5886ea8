"""A tokenizer as plain data, for a host that is not Python (`library/website/tokenizer.js`).

Touch this module together with that file; tests/library/test_website.py compares the ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.text.pretokenize import portable_split
from assay.text.tokenizer import Tokenizer
from assay.text.vocab import MERGES


def exported_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary, its merges or ranks, and its flags. Raises AssayError for a kind that has no such form."""
    vocab = tokenizer.vocab
    data: dict[str, Any] = {
        "model": vocab.model,
        "tokens": vocab.tokens,
        "kinds": list(vocab.kinds),
        "bos": tokenizer.bos,
        "unk": vocab.special.get("unk"),
        "eog": sorted(tokenizer.eog),
        "add_bos": tokenizer.add_bos,
        "first": tokenizer.frame[0],
        "last": tokenizer.frame[1],
        "space_prefix": vocab.model == "llama" and vocab.add_space_prefix,
    }
    if vocab.model == "llama":
        scores = np.zeros(len(vocab.tokens)) if vocab.scores is None else -vocab.scores
        return {**data, "ranks": np.unique(scores, return_inverse=True)[1].tolist()}
    if vocab.pre is None or not vocab.pre.byte_encode:
        raise AssayError(
            f"{tokenizer.path.name}: a vocabulary of this kind cannot be exported (found {vocab.model} "
            f"{vocab.pre_name}, expected byte-level merges or SentencePiece scores)"
        )
    return {
        **data,
        "merges": tokenizer.metadata_strings(MERGES),
        "splits": [portable_split(expression) for expression in vocab.pre.splits],
        "ignore_merges": vocab.pre.ignore_merges,
    }
