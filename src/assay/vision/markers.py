"""The text around the images of a picture: markers that the language model was trained with, by projector.

A marker is tokenised by itself, with special tokens. Touch this when a model has other markers.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.vision.picture_plan import PicturePlan

Pieces = list[str | int]  # text, or the index of an image of the plan


def _around(before: str, after: str) -> Callable[[PicturePlan], Pieces]:
    """All images one after the other, with text before and after them."""

    def pieces(plan: PicturePlan) -> Pieces:
        return [before, *range(len(plan.images)), after]

    return pieces


def _idefics3(plan: PicturePlan) -> Pieces:
    """Each tile with its row and column, rows of tiles on lines of their own, the overview last."""
    found: Pieces = []
    columns, rows = plan.tiles
    for i, image in enumerate(plan.images):
        if image.kind != "tile":
            found += ["\n\n", "<fake_token_around_image><global-img>", i, "<fake_token_around_image>"]
            continue
        column, row = image.at
        found += [f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>", i]
        if column + 1 == columns and row + 1 < rows:
            found.append("\n")
    return found


def _lfm2(plan: PicturePlan) -> Pieces:
    found: Pieces = ["<|image_start|>"]
    for i, image in enumerate(plan.images):
        if image.kind == "tile":
            found.append(f"<|img_row_{image.at[1] + 1}_col_{image.at[0] + 1}|>")
        elif image.kind == "overview":
            found.append("<|img_thumbnail|>")
        found.append(i)
    return [*found, "<|image_end|>"]


MARKERS: dict[str, Callable[[PicturePlan], Pieces]] = {
    "gemma3": _around("<start_of_image>", "<end_of_image>"),
    "qwen2vl_merger": _around("<|vision_start|>", "<|vision_end|>"),
    "qwen2.5vl_merger": _around("<|vision_start|>", "<|vision_end|>"),
    "qwen3vl_merger": _around("<|vision_start|>", "<|vision_end|>"),
    "idefics3": _idefics3,
    "gemma4v": _around("<|image>", "<image|>"),
    "lfm2": _lfm2,
    "pixtral": _around("", "[IMG_END]"),
    "internvl": _around("<img>", "</img>"),
    "mlp": _around("", ""),
}


def marked(projector: str, plan: PicturePlan) -> Pieces:
    """The pieces of a picture in the prompt, without empty text."""
    return [piece for piece in MARKERS[projector](plan) if piece != ""]
