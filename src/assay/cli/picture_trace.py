"""`assay trace MMPROJ --image FILE`: every stage of a picture and every node of the vision tower, as arrays in a file.

    decoded                     the picture, bytes [row, column, RGB]
    resized_J, padded_J         image J before and after padding; images are tiles, an overview, or the picture itself
    pixels_J                    what the tower reads, float32 [channel, row, column]
    embd_J                      the rows for the language model
    NODE, NODE@J                a node of the tower for image 0, and for image J

A dump of `pixels_0` alone is enough to see a mistake before the tower.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.cli.common import emit, model_path
from assay.errors import AssayError
from assay.system.counting import counted

if TYPE_CHECKING:
    from assay.vision.encode import TracedPicture
    from assay.vision.projector import Projector, TowerInput

Array = NDArray[Any]
SCORES = ("kq", "kq_soft_max")  # a value for each pair of patches: kept only where --nodes asks for them
MOST_BYTES = 4 << 30


def trace_picture_file(args: argparse.Namespace) -> int:
    """Trace a picture through the tower of an mmproj file."""
    from assay.verify.dumps.tracing import choose
    from assay.vision.encode import prepare_picture, tower_input, trace_picture
    from assay.vision.projector import open_projector

    if args.output is None or Path(args.output).suffix not in (".npz", ".safetensors"):
        raise AssayError("trace: a picture's trace is written as .npz or .safetensors; name the file with -o FILE")
    projector = open_projector(model_path(args), args.engine, threads=args.threads, precision=args.precision or "fast")
    names = choose(projector.tower.graph, args.nodes, () if args.nodes else SCORES)
    data = read_picture(Path(args.image))
    images = [tower_input(projector, image) for image in prepare_picture(projector, data).images]
    _check_size(projector, images, names)
    traced = trace_picture(projector, data, names)
    arrays = arrays_of(traced)
    _write(Path(args.output), arrays)
    size, count, tokens = Path(args.output).stat().st_size, len(traced.rows), sum(map(len, traced.rows))
    done = {"path": args.output, "engine": projector.engine, "images": count, "tokens": tokens, "nodes": len(names)}
    emit(
        args, done | {"bytes": size},
        f"{args.output}: {counted(len(names), 'node')} of {counted(count, 'image')}, {counted(tokens, 'token')}, "
        f"{size / 1e6:.1f} MB",
    )  # fmt: skip
    return 0


def read_picture(path: Path) -> bytes:
    """The bytes of a picture's file, if they are not too many."""
    from assay.vision.picture import MAX_BYTES

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AssayError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise AssayError(f"{path}: too many bytes for a picture (expected at most {MAX_BYTES})")
    return data


def arrays_of(traced: TracedPicture) -> dict[str, Array]:
    """The stages and nodes by the names that the file has."""
    found: dict[str, Array] = {"decoded": traced.prepared.decoded}
    for j, (image, rows, nodes) in enumerate(zip(traced.prepared.images, traced.rows, traced.nodes, strict=True)):
        found |= {f"resized_{j}": image.resized, f"padded_{j}": image.padded, f"pixels_{j}": image.pixels}
        found[f"embd_{j}"] = rows
        found |= {name if j == 0 else f"{name}@{j}": value for name, value in nodes.items()}
    return found


def _check_size(projector: Projector, images: Sequence[TowerInput], names: Sequence[str]) -> None:
    """Refuse a trace that would not fit into memory; patches are counted for every node, so this is an upper bound."""
    shapes = projector.tower.graph.shapes
    each = 8 if projector.engine == "reference" else 4
    total = sum(
        each * math.prod(image.n_rows if isinstance(dim, str) else dim for dim in shapes[name])
        for image in images
        for name in names
    )
    if total > MOST_BYTES:
        raise AssayError(
            f"trace: too large (found {total / 1e9:.1f} GB, expected at most {MOST_BYTES / 1e9:.1f} GB); choose nodes "
            "with --nodes"
        )


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    from assay.system.files import NewFile
    from assay.verify.dumps.formats.safetensors import TensorWriter

    if path.suffix == ".npz":
        with NewFile(path) as out:
            np.savez(out, allow_pickle=False, **arrays)
        return
    writer = TensorWriter(path, [(name, x.dtype, x.shape) for name, x in arrays.items()], {"assay_picture": "1"})
    done = False
    try:
        for name, value in arrays.items():
            writer.put(name, value)
        done = True
    finally:
        writer.close(keep=done)
