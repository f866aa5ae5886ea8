"""`assay diagnose` and `assay diff` with `--image`: what an engine made of a picture, or of a prompt with pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.common import add_mmproj_argument, emit, opened
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.library.verdicts import Finding


def add_picture_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        help="judge what an engine made of this picture: DUMP has pixels_0, embd_0 or nodes of the vision tower; with "
        "-p TEXT its run of the prompt, where <__media__> stands for the picture: DUMP has logits or nodes of the "
        "language model, and the option may be repeated",
    )
    add_mmproj_argument(parser)


def judge_picture(args: argparse.Namespace, model: str | None, dump: str, *, diagnosing: bool) -> int:
    """Judge the dump of a picture; `model` is an mmproj file, or the language model that it lies beside."""
    found = (
        _of_prompt(args, model, dump, diagnosing)
        if args.prompt is not None
        else _of_tower(args, model, dump, diagnosing)
    )
    if args.html:
        found.save_html(args.html)
    rows = 10**9 if getattr(args, "all", False) else 12
    emit(args, found.to_dict(), lambda: found.words(rows))
    return 0 if found else 1


def _of_tower(args: argparse.Namespace, model: str | None, dump: str, diagnosing: bool) -> Finding:
    from assay.library.picture_verdicts import diagnose_image, diff_image, tower_of

    if len(args.image) > 1:
        raise AssayError("--image: one picture at a time, or the text of the prompt that has them all with -p TEXT")
    tower = tower_of(model, args.mmproj)
    if diagnosing:
        return diagnose_image(tower, dump, args.image[0], seconds=_seconds(args))
    return diff_image(tower, dump, args.image[0])


def _of_prompt(args: argparse.Namespace, model: str | None, dump: str, diagnosing: bool) -> Finding:
    from assay.library.picture_verdicts import diagnose_image_prompt, diff_image_prompt
    from assay.verify.dumps.load import read_map

    args.model = model
    on = opened(args)
    if getattr(args, "lora", ()):
        on = on.with_adapters()
    names = read_map(Path(args.map)) if args.map else None
    if diagnosing:
        return diagnose_image_prompt(
            on, dump, args.image, args.prompt, chat=args.chat, system=args.system, names=names, patterns=args.pattern,
            side=args.side, seconds=_seconds(args),
        )  # fmt: skip
    return diff_image_prompt(on, dump, args.image, args.prompt, names=names, patterns=args.pattern, side=args.side)


def _seconds(args: argparse.Namespace) -> float:
    from assay.verify.thresholds import SECONDS, THOROUGH_SECONDS

    return float(args.seconds or (THOROUGH_SECONDS if args.thorough else SECONDS))
