"""`assay watch`: run an engine, judge its output while it prints, and repeat when its files change."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from assay.cli.common import add_json_argument, add_reading_arguments, say, text_argument, token_ids
from assay.cli.number_types import real, whole
from assay.errors import AssayError
from assay.system.plain import plain
from assay.system.terminal import harmless

HELP = "run your engine and show its first wrong node; repeat on every change"
EXAMPLE = """\
assay watch smollm2 -p "The capital of France is" -- ./my-engine --dump
assay watch smollm2 --tokens 504,3575,282 --on src -- make run     # exit with Ctrl-C; --once: 0 right, 1 wrong
assay watch smollm2 --once --diagnose -- ./my-engine --dump        # also find the known mistake behind them
assay watch smollm2 --dump out.npz -- python engine.py             # read a file that it writes instead of its output
assay watch smollm2 --http 8090                                    # judge what a page in a browser posts"""
COMMAND = True  # the words after `--` are the user's command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "assay watch MODEL [options] -- COMMAND…"
    parser.add_argument("model", metavar="MODEL", help="the model that the engine runs")
    parser.add_argument("--dump", metavar="FILE", help="read this file, written by the command, instead of its output")
    parser.add_argument("--http", type=whole(1, 65535), default=0, metavar="PORT",
                        help="run no command; judge each dump that is posted to this port")  # fmt: skip
    parser.add_argument("--on", action="append", default=[], metavar="PATH",
                        help="also run again when this file or folder changes; repeatable")  # fmt: skip
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="text that the engine is given")
    parser.add_argument(
        "--tokens", type=token_ids, default=[], metavar="IDS", help="token ids that the engine is given"
    )
    add_reading_arguments(parser)
    parser.add_argument(
        "--interval", type=real(0, above=True), default=0.5, metavar="S", help="seconds between checks for a change"
    )
    parser.add_argument("--once", action="store_true", help="run once, without waiting for a change")
    parser.add_argument(
        "--diagnose", action="store_true", help="also find the known mistake that reproduces the values"
    )
    parser.add_argument("--all", action="store_true", help="show every node, not only those around the first wrong one")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.watching import watch
    from assay.verify.dumps.load import read_map

    if args.http and (args.command or args.dump or args.on):
        raise AssayError("watch: --http runs no command; leave out --dump, --on and the words after --")
    if not args.command and not args.http:
        raise AssayError("watch: no command given; put it after --, as in `assay watch smollm2 -- ./my-engine`")
    good = True
    for seen in watch(
        args.model, args.command, dump=Path(args.dump) if args.dump else None, on=[Path(p) for p in args.on],
        once=args.once, why=args.diagnose, interval=args.interval, tokens=args.tokens, prompt=args.prompt,
        names=read_map(Path(args.map)) if args.map else None, patterns=args.pattern, port=args.http,
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
