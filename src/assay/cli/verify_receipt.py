"""`assay verify`: replay a receipt of an answer, and say at which token it parts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.common import add_json_argument, add_mmproj_argument, emit, opened, read_text
from assay.cli.number_types import MOST_THREADS, whole
from assay.errors import AssayError
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from assay.runtime.opening import Opened
    from assay.runtime.receipts import Receipt
    from assay.vision.rows import ImageRows

HELP = "replay the receipt of an answer on this machine"
EXAMPLE = """\
assay verify answer.json --model model.gguf
assay verify answer.json --model model.gguf --positions 10
assay verify answer.json --model gemma-3-4b.gguf --image cat.png"""
_LONGEST = 1 << 28  # bytes of a receipt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipt", metavar="RECEIPT", help="file with a receipt, or with an answer that has receipts")
    parser.add_argument("-m", "--model", metavar="MODEL", help="the model file that the answer claims")
    parser.add_argument("--key", default="", metavar="HEX", help="public key that must have signed it")
    parser.add_argument("--positions", type=whole(1), metavar="N", help="compare N random tokens; default: all")
    parser.add_argument("--positions-seed", type=whole(0), metavar="N", help="seed of --positions; default: random")
    parser.add_argument("--engine", default="cpu", metavar="NAME", help="engine to replay on; default: cpu")
    parser.add_argument("-t", "--threads", type=whole(1, MOST_THREADS), metavar="N", help="threads; default: all cores")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="picture of the prompt; repeatable, in the order of the prompt",
    )  # fmt: skip
    add_mmproj_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.runtime.receipt_replay import replay
    from assay.runtime.receipts import read_receipt

    path = Path(args.receipt)
    if args.receipt != "-" and path.is_file() and path.stat().st_size > _LONGEST:
        raise AssayError(f"{path}: too long for a receipt (at most {_LONGEST >> 20} MiB)")
    try:
        found = json.loads(read_text(args.receipt))
    except (ValueError, RecursionError) as error:
        raise AssayError(f"{args.receipt}: not JSON ({harmless(str(error))[:100]})") from None
    receipts = found.get("receipts") if isinstance(found, dict) and "receipts" in found else [found]
    if not isinstance(receipts, list) or not receipts:
        raise AssayError(f"{args.receipt}: has no receipts; start the server with --receipts KEY")
    engine, args.engine = args.engine, None
    on = opened(args)
    read = [read_receipt(item, f"{args.receipt}: receipt {i}") for i, item in enumerate(receipts)]
    results = [
        replay(
            receipt, on.model, key=args.key, positions=args.positions, seed=args.positions_seed, engine=engine,
            threads=args.threads, pictures=_pictures(args, on, receipt, engine),
        )
        for receipt in read
    ]  # fmt: skip
    rows = [
        {"agrees": r.agrees, "reason": r.reason, "parts_at": r.parts_at, "compared": r.compared, "signed": r.signed}
        for r in results
    ]
    lines = [f"{'agrees' if r else 'DIFFERS'}: {r.reason}{', signed' * r.signed}" for r in results]
    emit(args, {"receipts": rows}, "\n".join(lines))
    return 0 if all(results) else 1


def _pictures(args: argparse.Namespace, on: Opened, receipt: Receipt, engine: str) -> list[ImageRows]:
    """The images of the pictures that were named, encoded with the receipt's precision."""
    if not args.image:
        return []
    from assay.runtime.pictured_prompt import picture_bytes, projector_beside
    from assay.vision.encode import encode_pictures
    from assay.vision.projector import open_projector
    from assay.vision.rows import ImageRows

    path = Path(args.mmproj) if args.mmproj else projector_beside(on.file.path)
    if not path.is_file():
        raise AssayError(f"--mmproj {path}: no such file")
    said = receipt.header.get("arithmetic")
    precision = next(iter(said[1:2]), "") if isinstance(said, list) else ""
    of_card = engine == "cuda" and precision in ("tensor", "mixed")  # others have the bits of the cpu engine
    projector = open_projector(path, "cuda" if of_card else "cpu", threads=args.threads, precision=precision)
    try:
        prompts = encode_pictures(projector, [picture_bytes(image) for image in args.image])
    finally:
        projector.close()
    return [piece for prompt in prompts for piece in prompt.pieces if isinstance(piece, ImageRows)]
