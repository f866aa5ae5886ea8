"""`assay bisect`: find the first difference between two builds or settings of an engine, and which one is right."""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.cli.common import add_json_argument, add_reading_arguments, emit, text_argument, token_ids
from assay.errors import AssayError

HELP = "find where two builds or settings of an engine differ, and which is right"
EXAMPLE = """\
assay bisect before.npz after.npz -m smollm2                        # exit 0: they agree, 1: they differ
assay bisect "./engine-old --dump" "./engine --dump" -m smollm2 -p "The capital of France is"
assay bisect http://localhost:8080 http://localhost:8081 -m smollm2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a dump, a quoted command that prints or writes one, or http://…")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument("-m", "--model", metavar="MODEL", help="model whose definition decides which one is right")
    parser.add_argument(
        "--dump", metavar="FILE", help="read this file, written by both commands, instead of their output"
    )
    parser.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help="text that both are given")
    parser.add_argument("--tokens", type=token_ids, default=[], metavar="IDS", help="token ids that both are given")
    add_reading_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.two_runs import bisect
    from assay.verify.dumps.load import read_map

    if args.a == args.b:
        raise AssayError(f"{args.a}: A and B are the same; name two builds, settings or dumps")
    found = bisect(
        args.a, args.b, args.model, dump=Path(args.dump) if args.dump else None, tokens=args.tokens,
        prompt=args.prompt, names=read_map(Path(args.map)) if args.map else None, patterns=args.pattern,
    )  # fmt: skip
    emit(args, found.to_dict(), lambda: repr(found))
    return 0 if found else 1
