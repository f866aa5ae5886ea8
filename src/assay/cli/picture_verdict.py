"""`assay diagnose` and `assay diff` with `--image`: what an engine made of a picture."""

from __future__ import annotations

import argparse

from assay.cli.common import add_mmproj_argument, emit


def add_picture_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image",
        metavar="FILE",
        help="judge what an engine made of this picture: DUMP has pixels_0, embd_0 or nodes of the vision tower",
    )
    add_mmproj_argument(parser)


def judge_picture(args: argparse.Namespace, model: str | None, dump: str, *, diagnosing: bool) -> int:
    """Judge the dump of a picture; `model` is an mmproj file, or the language model that it lies beside."""
    from assay.library.picture_verdicts import diagnose_image, diff_image, tower_of
    from assay.verify.thresholds import SECONDS, THOROUGH_SECONDS

    tower = tower_of(model, args.mmproj)
    if diagnosing:
        seconds = args.seconds or (THOROUGH_SECONDS if args.thorough else SECONDS)
        found = diagnose_image(tower, dump, args.image, seconds=seconds)
    else:
        found = diff_image(tower, dump, args.image)
    if args.html:
        found.save_html(args.html)
    rows = 10**9 if getattr(args, "all", False) else 12
    emit(args, found.to_dict(), lambda: found.words(rows))
    return 0 if found else 1
