"""`assay export-web`: write a folder with a page that runs a model in the browser, without a server of ours."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from assay.cli.common import add_json_argument, add_model_argument, emit, opened
from assay.cli.number_types import MOST_TOKENS, whole
from assay.system.files import check_target_folder

HELP = "write a web page that runs a model in the browser"
EXAMPLE = """\
assay export-web smollm2 -o site
python -m http.server -d site 8000      # then open http://127.0.0.1:8000 in a browser with WebGPU"""
_CONTEXT = 2048  # keys and values of a longer context would take most of a small GPU


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder to write")
    parser.add_argument(
        "-c", "--ctx-size", type=whole(0, MOST_TOKENS), default=_CONTEXT, metavar="N",
        help=f"context size in tokens; 0: the training context; default: {_CONTEXT}",
    )  # fmt: skip
    parser.add_argument("--raw", action="store_true", help="prompts as they are, without the file's chat template")
    parser.add_argument(
        "--without-model", action="store_true",
        help="leave the model's file out: the page asks its user to open it",
    )  # fmt: skip
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.web_export import export_web

    check_target_folder(Path(args.output))
    found = opened(args)
    site = export_web(found, Path(args.output), args.raw, not args.without_model)
    where = "left out" if args.without_model else "linked or copied"
    text = (
        f"wrote {site.folder}: the model's {site.model / 1e6:.0f} MB {where}, {site.packed / 1e6:.1f} MB of tables and "
        f"constants, {site.dispatches} dispatches a token, a context of {site.context} tokens; serve it with "
        f"`python -m http.server -d {site.folder}`"
    )
    emit(args, {**asdict(site), "folder": str(site.folder)}, text)
    return 0
