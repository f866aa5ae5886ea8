"""`assay inspect`: what is in a file, what it needs, and what is odd about it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from assay import models
from assay.cli.common import add_model_argument, emit
from assay.errors import AssayError
from assay.gguf import GGUFFile, ValueType, open_file
from assay.gguf.checks import scale_notes, tokenizer_notes
from assay.gguf.cursor import printable
from assay.runtime import hub

HELP = "metadata, tensors, memory and health of a model file"
EXAMPLE = "assay inspect model.gguf --tensors"

_SHOWN = 6  # elements of an array that the text form shows
_LONGEST = 90


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor: type, shape (row-major), bytes")
    parser.add_argument("--graph", action="store_true", help="print the graph: one line a node, with its shape")
    parser.add_argument("-c", "--ctx", type=int, metavar="N", help="context for the memory estimate (default: trained)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, arrays in full")
    parser.add_argument("--fast", action="store_true", help="do not read the tensors in search of NaN scales")


def run(args: argparse.Namespace) -> int:
    with open_file(hub.resolve(args.model)) as file:
        if args.graph:
            text = models.load(file).graph.text()
            emit(args, {"path": str(file.path), "graph": text.splitlines()}, text)
        else:
            report = describe(file, args.ctx, scan=not args.fast)
            emit(args, report, "" if args.json else "\n".join(_lines(file, report, tensors=args.tensors)))
    return 0


def describe(file: GGUFFile, context: int | None = None, *, scan: bool = True) -> dict[str, Any]:
    """The whole report as plain values. Shapes are row-major: the last dimension is contiguous in the file."""
    model, notes = _model(file)
    metadata = {key: _value(file, key, notes) for key in file.metadata}
    notes += _until_error(tokenizer_notes(file))
    if scan:
        notes += scale_notes(file)
    parameters = sum(t.n_elements for t in file.tensors.values())
    weights = sum(t.nbytes for t in file.tensors.values())
    return {
        "path": str(file.path),
        "parts": [str(part.path) for part in file.parts],
        "size": file.size,
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "architecture": metadata.get("general.architecture"),
        "parameters": parameters,
        "bits_per_weight": round(8 * weights / parameters, 4) if parameters else None,
        "memory": _memory(model, weights, context),
        "notes": [printable(note) for note in notes],
        "metadata": metadata,
        "tensors": [
            {
                "name": t.name,
                "shape": list(t.shape),
                "type": t.type.name,
                "offset": t.offset,
                "bytes": t.nbytes,
                "part": t.part,
            }
            for t in file.tensors.values()
        ],
    }


def _model(file: GGUFFile) -> tuple[models.Model | None, list[str]]:
    """The model that the tensors make, or a note that says why they make none."""
    if not file.tensors:
        return None, ["tensors: none; this file is a vocabulary, not a model"]
    try:
        model = models.load(file)
    except AssayError as error:
        return None, [f"cannot be run: {error}"]
    used = {name for node in model.graph for name in node.weights}
    unused = [name for name in file.tensors if name not in used]
    return model, [f"{name}: not used by the {model.hparams.arch} graph" for name in unused]


def _memory(model: models.Model | None, weights: int, context: int | None) -> dict[str, int] | None:
    """Bytes for the weights as stored, and for an f16 key and value cache over the whole context."""
    if model is None:
        return None
    hp = model.hparams
    n_ctx = hp.n_ctx_train if context is None else context
    if n_ctx < 1:
        raise AssayError(f"--ctx: found {n_ctx}, expected at least 1")
    cache = 2 * hp.n_layer * n_ctx * hp.n_head_kv * (hp.n_embd_head + hp.n_embd_head_v)
    return {"weights": weights, "kv_cache": cache, "context": n_ctx, "total": weights + cache}


def _until_error(notes: Iterable[str]) -> Iterator[str]:
    try:
        yield from notes
    except AssayError as error:
        yield str(error)


def _value(file: GGUFFile, key: str, notes: list[str]) -> Any:
    """A metadata value, or None and a note where its bytes make no sense."""
    try:
        return _plain(file.metadata[key])
    except AssayError as error:
        notes.append(str(error))
        return None


def _plain(value: Any) -> Any:
    """A metadata value as JSON has it: no arrays, no NaN."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines(file: GGUFFile, report: dict[str, Any], *, tensors: bool) -> Iterator[str]:
    parts = f", {len(file.parts)} parts" if len(file.parts) > 1 else ""
    yield f"file        {file.path}"
    yield f"            {_size(file.size)}{parts}, GGUF version {file.version}, {file.byteorder}-endian"
    if report["parameters"]:
        yield f"parameters  {report['parameters']:,}, {report['bits_per_weight']:.2f} bits per weight"
    if memory := report["memory"]:
        yield (
            f"memory      {_size(memory['total'])}: weights {_size(memory['weights'])}, f16 cache of "
            f"{memory['context']} tokens {_size(memory['kv_cache'])}"
        )
    yield from _types(file)
    yield "\nmetadata"
    width = max(map(len, file.metadata), default=0)
    for key in file.metadata:
        yield f"  {printable(key):<{width}}  {_short(file, key, report['metadata'][key])}"
    if tensors:
        yield "\ntensors (row-major shapes)"
        width = max(map(len, file.tensors), default=0)
        for t in file.tensors.values():
            shape = " x ".join(map(str, t.shape))
            yield f"  {printable(t.name):<{width}}  {t.type.name:<8}{shape:<18}{t.nbytes:>14,} bytes at {t.offset:,}"
    yield "\nnotes"
    yield from (f"  {note}" for note in report["notes"] or ["nothing odd"])


def _types(file: GGUFFile) -> Iterator[str]:
    """One line a type, the largest first."""
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
    """A value on one line, the middle of long ones left out."""
    if value is None:
        return f"?  ({file.metadata.describe(key)})"
    if (count := file.metadata.length(key)) is None:
        if file.metadata.types(key)[0] is ValueType.FLOAT32 and isinstance(value, float):
            value = np.float32(value)  # shows 1e-05 where the double behind it would not
        return printable(repr(value) if isinstance(value, str) else str(value), _LONGEST)
    head = ", ".join(str(v) if not isinstance(v, str) else repr(v) for v in list(value[:_SHOWN]))
    return f"[{printable(head, _LONGEST)}{', …' if count > _SHOWN else ''}]  ({file.metadata.describe(key)})"


def _size(count: int) -> str:
    """Bytes as people say them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
