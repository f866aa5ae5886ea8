"""Write a model file in another quantisation.

Tensors are processed one after another, in slabs of rows: decode, encode, free. Memory holds the encoded form of one
tensor and a few slabs, for any size of model. Slabs are independent, so threads process several at once, and the bytes
do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf import codecs
from assay.gguf.importance import Importance
from assay.gguf.mixes import NEEDY, QUANTIZATION_VERSION, Facts, Mix, choose, role_of
from assay.gguf.reader import GGUFFile
from assay.gguf.types import GGMLType, Typed, ValueType
from assay.gguf.writer import Tensor, write

SLAB = 1 << 20  # elements per slab: 4 MiB of float32
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


@dataclass(frozen=True)
class TensorStep:
    """The change of one tensor: types and sizes before and after."""

    name: str
    shape: tuple[int, ...]
    before: GGMLType
    after: GGMLType
    bytes_before: int
    bytes_after: int

    @property
    def requantizes(self) -> bool:
        """Whether quantised blocks are quantised again, which rounds twice."""
        return self.before != self.after and self.before.block_size > 1 and self.after.block_size > 1


def facts_of(file: GGUFFile) -> Facts:
    """The facts for the mix rules, from the metadata. Per-layer head counts are represented by layer 0."""
    arch = file.get_str("general.architecture", "")
    heads = _first(file, f"{arch}.attention.head_count", 0)
    return Facts(
        arch=arch,
        n_layer=_first(file, f"{arch}.block_count", 0),
        n_head=heads,
        n_head_kv=_first(file, f"{arch}.attention.head_count_kv", heads),
        n_expert=_first(file, f"{arch}.expert_count", 0),
        tied="output.weight" not in file.tensors,
        n_value=sum(role_of(name) == "value" for name in file.tensors),
    )


def _first(file: GGUFFile, key: str, default: int) -> int:
    if key in file.metadata and file.metadata.length(key) is not None:
        values = file.get_array(key)
        return int(values[0]) if len(values) else default
    return file.get_int(key, default)


def plan(
    file: GGUFFile, mix: Mix, *, weighted: bool = False, types: Mapping[str, GGMLType] | None = None
) -> list[TensorStep]:
    """The steps in file order. A tensor gets its type from `types` if it is named there, else from the mix."""
    infos = list(file.tensors.values())
    chosen = choose(mix, facts_of(file), [(t.name, t.shape, t.type) for t in infos], weighted)
    types = {**chosen, **(types or {})}
    return [
        TensorStep(
            name=t.name,
            shape=t.shape,
            before=t.type,
            after=types[t.name],
            bytes_before=t.nbytes,
            bytes_after=t.n_elements // t.shape[-1] * types[t.name].row_bytes(t.shape[-1]),
        )
        for t in infos
    ]


def quantize(
    file: GGUFFile,
    out: Path,
    mix: Mix,
    *,
    importance: Importance | None = None,
    types: Mapping[str, GGMLType] | None = None,
    allow_requantize: bool = False,
    threads: int | None = None,
    progress: Callable[[TensorStep], None] = lambda step: None,
) -> list[TensorStep]:
    """Write `file` to `out` in the types of `mix`, and of `types` before it. `out` appears only when it is complete."""
    steps = plan(file, mix, weighted=importance is not None, types=types)
    _check_importance(steps, importance)
    again = [step for step in steps if step.requantizes]
    if again and not allow_requantize:
        raise AssayError(
            f"{file.path.name}: already quantised ({len(again)} tensors, {again[0].name} is {again[0].before}), and "
            "quantising twice loses quality; start from an F16 or F32 file, or pass --allow-requantize"
        )
    for part in file.parts:
        if out.exists() and os.path.samefile(out, part.path):
            raise AssayError(f"{out}: is the input file; name another output file")
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:

        def tensors() -> Iterator[Tensor]:
            for step in steps:
                work = partial(_work, file, step, importance, pool, progress)
                yield Tensor(step.name, step.shape, step.after, work)

        write(out, _metadata(file, mix), tensors())
    return steps


def _metadata(file: GGUFFile, mix: Mix) -> dict[str, Typed]:
    """The metadata of the input with its types, without split keys, with the new file type."""
    pairs = {key: file.metadata.typed(key) for key in file.metadata if key not in SPLIT_KEYS}
    pairs["general.quantization_version"] = Typed(ValueType.UINT32, QUANTIZATION_VERSION)
    pairs["general.file_type"] = Typed(ValueType.UINT32, mix.file_type)
    return pairs


def _check_importance(steps: Iterable[TensorStep], importance: Importance | None) -> None:
    """Refuse the smallest types without an importance matrix, because they would lose too much."""
    for step in steps:
        if step.before == step.after or step.after.name not in NEEDY or role_of(step.name) in ("embedding", "output"):
            continue
        if importance is None or step.name not in importance.entries:
            raise AssayError(
                f"{step.name}: {step.after} needs an importance matrix; make one with `assay imatrix`, pass --imatrix"
            )


def _work(
    file: GGUFFile,
    step: TensorStep,
    importance: Importance | None,
    pool: ThreadPoolExecutor,
    progress: Callable[[TensorStep], None],
) -> npt.NDArray[np.uint8]:
    """The new bytes of a tensor."""
    progress(step)
    raw = file.raw(step.name)
    if step.before == step.after:
        kept = raw.copy()
        file.check()
        return kept
    rows = raw.reshape(-1, raw.shape[-1])
    out = np.empty((len(rows), step.after.row_bytes(step.shape[-1])), np.uint8)
    height = max(1, SLAB // step.shape[-1])
    weights = importance.of(step.name, step.shape) if importance is not None else None
    each = len(rows) // len(weights) if weights is not None else 1  # rows per matrix of a stack

    def convert(i: int) -> None:
        part = slice(i, i + height)
        try:
            values = codecs.decode(step.before, rows[part])
            matrix = np.arange(i, i + len(values)) // each
            out[part] = codecs.encode(step.after, values, None if weights is None else weights[matrix])
        except AssayError as error:
            raise AssayError(f"{step.name}: {error}") from None

    for _ in pool.map(convert, range(0, len(rows), height)):
        pass
    file.check()
    return out
