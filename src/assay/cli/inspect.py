"""`assay inspect`: metadata, tensors, memory needs and validity of a file, as text or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assay.cli.common import add_json_argument, add_model_argument, emit, model_path
from assay.cli.number_types import MOST_TOKENS, whole

if TYPE_CHECKING:
    from assay.gguf import GGUFFile
    from assay.graph import Graph
    from assay.models.vision.projector_keys import ProjectorKeys

HELP = "show metadata, tensors, memory needs and validity of a model file"
EXAMPLE = "assay inspect model.gguf --tensors"

_SHOWN = 6  # elements of an array
_LONGEST = 90  # characters of a value
_WIDEST = 64  # columns that names are padded to
_PICTURES = ((256, 256), (640, 480), (1920, 1080))  # sizes whose tokens are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor: type, row-major shape, bytes")
    parser.add_argument("--graph", action="store_true", help="print the graph: one line per node, with its shape")
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0, MOST_TOKENS),
        metavar="N",
        help="context size in tokens for the memory estimate; default: the training context",
    )
    parser.add_argument("--state-slots", type=whole(2, 4096), metavar="N",
                        help="states that a server would keep, of a model that has one for each sequence (default: as "
                        "`assay serve` chooses)")  # fmt: skip
    parser.add_argument("--fast", action="store_true", help="do not scan the tensors for NaN scales")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay import models
    from assay.gguf import open_file
    from assay.models.file_report import describe
    from assay.models.vision import is_tower, load_tower

    with open_file(model_path(args)) as file:
        if args.graph:
            text = (load_tower(file) if is_tower(file) else models.load(file)).graph.text()
            emit(args, {"path": str(file.path), "graph": text.splitlines()}, text)
        else:
            report = describe(file, args.ctx_size, scan=not args.fast)
            if report["projector"]:
                report["projector"] |= _pictures(load_tower(file).keys)
            if "state" in (report["memory"] or {}):
                report["memory"] |= _serving(models.load(file).graph, args.state_slots)
            emit(args, report, lambda: "\n".join(_lines(file, report, tensors=args.tensors)))
    return 0


def _serving(graph: Graph, slots: int | None) -> dict[str, int]:
    """The states of a server: a slot for each running sequence and each snapshot of a prefix, and the bytes of all."""
    from assay.engines.plan.state_layout import state_memory

    found = state_memory(graph, slots)
    return {"state_slots": found.slots, "states": found.bytes}


def _pictures(keys: ProjectorKeys) -> dict[str, Any]:
    """Tokens of pictures of a few sizes; a size that the projector refuses is left out."""
    from assay.errors import AssayError
    from assay.vision.picture_plan import plan_picture

    found: dict[str, int] = {}
    for size in _PICTURES:
        with suppress(AssayError):
            found[f"{size[0]}×{size[1]}"] = plan_picture(keys, size).tokens
    return {"tokens": found}


def _lines(file: GGUFFile, report: dict[str, Any], *, tensors: bool) -> Iterator[str]:
    from assay.system.terminal import printable

    parts = f", {len(file.parts)} parts" if len(file.parts) > 1 else ""
    yield f"file        {file.path}"
    yield f"            {_size(file.size)}{parts}, GGUF version {file.version}, {file.byteorder}-endian"
    if report["parameters"]:
        yield f"parameters  {report['parameters']:,}, {report['bits_per_weight']:.2f} bits per weight"
    if found := report["projector"]:
        yield (
            f"projector   {found['type']} ({found['models']}): {found['layers']} layers, {found['width']} wide, "
            f"{found['heads']} heads, patches of {found['patch']}; rows of {found['row']} for the language model"
            + (f", {found['deepstack']} parts of them for its first layers" if found["deepstack"] else "")
        )
        yield "pictures    " + ", ".join(f"{size} {count} tokens" for size, count in found["tokens"].items())
    if report["draft_head"]:
        yield "draft head  the last block guesses tokens ahead: --draft mtp"
    if found := report["eagle_head"]:
        layers = ", ".join(map(str, found["layers"] or ["?"]))
        yield (
            f"draft head  an EAGLE-3 head, which reads its model's rows of {found['row']} before layers {layers}: "
            "--draft FILE"
        )
    elif report["head_file"]:
        yield f"draft head  {report['head_file']}, which guesses the tokens of its model: --draft FILE"
    if memory := report["memory"]:
        yield (
            f"memory      {_size(memory['total'])}: weights {_size(memory['weights'])}, f16 cache of "
            f"{memory['context']} tokens {_size(memory['kv_cache'])}"
            + (f", of it {_size(memory['state'])} state, for each sequence" if "state" in memory else "")
        )
        if "states" in memory:
            yield (
                f"states      {_size(memory['states'])} in a server: {memory['state_slots']} slots of "
                f"{_size(memory['state'])} in float32, each held twice, for running sequences and snapshots of prefixes"
            )
    yield from _types(file)
    yield "\nmetadata"
    width = _width(file.metadata)
    for key in file.metadata:
        yield f"  {printable(key):<{width}}  {_short(file, key, report['metadata'][key])}"
    if tensors:
        yield "\ntensors (row-major shapes)"
        width = _width(file.tensors)
        for t in file.tensors.values():
            shape = " x ".join(map(str, t.shape))
            yield f"  {printable(t.name):<{width}}  {t.type.name:<8}{shape:<18}{t.nbytes:>14,} bytes at {t.offset:,}"
    yield "\nnotes"
    yield from (f"  {note}" for note in report["notes"] or ["nothing odd"])


def _width(names: Iterable[str]) -> int:
    """Width of a column of names, bounded so that one very long name does not widen every line."""
    return min(max(map(len, names), default=0), _WIDEST)


def _types(file: GGUFFile) -> Iterator[str]:
    """One line per type, the largest first."""
    found: dict[str, list[int]] = {}
    for t in file.tensors.values():
        row = found.setdefault(f"{t.type.name:<8}{t.type.bits_per_weight:6.2f} bits", [0, 0, 0])
        for i, n in enumerate((1, t.n_elements, t.nbytes)):
            row[i] += n
    label = "types"
    for name, (count, elements, size) in sorted(found.items(), key=lambda item: -item[1][2]):
        yield f"{label:<12}{name}  {count:>5} tensors  {elements:>15,} weights  {_size(size):>9}"
        label = ""


def _short(file: GGUFFile, key: str, value: Any) -> str:
    """A value on one line; the middle of a long value is left out."""
    import numpy as np

    from assay.gguf.types import ValueType
    from assay.system.terminal import printable

    if value is None:
        return f"?  ({file.metadata.describe(key)})"
    if (count := file.metadata.length(key)) is not None:
        head = ", ".join(repr(v) if isinstance(v, str) else str(v) for v in value[:_SHOWN])
        more = ", …" if count > _SHOWN else ""
        return f"[{printable(head, _LONGEST)}{more}]  ({file.metadata.describe(key)})"
    if file.metadata.types(key)[0] is ValueType.FLOAT32:
        value = np.float32(value)  # prints as 1e-05; the equal double prints more digits
    return printable(repr(value) if isinstance(value, str) else str(value), _LONGEST)


def _size(count: int) -> str:
    """Bytes in a readable unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
