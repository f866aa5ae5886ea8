"""`assay check --image`: what an engine makes of pictures, through its tower and in a prompt that has them.

    for check in picture_checks("gemma-3-4b.gguf", "llamacpp", ["cat.png"]):
        print(check.name, check.passed, check.detail)

Touch this to let another engine be checked with pictures: give its run as a `SeenPrompt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, pages_for
from assay.errors import AssayError
from assay.graph import Trait, split
from assay.library.picture_verdicts import image_prompts, tower_of, with_rows
from assay.library.verdicts import ModelLike, opened, read_values
from assay.models import Model
from assay.models.vision import Tower
from assay.runtime.image_places import rows_in_chunk
from assay.runtime.opening import Opened
from assay.runtime.pictured_prompt import MEDIA, marked_text, picture_bytes, projector_beside
from assay.system.counting import counted
from assay.system.stages import note
from assay.verify.conformance.engine_check import Check
from assay.verify.diagnosis import answer
from assay.verify.pictures.diagnose_picture import diagnose_picture
from assay.verify.pictures.diagnose_prompt import diagnose_prompt
from assay.verify.pictures.picture_dump import PictureDump
from assay.verify.pictures.prompt_trials import placed_by
from assay.verify.pictures.tower_trials import tower_model
from assay.verify.witness.engines_by_name import open_engine
from assay.verify.witness.llamacpp import LlamaCppEngine
from assay.verify.witness.llamacpp_pictures import LlamaCppEyes, SeenPrompt
from assay.verify.witness.transformers_pictures import processed_pixels
from assay.vision.encode import trace_picture
from assay.vision.picture import decode_boxed
from assay.vision.preprocess import preprocess
from assay.vision.projector import open_projector
from assay.vision.resize import Bytes
from assay.vision.rows import ImagePrompt, ImageRows

Array = NDArray[Any]
PROCESSOR = "transformers"
SCORES = ("kq", "kq_soft_max")  # a value for each pair of patches
_QUESTION = " What?"


def picture_checks(
    model: ModelLike,
    engine: str,
    images: Sequence[str | Path | bytes],
    prompt: str | None = None,
    *,
    mmproj: str | Path | None = None,
    **options: Any,
) -> Iterator[Check]:
    """Check each picture through the tower, then a prompt that has them all (`<__media__>` says where).

    Engines are assay's own and `llamacpp`, through libmtmd; of `transformers` the pixels of its image processors are
    checked. `options` are those of the engine.
    """
    on = opened(model)
    path = Path(mmproj or on.options.mmproj or projector_beside(on.file.path))
    pictures = [decode_boxed(picture_bytes(image)) for image in images]
    if engine == PROCESSOR:
        yield from _processor_checks(tower_of(None, path), pictures)
        return
    text = marked_text(MEDIA * len(images) + _QUESTION if prompt is None else prompt, len(images))
    right, tower = image_prompts(on, images, path), tower_of(None, path)
    seen = _seen(on, engine, path, tower, text, pictures, right, options)
    counts = [len(piece.rows) for one in right for piece in one.pieces if isinstance(piece, ImageRows)]
    if len(seen.rows) != sum(counts):
        yield Check("rows of the pictures", False, f"found {len(seen.rows)}, expected {sum(counts)}")
        return
    rows = np.split(seen.rows, np.cumsum(counts)[:-1])
    apart = seen.images if len(seen.images) == len(rows) else ({},) * len(rows)  # {}: run together in one graph
    first = 0
    for i, (picture, parts) in enumerate(zip(pictures, right, strict=True)):
        end = first + sum(isinstance(piece, ImageRows) for piece in parts.pieces)
        dump = PictureDump(engine)
        for j, k in enumerate(range(first, end)):
            known = {name: value for name, value in apart[k].items() if name in tower.graph}
            dump.nodes[j] = {**known, tower.graph.output: rows[k]}
            if "pixels" in apart[k]:
                dump.pixels[j] = apart[k]["pixels"]
        first = end
        yield _tower_check(f"picture {i}, pixels and tower", tower, picture, dump)
    yield _prompt_check(on.model, placed_by(on.tokenizer, text, with_rows(right, rows)), seen)


def _processor_checks(tower: Tower, pictures: Sequence[Bytes]) -> Iterator[Check]:
    """The pixels of transformers' image processors. A processor that makes images of another size is only described."""
    for i, picture in enumerate(pictures):
        name, found = f"picture {i}, pixels", processed_pixels(tower.keys, picture)
        right = [image.pixels for image in preprocess(tower.keys, picture).images]
        sizes = [value.size if value.ndim == 3 else value.size // 2 for value in found.values()]  # rows have two frames
        if sizes != [pixels.size for pixels in right]:
            images = ", ".join(sorted({"x".join(map(str, value.shape)) for value in found.values()}))
            theirs = ", ".join(sorted({"x".join(map(str, pixels.shape)) for pixels in right}))
            detail = f"found {counted(len(found), 'image')} of {images}, expected {len(right)} of {theirs}"
            yield Check(name, False, f"{detail}: transformers and llama.cpp choose other sizes")
        else:
            yield _tower_check(name, tower, picture, PictureDump(PROCESSOR, pixels=found))


def _tower_check(name: str, tower: Tower, picture: Bytes, dump: PictureDump) -> Check:
    found = diagnose_picture(tower, picture, dump, say=note)
    said = found.diagnosis
    answered = "" if said else answer.text(said, tower_model(tower))
    detail = f"{counted(len(found.diff.nodes), 'node')}, {found.diff.summary}"
    return Check(name, bool(said), detail, found.diff, answer=answered)


def _prompt_check(model: Model, placed: Any, seen: SeenPrompt) -> Check:
    values = {**seen.nodes, "logits": seen.logits, "tokens": np.array([t for t in seen.tokens if t >= 0])}
    said, run = diagnose_prompt(model, placed, read_values(values), say=note)
    detail = f"{len(seen.tokens)} tokens and rows, {counted(len(run.diff.nodes), 'node')}, {run.diff.summary}"
    answered = "" if said else answer.text(said, run.model)
    return Check("prompt with its pictures", bool(said), detail, run.diff, run.dump, answered)


def _seen(
    on: Opened,
    engine: str,
    mmproj: Path,
    tower: Tower,
    text: str,
    pictures: Sequence[Bytes],
    right: Sequence[ImagePrompt],
    options: dict[str, Any],
) -> SeenPrompt:
    """The engine's own run of the pictures and of the prompt."""
    nodes = [node.name for node in tower.graph if split(node.name)[0] not in SCORES]
    hidden = Trait.CACHES | Trait.SHOWS_STATE | Trait.INDICES
    keep = [n.name for n in on.model.graph if not n.has(hidden) and split(n.name)[1] is not None]
    keep = [name for name in keep if "S" not in on.model.graph.shapes[name]]
    made = open_engine(engine, on.model, **options)
    try:
        if isinstance(made, LlamaCppEngine):
            eyes = LlamaCppEyes(made, mmproj)
            try:
                return eyes.run(text, pictures, nodes, keep)
            finally:
                eyes.close()
        if not made.pictures:
            raise AssayError(
                f"engine {engine}: takes no pictures; use cpu, cuda, wgpu, reference, llamacpp or transformers"
            )
        return _own(on, made, mmproj, text, pictures, right, nodes, keep)
    finally:
        made.close()


def _own(
    on: Opened,
    engine: Engine,
    mmproj: Path,
    text: str,
    pictures: Sequence[Bytes],
    right: Sequence[ImagePrompt],
    nodes: Sequence[str],
    keep: Sequence[str],
) -> SeenPrompt:
    """The run of one of assay's engines."""
    projector = open_projector(mmproj, engine.name)
    try:
        traced = [trace_picture(projector, picture, nodes) for picture in pictures]
    finally:
        projector.close()
    rows = [found for one in traced for found in one.rows]
    ids, images = placed_by(on.tokenizer, text, with_rows(right, rows))(True)
    given = rows_in_chunk(images, 0, len(ids), bool(on.model.hparams.axes))
    tokens = np.array([max(token, 0) for token in ids], np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    output = engine.forward([Chunk(tokens, 0, pages, "last", pictures=given)], keep)[0]
    stages = [
        {**found, "pixels": image.pixels}
        for one in traced
        for image, found in zip(one.prepared.images, one.nodes, strict=True)
    ]
    return SeenPrompt(
        tuple(stages), np.concatenate(rows), output.nodes, output.logits[-1], tuple(max(i, -1) for i in ids)
    )
