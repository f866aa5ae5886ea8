"""`assay imatrix`: collect the importance of every matrix column on a text, for `assay quantize --imatrix`."""

from __future__ import annotations

import argparse

HELP = "collect an importance matrix on a text, for quantize"
EXAMPLE = """\
assay imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf
assay imatrix model-f16.gguf -f calibration.txt -o imatrix.dat --chunks 100     # llama.cpp's older format"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.common import add_engine_arguments, add_json_argument, add_model_argument
    from assay.cli.number_types import MOST_TOKENS, whole

    add_model_argument(parser)
    parser.add_argument("-f", "--file", metavar="FILE", required=True, help="file with the text; - for standard input")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="file to write; .dat selects the older format"
    )
    parser.add_argument(
        "--window", type=whole(4, MOST_TOKENS), metavar="N", help="tokens per window; default: -c, else 512"
    )
    parser.add_argument("--chunks", type=whole(1), metavar="N", help="stop after this many windows; default: all")
    parser.add_argument("--process-output", action="store_true", help="include the output matrix")
    add_engine_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.cli.common import emit, opened, read_text
    from assay.evaluate.importance_sums import collect
    from assay.evaluate.pieces import WINDOW, cut
    from assay.gguf.importance import write
    from assay.system.files import check_target

    check_target(args.output)
    found = opened(args)
    tokenizer = found.tokenizer
    ids = tokenizer.encode(read_text(args.file), parse_special=False)
    pieces = cut(ids, args.window or args.ctx_size or WINDOW, tokenizer.bos if tokenizer.add_bos else None, args.chunks)
    matrix = collect(found.engine(), pieces, output=args.process_output, dataset=args.file)
    write(args.output, matrix)
    tokens = sum(len(piece.tokens) for piece in pieces)
    result = {"output": args.output, "matrices": len(matrix.entries), "windows": len(pieces), "tokens": tokens}
    emit(args, result, f"{args.output}: {len(matrix.entries)} matrices, {tokens} tokens in {len(pieces)} windows")
    return 0
