"""`assay watch`: run somebody's engine, judge what it prints as it comes, and again when it changes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from assay.cli.common import add_json_argument, number, say, text_argument, token_ids
from assay.errors import AssayError
from assay.system.plain import plain
from assay.system.terminal import harmless

HELP = "run your engine, show its first wrong node, and again on every change"
EXAMPLE = """\
assay watch smollm2 -p "The capital of France is" -- ./my-engine --dump
assay watch smollm2 --tokens 504,3575,282 --on src -- make run     # exit with Ctrl-C; --once: 0 right, 1 wrong
assay watch smollm2 --once --diagnose -- ./my-engine --dump        # and why: the known mistake that gives these values
assay watch smollm2 --dump out.npz -- python engine.py             # a file that it writes, not what it prints"""
COMMAND = True  # what follows `--` is a command of the user's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "assay watch MODEL [options] -- COMMAND…"
    parser.add_argument("model", metavar="MODEL", help="the model that the engine runs")
    parser.add_argument("--dump", metavar="FILE", help="read this file, which the command writes, not what it prints")
    parser.add_argument("--on", action="append", default=[], metavar="PATH",
                        help="run again when this file or folder changes, too; repeatable")  # fmt: skip
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="the text that it is given")
    parser.add_argument("--tokens", type=token_ids, default=[], metavar="IDS", help="the ids that it is given")
    parser.add_argument("--map", metavar="FILE", help="JSON object from the engine's names to nodes")
    parser.add_argument(
        "--pattern", action="append", default=[], metavar="P", help="of log lines; docs/reference/dump-format.md"
    )
    parser.add_argument("--interval", type=number, default=0.5, metavar="S", help="seconds between looks for a change")
    parser.add_argument("--once", action="store_true", help="do not wait for a change")
    parser.add_argument("--diagnose", action="store_true", help="also name the known mistake that gives these values")
    parser.add_argument("--all", action="store_true", help="show every node, not only those around the first wrong one")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.watching import watch
    from assay.verify.dumps.load import read_map

    if not args.command:
        raise AssayError("watch: no command given; put it after --, as in `assay watch smollm2 -- ./my-engine`")
    if args.interval <= 0:
        raise AssayError(f"--interval: must be more than 0 (found {args.interval:g})")
    good = True
    for seen in watch(
        args.model, args.command, dump=Path(args.dump) if args.dump else None, on=[Path(p) for p in args.on],
        once=args.once, why=args.diagnose, interval=args.interval, tokens=args.tokens, prompt=args.prompt,
        names=read_map(Path(args.map)) if args.map else None, patterns=args.pattern,
    ):  # fmt: skip
        if seen.finding is None:
            say(seen.text)
        elif args.json:
            print(json.dumps(plain({"event": seen.kind, **seen.finding.to_dict()}), allow_nan=False), flush=True)
        else:
            rows = 10**9 if args.all else 6
            told = seen.text if seen.kind == "first" else seen.finding.words(rows)
            print(harmless("\n" * (seen.kind == "cause") + told), flush=True)
        if seen.kind in ("verdict", "cause"):
            good = bool(seen.finding) and (good or seen.kind == "verdict")
    return 0 if good else 1
