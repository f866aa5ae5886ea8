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
from assay.gguf.types import GGMLType, Typed, ValueType, by_name
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
    scale_of: str = ""  # the matrix of which this new tensor is the scale

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
    steps = [
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
    return steps + [_scale_step(step) for step in steps if _has_own_scale(step, file)]


# --- NVFP4: its scales of 16 weights are small floats, at most 448, so a matrix has a float32 scale beside it


def _has_own_scale(step: TensorStep, file: GGUFFile) -> bool:
    """Whether a matrix gets a scale: it becomes NVFP4, a product reads it, and the file has no scale for it yet."""
    if step.after.name != "NVFP4" or step.before == step.after or role_of(step.name) == "embedding":
        return False
    stack = step.name.endswith("_exps.weight")
    return len(step.shape) == (3 if stack else 2) and _scale_name(step.name) not in file.tensors


def _scale_name(name: str) -> str:
    return name.removesuffix("weight").replace("ffn_gate_up_exps", "ffn_up_exps") + "scale"


def _scale_step(step: TensorStep) -> TensorStep:
    count, float32 = step.shape[0] if len(step.shape) == 3 else 1, by_name("F32")
    return TensorStep(_scale_name(step.name), (count,), float32, float32, 0, 4 * count, step.name)


def _own_scales(file: GGUFFile, name: str) -> npt.NDArray[np.float32]:
    """The scale of a matrix, or of each of a stack: the largest weight becomes 6 * 448, the largest of NVFP4."""
    info, raw = file.tensors[name], file.raw(name)
    rows = raw.reshape(info.shape[0] if len(info.shape) == 3 else 1, -1, raw.shape[-1])
    height = max(1, SLAB // info.shape[-1])
    top = np.zeros(len(rows), np.float32)
    for n, matrix in enumerate(rows):
        for i in range(0, len(matrix), height):
            top[n] = max(top[n], np.abs(codecs.decode(info.type, matrix[i : i + height])).max(initial=0))
    if not np.isfinite(top).all():
        raise AssayError(f"{name}: the data has NaN or infinity in it; keep this tensor F32 or F16")
    return np.where(top > 0, top / np.float32(6 * 448), np.float32(1)).astype(np.float32)


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
        scaled = {step.scale_of for step in steps if step.scale_of}

        def tensors() -> Iterator[Tensor]:
            for step in steps:
                work = partial(_work, file, step, importance, pool, progress, step.name in scaled)
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
    scaled: bool = False,
) -> npt.NDArray[np.uint8]:
    """The new bytes of a tensor; `scaled`: divided by its scale first."""
    progress(step)
    if step.scale_of:
        return _own_scales(file, step.scale_of).view(np.uint8)
    scales = _own_scales(file, step.name) if scaled else None
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
            if scales is not None:
                values = values / scales[np.arange(i, i + len(values)) // (len(rows) // len(scales))][:, None]
            out[part] = codecs.encode(step.after, values, None if weights is None else weights[matrix])
        except AssayError as error:
            raise AssayError(f"{step.name}: {error}") from None

    for _ in pool.map(convert, range(0, len(rows), height)):
        pass
    file.check()
    return out
