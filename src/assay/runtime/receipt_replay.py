"""Replaying a receipt: compute the logits again, compare their bits, draw the tokens again.

A replay computes the answer's tokens in one pass, as a prompt, which costs less than generating them. With `positions`,
only some rows are compared. The pass is then cut at these rows, and the output matrix is applied to them alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import engines
from assay.engines.contract import Arithmetic, Chunk, PagedEngine, pages_for
from assay.errors import AssayError
from assay.models import Model
from assay.runtime.draws import Draws
from assay.runtime.image_places import Images, PlacedImage, check_images, prompt_part, rows_in_chunk, without_rows
from assay.runtime.receipts import Receipt, chain, ids_digest, row_digest, settings_of, signed_by
from assay.runtime.sampler import sample
from assay.vision.rows import ImageRows

Array = NDArray[Any]
AT_ONCE = 64  # rows whose logits are held together


@dataclass(frozen=True)
class Replay:
    """The result of a replay; true if everything that was compared agrees."""

    agrees: bool
    reason: str  # what differs, or what was compared
    parts_at: int | None = None  # the first token of the answer that differs
    compared: int = 0  # rows
    signed: bool = False

    def __bool__(self) -> bool:
        return self.agrees


def replay(
    receipt: Receipt,
    model: Model,
    *,
    key: str = "",
    positions: int | None = None,
    seed: int | None = None,
    engine: str = "cpu",
    threads: int | None = None,
    pictures: Sequence[ImageRows] = (),
) -> Replay:
    """Check the hashes and the signature, then compute rows again on an engine with the receipt's arithmetic.

    `pictures` are the images of a prompt that has some, in order, encoded with the receipt's precision.
    """
    signed = bool(receipt.signature) and signed_by(receipt.key, receipt.link, receipt.signature)
    wrong = _wrong_hash(receipt, model, key, signed)
    if wrong:
        return Replay(False, wrong, signed=signed)
    name, precision, kv_type, version = _arithmetic(receipt)
    length = len(receipt.prompt) + len(receipt.tokens)
    known = engines.engine_class(engine).precisions
    if known and precision not in known:
        raise AssayError(
            f"receipt: its arithmetic is not the {engine} engine's (found {name} {precision}, expected "
            f"{' or '.join(known)}); use --engine cuda on a machine with an NVIDIA GPU. The receipts of a server with "
            "--precision fast can be replayed on every machine"
        )
    images = placed_pictures(receipt, pictures)
    if isinstance(images, str):
        return Replay(False, images, signed=signed)
    rows = sorted(range(len(receipt.tokens)))
    if positions is not None and positions < len(rows):
        rows = sorted(random.Random(seed).sample(rows, positions))
    made = engines.create(
        engine, model, n_pages=pages_for(length), precision=precision, kv_type=kv_type, threads=threads
    )
    try:
        if made.arithmetic != Arithmetic(name, precision, kv_type, version):
            said = receipt.header["arithmetic"]
            return Replay(False, f"arithmetic: this engine has {made.arithmetic}, the receipt {said}", signed=signed)
        check_images(made, images, len(receipt.prompt))
        return replace(_compare(receipt, made, rows, images), signed=signed)
    finally:
        made.close()


def _wrong_hash(receipt: Receipt, model: Model, key: str, signed: bool) -> str:
    """A fault that hashes alone show; empty if they show no fault."""
    if receipt.header.get("prompt") != ids_digest(receipt.prompt):
        return "prompt: not the prompt that was signed"
    if chain(receipt.header, receipt.tokens, receipt.rows) != receipt.link:
        return "chain: header, tokens or rows were changed after it was made"
    if receipt.signature and not signed:
        return "signature: not made by the receipt's key"
    if key and (not signed or receipt.key.lower() != key.lower()):
        return f"signature: not made by the key {key:.16}…"
    if receipt.header.get("file") != model.file.sha256:
        said = str(receipt.header.get("file"))
        return f"file: another one was used (found {model.file.sha256:.16}…, the receipt has {said:.16}…)"
    n_vocab = model.hparams.n_vocab
    if not receipt.prompt or any(i >= n_vocab for i in (*receipt.prompt, *receipt.tokens)):
        return f"tokens: outside the vocabulary of {n_vocab}, or no prompt"
    return ""


def _arithmetic(receipt: Receipt) -> tuple[str, str, str, int]:
    found = receipt.header.get("arithmetic")
    if not isinstance(found, list) or len(found) != 4 or not all(isinstance(x, str) for x in found[:3]):
        raise AssayError("receipt: arithmetic: expected a name, a precision, a cache type and a version")
    return found[0], found[1], found[2], int(found[3])


def placed_pictures(receipt: Receipt, pictures: Sequence[ImageRows]) -> Images | str:
    """The pictures at the places that the header names; a text if one of them is not the receipt's."""
    named = receipt.header.get("pictures", [])
    fields = {"at": int, "rows": int, "digest": str}
    if not isinstance(named, list) or not all(
        isinstance(one, dict) and all(type(one.get(key)) is kind for key, kind in fields.items()) for one in named
    ):
        raise AssayError("receipt: pictures: expected a list of at, rows and digest")
    if len(named) != len(pictures):
        raise AssayError(
            f"receipt: its prompt has {len(named)} images of pictures (found {len(pictures)}); name each picture with "
            "--image FILE, in the order of the prompt"
        )
    placed: list[PlacedImage] = []
    for i, (one, image) in enumerate(zip(named, pictures, strict=True)):
        start, end = one["at"], one["at"] + one["rows"]
        before = placed[-1].end if placed else 0
        if one["digest"] != image.digest.hex() or one["rows"] != len(image.rows):
            return f"picture: image {i} is not the one that was used, or another mmproj file encodes it"
        if not before <= start < end <= len(receipt.prompt):
            return f"picture: image {i} has no place in the prompt"
        placed.append(PlacedImage(start, image))
    return tuple(placed)


def _compare(receipt: Receipt, engine: PagedEngine, rows: Sequence[int], images: Images) -> Replay:
    params, seed = settings_of(receipt.header)
    ids = [*receipt.prompt, *receipt.tokens]
    tokens = np.asarray(ids, np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    first, done, m_rope = len(receipt.prompt), 0, bool(engine.model.hparams.axes)
    part = prompt_part(images, first)

    def chunk(begin: int, end: int, outputs: str) -> Chunk:
        prompt = max(0, min(part, end) - begin)
        given = rows_in_chunk(images, begin, end - begin, m_rope) if images else None
        return Chunk(tokens[begin:end], begin, pages, outputs, prompt=prompt, pictures=given)

    for start in range(0, len(rows), AT_ONCE):
        for row, logits in _logits(engine, chunk, done, [first + r for r in rows[start : start + AT_ONCE]]):
            at = row - first
            if row_digest(logits, receipt.header["version"]) != receipt.rows[at]:
                return Replay(False, f"logits: token {at} of the answer was computed otherwise", at, at)
            if not receipt.header.get("constrained"):
                drawn = sample(logits, without_rows(ids[:row], images), params, Draws(seed, row)).id
                if drawn != ids[row]:
                    words = f"token {at} of the answer: {ids[row]} was not drawn (expected {drawn})"
                    return Replay(False, words, at, at)
            done = row
    total = len(receipt.tokens)
    count = f"all {total} tokens" if len(rows) == total else f"{len(rows)} of {total} tokens"
    return Replay(True, f"{count}: the same bits", None, len(rows))


def _logits(
    engine: PagedEngine, chunk: Callable[[int, int, str], Chunk], done: int, rows: Sequence[int]
) -> Iterator[tuple[int, Array]]:
    """The logits that predict the tokens at these indices; the first `done` tokens are computed already.

    `chunk` makes the chunk of tokens from one index to another, with its outputs.
    """
    if list(rows) == list(range(rows[0], rows[0] + len(rows))) and len(rows) > 1:
        output = engine.forward([chunk(done, rows[0], "last")])[0]
        yield rows[0], output.logits[-1]
        output = engine.forward([chunk(rows[0], rows[-1], "all")])[0]
        yield from zip(rows[1:], output.logits, strict=True)
        return
    for row in rows:
        output = engine.forward([chunk(done, row, "last")])[0]
        yield row, output.logits[-1]
        done = row
