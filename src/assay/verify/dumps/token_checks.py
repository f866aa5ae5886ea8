"""Checks a dump's tokens against the model before anything is computed: their ids, their number, the file's hash.

Touch this module when a dump of another model or of other tokens is not refused, or refused in words that do not help.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.tracing import shape_of

MOST_VALUES = 1 << 28  # of one node; scores grow with the square of the tokens


def check_tokens(dump: Dump, model: Model, given: tuple[int, ...]) -> Dump:
    prompt = len(dump.steps) > 1 and given == dump.tokens[: dump.steps[0]]
    if given and dump.tokens and given != dump.tokens and not prompt:
        at = next((i for i, (a, b) in enumerate(zip(given, dump.tokens, strict=False)) if a != b), -1)
        raise AssayError(
            f"{dump.source}: holds other tokens (found {list(dump.tokens)[:8]}…, expected {list(given)[:8]}…"
            f"{f', first differing at {at}' if at >= 0 else ', another number of them'}); compare runs of the same ids"
        )
    tokens = dump.tokens or given
    if not tokens:
        raise AssayError(
            f"{dump.source}: does not say which tokens were fed; give them with --tokens, or their text with -p"
        )
    n_vocab = model.hparams.n_vocab
    bad = next((t for t in tokens if not 0 <= t < n_vocab), None)
    if bad is not None:
        raise AssayError(
            f"{dump.source}: token {bad} is outside the vocabulary of {model.file.path.name} (0 to {n_vocab - 1}); "
            "is it a dump of another model?"
        )
    _check_room(dump.source, model, len(tokens))
    theirs = dump.provenance.get("model_sha256")
    if theirs and theirs != model.file.sha256:
        name = Path(dump.provenance.get("model", "unknown")).name
        raise AssayError(
            f"{dump.source}: is a trace of another model (found {name}, sha256 {theirs[:12]}…, "
            f"expected {model.file.path.name}, {model.file.sha256[:12]}…)"
        )
    if dump.steps and sum(dump.steps) != len(tokens):
        raise AssayError(
            f"{dump.source}: holds calls of {', '.join(map(str, dump.steps[:8]))} tokens (found {len(tokens)} ids, "
            f"expected {sum(dump.steps)}); give the ids of all calls, the prompt's first"
        )
    positions = dump.positions if len(dump.positions) == len(tokens) else tuple(range(len(tokens)))
    return replace(dump, tokens=tokens, positions=positions, steps=dump.steps or (len(tokens),))


def _check_room(source: str, model: Model, n: int) -> None:
    """Check before computing: the tokens fit the context, and their largest value fits memory."""
    if n > model.hparams.n_ctx_train:
        raise AssayError(
            f"{source}: {n} tokens, more than the context of {model.file.path.name} ({model.hparams.n_ctx_train}); "
            "is it a dump of another model?"
        )
    name = max((node.name for node in model.graph), key=lambda name: math.prod(shape_of(model.graph, name, n)))
    if (size := math.prod(shape_of(model.graph, name, n))) > MOST_VALUES:
        raise AssayError(
            f"{source}: {n} tokens make {name} {size} values (expected at most {MOST_VALUES}); dump fewer tokens"
        )
