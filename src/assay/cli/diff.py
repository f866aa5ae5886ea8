"""`assay diff`: compare a trace, a dump or an engine with the definition, or two files of one model with each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from assay.cli.common import add_json_argument, add_reading_arguments, dump_of, emit, say
from assay.cli.number_types import MOST_TOKENS, whole
from assay.cli.picture_verdict import add_picture_arguments, judge_picture
from assay.cli.trace import add_token_arguments, chosen_tokens
from assay.errors import AssayError
from assay.system.files import check_target
from assay.system.text_files import read_text

HELP = "compare a trace, a dump or an engine with the definition, or runs with each other"
EXAMPLE = """\
assay diff smollm2 dump.npz                      # another engine's dump against the definition
assay diff truth.safetensors smollm2@cpu         # exit 0: same or noise, 1: wrong, 2: cannot be compared
assay diff model-Q4_0.gguf model-Q4_K_M.gguf     # two files of one model: is the difference justified?
assay diff smollm2 --runs a.npz b.npz c.npz      # runs that differ: the first node that varies, and with what
assay diff mmproj.gguf dump.npz --image cat.png   # pixels and nodes of a vision tower
assay diff --runs "./engine --dump" --repeat 5   # the same from a command; exit 1: the runs differ"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "a", metavar="A", nargs="?", help="the right side: MODEL (its definition), MODEL@engine, a trace or a dump"
    )
    parser.add_argument("b", metavar="B", nargs="?", help="what to judge: a dump (.jsonl, .npz, .safetensors, .pt, a "
                        "folder, llama-eval-callback's text, a log, - for standard input), MODEL@engine, or a second "
                        "MODEL")  # fmt: skip
    parser.add_argument("--runs", nargs="+", default=[], metavar="RUN",
                        help="compare runs of one engine with each other: dumps, or quoted commands that make one, in "
                        "the order in which they ran")  # fmt: skip
    parser.add_argument("--repeat", type=whole(1, 64), default=1, metavar="N", help="--runs: run each command N times")
    parser.add_argument("--dump", metavar="FILE", help="--runs: read this file, written by the commands")
    parser.add_argument("--model", metavar="MODEL", help="the model, if neither A nor B names it")
    add_picture_arguments(parser)
    add_token_arguments(parser)
    add_reading_arguments(parser)
    parser.add_argument("--side", default="", metavar="NAME", help="engine whose values to read, if a log has several")
    parser.add_argument(
        "--text", metavar="FILE", help="two models: file with the text for the KL divergence; default: a built-in text"
    )
    parser.add_argument(
        "--window",
        type=whole(2, MOST_TOKENS),
        default=128,
        metavar="N",
        help="two models: tokens per window (default 128)",
    )
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page, values side by side")
    parser.add_argument("--all", action="store_true", help="show every node, not only those around the first wrong one")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.html:
        check_target(args.html)
    if args.runs:
        return _runs(args)
    if args.a is None or args.b is None:
        raise AssayError("diff: needs two sides, A and B, or --runs RUN RUN …; see `assay diff --help`")
    with dump_of(args, args.b) as args.b:
        return _two_sides(args)


def _two_sides(args: argparse.Namespace) -> int:
    from assay.library.verdicts import Side, diff
    from assay.verify.dumps.load import read_map

    if args.image is not None:
        return judge_picture(args, args.a, args.b, diagnosing=False)
    a, b = Side.of(args.a, truth=True), Side.of(args.b)
    if a.is_file and b.is_file:
        return _two_files(args)
    if args.prompt is not None and args.tokens is not None:
        raise AssayError("give -p TEXT or --tokens IDS, not both")
    found: Any = diff(
        args.a, args.b, model=args.model, tokens=args.tokens or (), prompt=args.prompt, decode=args.decode,
        names=read_map(Path(args.map)) if args.map else None, patterns=args.pattern, side=args.side, reading=say,
    )  # fmt: skip
    if args.html:
        found.save_html(args.html)
    emit(args, found.to_dict(), lambda: found.words(10**9 if args.all else 12))
    return 0 if found else 1


def _runs(args: argparse.Namespace) -> int:
    from assay.library.several_runs import compare_runs
    from assay.verify.dumps.load import read_map

    if args.b is not None or (args.a is not None and args.model is not None):
        raise AssayError("--runs: compares the runs with each other; give at most the model before it")
    found = compare_runs(
        args.runs, args.model or args.a, repeat=args.repeat, dump=Path(args.dump) if args.dump else None,
        tokens=args.tokens or (), names=read_map(Path(args.map)) if args.map else None, patterns=args.pattern,
    )  # fmt: skip
    emit(args, found.to_dict(), lambda: repr(found))
    return 0 if found else 1


def _two_files(args: argparse.Namespace) -> int:
    from assay.library.file_pair import two_files
    from assay.runtime.opening import open_model

    a, b = open_model(args.a), open_model(args.b)
    prompt = chosen_tokens(args, a)
    text = read_text(args.text, "a text; give a text file, and models as A and B") if args.text else None
    found = two_files(a, b, tokens=prompt, text=text, window=args.window)
    if args.html:
        found.save_html(args.html)
    emit(args, found.to_dict(), lambda: found.words(args.all))
    return 0 if found else 1
