"""`assay trace`: write the value of every node, on any engine, to a safetensors or .npz file or as JSON lines."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.common import add_json_argument, add_model_argument, add_tier_argument, emit, opened, token_ids
from assay.cli.number_types import MOST_THREADS, MOST_TOKENS, whole
from assay.errors import AssayError
from assay.system.counting import counted
from assay.system.files import check_target, write
from assay.verify.conformance.sample import PROMPT
from assay.verify.witness import WITNESSES

if TYPE_CHECKING:
    from assay.runtime.opening import Opened

HELP = "write the value of every node to a file, on any engine"
EXAMPLE = """\
assay trace smollm2 -p "The capital of France is" -o truth.safetensors
assay trace smollm2 --tokens 504,3575,282 --decode 1 --engine cpu --nodes 'l_out|result' --summary
assay trace mmproj.gguf --image cat.png -o picture.npz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_token_arguments(parser)
    parser.add_argument(
        "--image",
        metavar="FILE",
        help="a picture: MODEL is then an mmproj file, whose vision tower is traced",
    )
    parser.add_argument("--nodes", metavar="REGEX", help="only nodes whose name contains a match")
    add_run_arguments(parser, "reference")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write, .safetensors or .npz; --summary: default stdout"
    )
    parser.add_argument(
        "--summary", action="store_true", help="write JSON lines with statistics and first values instead"
    )
    add_json_argument(parser)


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--prompt", metavar="TEXT", help=f"text to compute; default: {PROMPT!r}")
    parser.add_argument("--tokens", type=token_ids, metavar="IDS", help="token ids to compute, such as 1,2,3")
    parser.add_argument(
        "--decode",
        type=whole(0, MOST_TOKENS),
        default=0,
        metavar="K",
        help="decode the last K tokens one by one, with the KV cache",
    )


def add_run_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    names = ", ".join(("reference", "cpu", "cuda", "wgpu", *WITNESSES))
    parser.add_argument("--engine", default=default, metavar="NAME", help=f"engine: {names}; default: {default}")
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help="arithmetic of the engine: fast or exact (cpu, cuda), tensor or mixed (cuda), f64 or f32 (reference)",
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=whole(1, MOST_THREADS),
        metavar="N",
        help="number of threads; default: chosen by the engine",
    )
    parser.add_argument("--kv-type", metavar="TYPE", help="data type of the KV cache, such as f16")
    add_tier_argument(parser)


def chosen_tokens(args: argparse.Namespace, found: Opened) -> list[int]:
    """The token ids of -p or --tokens."""
    if args.prompt is not None and args.tokens is not None:
        raise AssayError("give -p TEXT or --tokens IDS, not both")
    ids = args.tokens
    if ids is None:
        ids = found.tokenizer.encode(PROMPT if args.prompt is None else args.prompt)
    if not ids:
        raise AssayError("no tokens to compute; give a text with -p or ids with --tokens")
    return list(ids)


def run(args: argparse.Namespace) -> int:
    from assay.engines.contract import pages_for
    from assay.verify.dumps.tracing import choose, steps_of, write_summary, write_trace
    from assay.verify.witness.engines_by_name import open_engine

    if args.image is not None:
        from assay.cli.picture_trace import trace_picture_file

        return trace_picture_file(args)
    if args.output is None and not args.summary:
        raise AssayError("trace: no file named; give one with -o FILE, or --summary for JSON lines on stdout")
    if args.output is not None:
        check_target(args.output)
    found = opened(args)
    model, tokens = found.model, chosen_tokens(args, found)
    steps = steps_of(len(tokens), args.decode)
    choose(model.graph, args.nodes)  # fails before the engine is made
    once = args.engine == "reference" and len(steps) == 1  # then no decoded tensor is used twice
    engine = open_engine(
        args.engine, model, budget=0 if once else None,
        n_pages=pages_for(len(tokens)), precision=args.precision, threads=args.threads, kv_type=args.kv_type,
        tier=args.tier,
    )  # fmt: skip
    names = choose(model.graph, args.nodes, engine.cannot_keep)
    if args.summary:
        out = sys.stdout if args.output is None else io.StringIO()
        write_summary(out, engine, tokens, decode=args.decode, nodes=args.nodes)
        if isinstance(out, io.StringIO):
            write(args.output, out.getvalue())
    else:
        write_trace(Path(args.output), engine, tokens, decode=args.decode, nodes=args.nodes)
    engine.close()
    if args.output is not None:
        size = Path(args.output).stat().st_size
        done = {"path": args.output, "engine": engine.name, "tokens": tokens, "steps": steps, "nodes": len(names)}
        emit(
            args, done | {"bytes": size},
            f"{args.output}: {counted(len(names), 'node')} of {counted(len(tokens), 'token')} in "
            f"{counted(len(steps), 'step')}, {size / 1e6:.1f} MB",
        )  # fmt: skip
    return 0
