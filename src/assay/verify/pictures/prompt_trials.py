"""A prompt with pictures as the graph reads it, fed rightly or with a mistake.

The graph that takes given rows (`models/pictures.py`) reads all that a mistake can change as values: rows, which
slots are text, the last slot that each token sees, positions t, y, x. Its embedding has the name that engines give to
what the first layer reads: rows of tokens and of pictures together. Touch this when a prompt is fed in a new way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, PictureRows, pages_for
from assay.engines.plan.given_rows import with_pictures
from assay.graph import INPUTS, Graph
from assay.models import Model
from assay.models.arch_keys import ArchKeys
from assay.models.pictures import POSITIONS, PictureForm, pictured, rope_axes
from assay.runtime.image_places import Images, rows_in_chunk
from assay.runtime.pictured_prompt import prompt_with_pictures
from assay.text import ChatTemplate, Tokenizer
from assay.verify.faults.vision.prompt_edits import RIGHT_PROMPT, PromptHabits
from assay.vision.rows import ImagePrompt, ImageRows

Array = NDArray[Any]
Placed = Callable[[bool], tuple[tuple[int, ...], Images]]  # the prompt's ids and pictures, with or without markers
ROPE = "inp_rope_pos"
_TURN = {"add_generation_prompt": True}
MIXED = "embd_mixed"  # of `pictured`: what the first layer reads


@dataclass(frozen=True)
class FedPrompt:
    """A prompt as the graph reads it."""

    graph: Graph
    given: dict[str, Array]
    tokens: tuple[int, ...]  # 0 at the rows of pictures

    @property
    def rows(self) -> dict[str, Array]:
        """Inputs of the graph beside tokens and positions."""
        return {name: value for name, value in self.given.items() if name not in INPUTS}


def placed_by(
    tokenizer: Tokenizer,
    said: str | Sequence[Mapping[str, Any]],
    pictures: Sequence[ImagePrompt],
    template: ChatTemplate | None = None,
) -> Placed:
    """The prompt of a text with marks, or of messages, around these pictures."""
    bare = [ImagePrompt(tuple(p for p in picture.pieces if isinstance(p, ImageRows))) for picture in pictures]

    def placed(markers: bool) -> tuple[tuple[int, ...], Images]:
        return prompt_with_pictures(tokenizer, said, pictures if markers else bare, template, **_TURN)

    return placed


def fed_prompt(
    model: Model, placed: Placed, habits: PromptHabits = RIGHT_PROMPT, answered: int = 0
) -> FedPrompt | None:
    """The run of a prompt with these habits; None where they change nothing for this model.

    The last `answered` ids were decoded one by one behind the prompt.
    """
    ids, images = placed(not habits.no_markers)
    if habits.no_markers and ids == placed(True)[0]:
        return None
    hp, n = model.hparams, len(ids)
    rows = rows_in_chunk(images, 0, n, bool(hp.axes))
    turning = habits.one_number or habits.exchanged or habits.other_sections or habits.advance == "tokens"
    if rows is None or (turning and not hp.axes) or (habits.late and not hp.n_deepstack):
        return None
    if habits.decoding and not (answered and hp.axes):
        return None
    axes, parts = hp.axes, hp.n_deepstack
    if habits.other_sections:
        axes = _other_axes(model)
        if axes == hp.axes:
            return None
    if habits.scaled:
        whole = rows.rows.copy()
        whole[:, : hp.n_embd] *= np.float32(np.sqrt(hp.n_embd))
        rows = replace(rows, rows=whole)
    if habits.other_mask:
        rows = replace(rows, last=_other_last(images, rows, n))
    if habits.late:
        zeros = np.zeros((len(rows.rows), hp.n_embd), rows.rows.dtype)
        rows = replace(rows, rows=np.concatenate([rows.rows[:, : hp.n_embd], zeros, rows.rows[:, hp.n_embd :]], 1))
        parts += 1
        if parts >= hp.n_layer + 1:
            return None
    if rows.positions is not None:
        rows = replace(rows, positions=_positions(rows.positions, images, habits, n - answered))
    form = PictureForm(parts, rows.last is not None, axes)
    tokens = np.array([max(token, 0) for token in ids], np.int32)
    pages = np.arange(pages_for(n), dtype=np.int32)
    chunk = with_pictures(Chunk(tokens, 0, pages, "all", pictures=rows), form, hp.n_embd, np.dtype(np.float64))
    graph, at = _named_as_dumped(pictured(model.graph, form)), np.arange(n)
    given = {"inp_tokens": tokens.astype(np.int64), "inp_pos": at, "inp_kpos": at, **chunk.rows}
    if POSITIONS in given:  # whole numbers, so that the noise of angles is that of positions
        given[POSITIONS] = given[POSITIONS].astype(np.int64)
    if habits.advance == "one" and not hp.axes:
        moved = _after_one(at, images)
        if habits.masked:
            given |= {"inp_pos": moved, "inp_kpos": moved}
        else:
            graph = _with_other_rope(graph)
            given[ROPE] = moved
    elif habits.masked:
        return None
    return FedPrompt(graph, given, tuple(int(t) for t in tokens))


def _named_as_dumped(graph: Graph) -> Graph:
    """The graph in which what the first layer reads has the embedding's name."""
    plain = next(node for node in graph if node.name == "embd_text").inputs[0]
    names = {MIXED: plain, **{name: f"{name}_of_ids" for name in (plain, "embd") if name in graph}}

    def renamed(name: str) -> str:
        return names.get(name, name)

    return graph.rewrite(
        lambda node: replace(node, name=renamed(node.name), inputs=tuple(map(renamed, node.inputs)))
    ).check()


def _with_other_rope(graph: Graph) -> Graph:
    """The graph whose rotations read positions of their own."""
    found = graph.rewrite(
        lambda node: (
            replace(node, inputs=tuple(ROPE if i == "inp_pos" else i for i in node.inputs))
            if node.op == "rope"
            else None
        )
    )
    return replace(found, given={**graph.given, ROPE: ("T",)})


def _other_axes(model: Model) -> tuple[int, ...]:
    hp = model.hparams
    meta = ArchKeys(model.file.metadata, hp.arch, str(model.file.path))
    both = [rope_axes(meta, len(hp.axes), interleaved)[0] for interleaved in (False, True)]
    return next((axes for axes in both if axes != hp.axes), hp.axes)


def _other_last(images: Images, rows: PictureRows, n: int) -> NDArray[np.int32] | None:
    if rows.last is not None:
        return None
    last = np.arange(n, dtype=np.int32)
    for p in images:
        last[p.start : p.end] = p.end - 1
    return last


def _positions(right: Array, images: Images, habits: PromptHabits, n_prompt: int) -> NDArray[np.int32]:
    found = right.astype(np.int32).copy()
    if habits.decoding:
        found[n_prompt:] = np.arange(n_prompt, len(found))[:, None]
    for p in images:
        start, n = int(found[p.start, 0]), p.end - p.start
        steps = {"tokens": n, "one": 1}.get(habits.advance)
        if steps is not None and p.end < len(found):
            found[p.end :] += start + steps - found[p.end, 0]
        if habits.one_number:
            found[p.start : p.end] = (start + np.arange(n))[:, None]
        if habits.exchanged:
            found[p.start : p.end] = found[p.start : p.end][:, [0, 2, 1]]
    return found


def _after_one(at: Array, images: Images) -> NDArray[np.int64]:
    found = at.astype(np.int64).copy()
    for p in images:
        found[p.end :] -= p.end - p.start - 1
    return found
