"""`assay eval`: the perplexity of a text."""

from __future__ import annotations

import argparse
import sys

HELP = "perplexity of a text under a model"
EXAMPLE = """\
assay eval smollm2 -f wiki.txt                    # windows of 512 tokens
assay eval smollm2 -f wiki.txt --engine reference --max-tokens 2000"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.common import add_engine_arguments, add_json_argument, add_model_argument, whole

    add_model_argument(parser)
    parser.add_argument("-f", "--file", metavar="FILE", required=True, help="the text, - for standard input")
    parser.add_argument("--window", type=whole(2), default=512, metavar="N", help="tokens read together; default: 512")
    parser.add_argument("--max-tokens", type=whole(2), metavar="N", help="stop after this many; default: all")
    add_engine_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.cli.common import emit, opened, read_text
    from assay.runtime.evaluate import evaluate

    found = opened(args)
    tokenizer = found.tokenizer
    ids = tokenizer.encode(read_text(args.file), add_special=False, parse_special=False)[: args.max_tokens]
    engine = found.engine()
    bos = tokenizer.bos if tokenizer.add_bos else None
    score = evaluate(engine, ids, args.window, bos, _progress if sys.stderr.isatty() else None)
    low, high = (2.718281828459045 ** (score.nll + side * score.error) for side in (-1, 1))
    result = {
        "path": str(found.file.path),
        "engine": engine.name,
        "tokens": score.n_tokens,
        "window": args.window,
        "nll": score.nll,
        "nll_error": score.error,
        "perplexity": score.perplexity,
        "tokens_per_second": score.n_tokens / score.seconds,
    }
    text = (
        f"perplexity {score.perplexity:.4f} ({low:.3f} to {high:.3f}) over {score.n_tokens} tokens, "
        f"windows of {args.window}; {engine.name}, {score.n_tokens / score.seconds:.1f} tokens/s"
    )
    emit(args, result, text)
    return 0


def _progress(done: int, total: int) -> None:
    end = "" if done < total else "\r\033[K"
    print(f"\r{done} of {total} tokens{end}", end="", file=sys.stderr, flush=True)
