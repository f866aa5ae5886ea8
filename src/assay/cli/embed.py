"""`assay embed`: compute an embedding vector per text, as lines of numbers, as JSON or as a NumPy file."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli import common
from assay.cli.number_types import whole
from assay.errors import AssayError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HELP = "compute a normalised embedding vector for each text"
EXAMPLE = """assay embed bge.gguf -p "a cat" -p "a kitten" --json
assay embed nomic.gguf -f lines.txt -o vectors.npy --dimensions 256"""

_SUFFIXES = (".npy", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    parser.add_argument("texts", nargs="*", type=common.text_argument, metavar="TEXT", help="a text, after MODEL")
    group = parser.add_argument_group("texts, in the order TEXT, -p, -f, --ids")
    group.add_argument("-p", "--prompt", action="append", default=[], type=common.text_argument, metavar="TEXT",
                       help="a text; repeatable")  # fmt: skip
    group.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="file with one text per line; - for standard input; blank lines are skipped",
    )
    group.add_argument("--ids", action="append", default=[], type=common.token_ids, metavar="1,2,3",
                       help="a text as token ids, without added special tokens; repeatable")  # fmt: skip
    parser.add_argument(
        "--pooling",
        metavar="HOW",
        help="pooling over tokens: mean, first or last; default: that of the file, else mean",
    )
    parser.add_argument("--dimensions", type=whole(1), metavar="N", help="keep the first N values of a vector")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write: .npy (texts × values, float32) or .json")
    common.add_engine_arguments(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library.language_model import LanguageModel
    from assay.runtime.pooling import check_dimensions, embedding_of

    if args.output is not None and Path(args.output).suffix not in _SUFFIXES:
        raise AssayError(f"-o: must end in {' or '.join(_SUFFIXES)} (found {args.output})")
    texts: list[Any] = [*args.texts, *args.prompt, *_lines(args.file), *args.ids]
    if not texts:
        raise AssayError("embed: no text; give one after the model, with -p TEXT, -f FILE or --ids IDS")
    opened = common.opened(args, cache_size=None)
    how = embedding_of(opened.model.graph, args.pooling)
    check_dimensions(args.dimensions, how.width)
    ids = [opened.tokenizer.encode(text) if isinstance(text, str) else text for text in texts]
    with LanguageModel(opened) as model:
        vectors = model.embed(ids, pooling=args.pooling, dimensions=args.dimensions)
    about = {"model": str(opened.file.path), "pooling": args.pooling or how.declared or "mean",
             "dimensions": vectors.shape[1], "tokens": [len(one) for one in ids]}  # fmt: skip
    if args.output is None:
        common.emit(args, about | {"embeddings": vectors}, lambda: _text(vectors))
    else:
        _write(Path(args.output), vectors, about)
        common.emit(args, about | {"path": args.output}, f"{args.output}: {len(vectors)} vectors of {vectors.shape[1]}")
    return 0


def _lines(path: str | None) -> list[str]:
    return [] if path is None else [line for line in common.read_text(path).splitlines() if line.strip()]


def _text(vectors: NDArray[np.float32]) -> str:
    """One vector per line, with enough digits to restore every float exactly."""
    return "\n".join(" ".join(f"{value:.9g}" for value in row) for row in vectors)


def _write(path: Path, vectors: NDArray[np.float32], about: dict[str, Any]) -> None:
    import numpy as np

    from assay.system.files import write

    if path.suffix == ".npy":
        held = io.BytesIO()
        np.save(held, vectors)
        write(path, held.getvalue())
    else:
        write(path, json.dumps(common.plain(about | {"embeddings": vectors}), allow_nan=False) + "\n")
