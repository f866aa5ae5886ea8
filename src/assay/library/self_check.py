"""Check the bits of every engine of this machine in seconds: tiny models, and the recorded hash of their logits.

The cpu and cuda engines give the same bits on every machine (docs/reference/arithmetic.md), so one hash per model is
enough for all. The models are made from the bytes of SHAKE-256: no random generator and no rounding of a library takes
part, and the files are the same everywhere. `python -m assay.library.self_check` prints the table anew; it changes only
with the number of the arithmetic.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines import ENGINES, create
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES, Sizes, metadata, tensor_shapes

ARITHMETIC = 1  # the version of the arithmetic that RECORDED belongs to
_SIZES = Sizes(n_layer=2, n_embd=256, n_head=4, n_head_kv=2, n_embd_head=64, n_embd_head_v=64, n_ff=512, n_vocab=320)
_TOKENS = tuple((7 * i * i + 3 * i + 5) % _SIZES.n_vocab for i in range(20))
_FEW = (("Q8_0", "fast"),)  # of RECORDED, for a GPU in software, where all of them take a minute
_DECODED = 3  # of them are decoded one by one, over the cache
_CLOSE = 1e-9  # NMSE of `exact` to the definition; float32 sums stay below 1e-12

# Where a block of a type keeps its f16 scales, and the scale.
_SCALES: dict[str, tuple[tuple[int, ...], float]] = {
    "Q4_0": ((0,), 2**-6),
    "Q8_0": ((0,), 2**-10),
    "Q4_K": ((0, 2), 2**-11),
    "Q6_K": ((208,), 2**-15),
    "IQ4_XS": ((0,), 2**-15),
}
# Type and precision of a model, and the first 16 digits of the SHA-256 of its logits.
RECORDED: dict[tuple[str, str], str] = {
    ("Q4_0", "fast"): "6f7ae850acf85e41",
    ("Q4_0", "exact"): "577005f31072e86c",
    ("Q8_0", "fast"): "0ad511b25619cd18",
    ("Q8_0", "exact"): "80689055eb691ed8",
    ("Q4_K", "fast"): "de3525e848faac86",
    ("Q4_K", "exact"): "f621b5df85916b7a",
    ("Q6_K", "fast"): "bafbb39e2205490d",
    ("Q6_K", "exact"): "690924f83cb3db66",
    ("IQ4_XS", "fast"): "50ef0aa0a7bd84fd",
    ("IQ4_XS", "exact"): "a52726de0d8cdb97",
}


@dataclass(frozen=True)
class BitsCheck:
    """The outcome for one engine: `cases` models were run, `wrong` of them gave other bits."""

    engine: str
    cases: int
    wrong: tuple[str, ...]
    seconds: float
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.wrong and not self.error

    def to_dict(self) -> dict[str, object]:
        return {"engine": self.engine, "passed": self.passed, "cases": self.cases, "wrong": list(self.wrong),
                "error": self.error or None, "seconds": round(self.seconds, 3)}  # fmt: skip


def check_bits() -> Iterator[BitsCheck]:
    """Run the models on every instruction set of this machine, on the GPU if there is one, and on the definition."""
    with tempfile.TemporaryDirectory(prefix="assay-doctor-") as folder:
        models = {name: _model(name, Path(folder)) for name in _SCALES}
        try:
            if "cpu" in ENGINES:
                from assay import _native

                for isa in _native.isas():
                    yield _compare(f"cpu, {isa}", models, "cpu", isa=isa)
            if "cuda" in ENGINES:
                yield _compare("cuda", models, "cuda")
            if "wgpu" in ENGINES and (found := _adapter()):
                adapter, software = found
                yield _compare(f"wgpu, {adapter}", models, "wgpu", cases=_FEW if software else None)
            if "cpu" in ENGINES:
                yield _against_definition(models["Q8_0"])
        finally:
            for model in models.values():
                model.file.close()


def _adapter() -> tuple[str, bool] | None:
    """The name of the GPU that WebGPU reaches, and whether it is one in software."""
    from assay.engines.wgpu.adapter import gpu

    try:
        found = gpu()
    except AssayError:
        return None
    return found.name, found.software


def _compare(
    title: str, models: dict[str, Model], engine: str, cases: Container[tuple[str, str]] | None = None, **options: str
) -> BitsCheck:
    """One engine on models and precisions against the recorded bits; without `cases`, on all of them."""
    begun, wrong, found = time.perf_counter(), [], title
    chosen = {case: expected for case, expected in RECORDED.items() if cases is None or case in cases}
    for (name, precision), expected in chosen.items():
        try:
            with _running(engine, models[name], precision=precision, **options) as run:
                if verdict := getattr(run, "verdict", None):
                    found = f"{title}, {verdict}"  # the tier of the adapter, and why others failed
                if _digest(_logits(run)) != expected:
                    wrong.append(f"{name} {precision}")
        except AssayError as error:
            return BitsCheck(found, len(chosen), tuple(wrong), time.perf_counter() - begun, str(error))
    return BitsCheck(found, len(chosen), tuple(wrong), time.perf_counter() - begun)


def _against_definition(model: Model) -> BitsCheck:
    """The cpu engine, precision exact, against the float64 definition."""
    begun = time.perf_counter()
    with (
        _running("cpu", model, precision="exact", kv_type="f32") as run,
        _running("reference", model) as definition,
    ):
        found, truth = _logits(run).astype(np.float64), _logits(definition).astype(np.float64)
    far = float(np.sum((found - truth) ** 2) / np.sum(truth**2))
    wrong = () if far < _CLOSE else (f"Q8_0 exact (nmse {far:.1e}, expected below {_CLOSE:.0e})",)
    return BitsCheck("cpu against the definition", 1, wrong, time.perf_counter() - begun)


@contextmanager
def _running(engine: str, model: Model, **options: Any) -> Iterator[PagedEngine]:
    run = create(engine, model, n_pages=pages_for(len(_TOKENS)), **options)
    try:
        yield run
    finally:
        run.close()


def _logits(engine: PagedEngine) -> NDArray[np.float32]:
    """Logits of every token: a prompt, then single tokens."""
    pages = np.arange(pages_for(len(_TOKENS)), dtype=np.int32)
    ids = np.array(_TOKENS, np.int32)
    first = len(ids) - _DECODED
    pieces = [(0, ids[:first]), *((i, ids[i : i + 1]) for i in range(first, len(ids)))]
    rows = [engine.forward([Chunk(part, start, pages, outputs="all")])[0].logits for start, part in pieces]
    return np.concatenate(rows).astype("<f4", copy=False)


def _digest(logits: NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(logits, "<f4").tobytes()).hexdigest()[:16]


# --- the models


def _model(type_name: str, folder: Path) -> Model:
    """A llama of two layers whose matrices have this type."""
    row = replace(next(iter(ARCHITECTURES.values())), sizes=_SIZES)
    path = folder / f"{type_name}.gguf"
    tensors = [_tensor(name, shape, type_name) for name, shape in tensor_shapes(row).items()]
    write(path, {**metadata(row), "tokenizer.ggml.model": "no_vocab"}, tensors)
    return load(open_file(path))


def _tensor(name: str, shape: tuple[int, ...], type_name: str) -> Tensor:
    if len(shape) == 1:  # a norm: 0.75 to 1.25 in steps of 1/512
        bytes_ = np.frombuffer(_drawn(name, shape[0]), np.uint8)
        return Tensor(name, shape, by_name("F32"), 0.75 + bytes_.astype(np.float32) / np.float32(512))
    kind = by_name(type_name)
    count = math.prod(shape) // kind.block_size
    blocks = np.frombuffer(_drawn(name, count * kind.type_size), np.uint8).reshape(count, kind.type_size).copy()
    places, scale = _SCALES[type_name]
    for at in places:
        blocks[:, at : at + 2] = np.frombuffer(np.array(scale, "<f2").tobytes(), np.uint8)
    return Tensor(name, shape, kind, blocks.reshape(*shape[:-1], -1))


def _drawn(name: str, count: int) -> bytes:
    return hashlib.shake_256(f"assay {name}".encode()).digest(count)


def _record() -> dict[tuple[str, str], str]:
    """The bits of the cpu engine on this machine."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in _SCALES:
            model = _model(name, Path(folder))
            for precision in ("fast", "exact"):
                with _running("cpu", model, precision=precision) as run:
                    logits = _logits(run)
                assert np.isfinite(logits).all()
                found[name, precision] = _digest(logits)
    return found


if __name__ == "__main__":
    for key, value in _record().items():
        print(f"    {key}: {value!r},")
