"""llama.cpp's values for a small random model, recorded once, so that CI needs no llama.cpp.

    python tests/verify/witness/golden.py            compare a fresh run with the record (needs llama-cpp-python)
    python tests/verify/witness/golden.py --record   write the record anew

The model has every rule that llama.cpp has for the other operand of a product: none (F32), f16 (F16), Q8_0 and Q8_1
(32-blocks), Q8_K (256-blocks). Its blocks are random bytes with fixed scales, so it does not depend on our encoders.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write

sys.path[:0] = [str(Path(__file__).parents[3])]  # when run as a script
from tests import tiny  # noqa: E402

RECORD = Path(__file__).parents[2] / "data" / "golden_llamacpp.npz"
TOKENS = [1, 300, 297, 12, 45]
RUNS = {"f32": 0, "f16": 2}  # type of the cache -> tokens decoded one by one
WIDTH, N_FF, N_HEAD, N_KV, N_LAYER = 256, 256, 8, 2, 2
TYPES = {"attn_q": "Q4_K", "attn_k": "Q8_0", "attn_v": "F32", "attn_output": "Q6_K", "ffn_gate": "Q4_0",
         "ffn_up": "Q4_1", "ffn_down": "F16"}  # fmt: skip
SCALES = {
    "Q4_K": ((0, 0.004), (2, 0.03)),
    "Q6_K": ((208, 0.0001),),
    "Q8_0": ((0, 0.0008),),
    "Q4_0": ((0, 0.014),),
    "Q4_1": ((0, 0.014), (2, -0.1)),
}  # fmt: skip; byte offsets of the f16 fields in a block


def make(path: Path) -> Path:
    """Write the model."""
    rng = np.random.default_rng(20)
    kv = WIDTH * N_KV // N_HEAD
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH), "attn_output": (WIDTH, WIDTH),
              "ffn_gate": (N_FF, WIDTH), "ffn_up": (N_FF, WIDTH), "ffn_down": (WIDTH, N_FF)}  # fmt: skip
    small = tiny.make(
        path.with_suffix(".tiny"), n_embd=WIDTH, n_ff=N_FF, n_head=N_HEAD, n_head_kv=N_KV, n_layer=N_LAYER
    )
    from assay.gguf import open_file

    with open_file(small) as file:
        metadata = dict(file.metadata)
    f32 = by_name("F32")
    tensors = [_floats("token_embd.weight", (len(tiny.TOKENS), WIDTH), 0.5, rng)]
    for layer in range(N_LAYER):
        for stem in ("attn_norm", "ffn_norm"):
            gamma = (1 + 0.2 * rng.standard_normal(WIDTH)).astype(np.float32)
            tensors.append(Tensor(f"blk.{layer}.{stem}.weight", (WIDTH,), f32, gamma))
        for stem, shape in shapes.items():
            tensors.append(_matrix(f"blk.{layer}.{stem}.weight", shape, TYPES[stem], rng))
    tensors.append(Tensor("output_norm.weight", (WIDTH,), f32, np.ones(WIDTH, np.float32)))
    write(path, metadata, tensors)
    small.unlink()
    return path


def _floats(name: str, shape: tuple[int, int], size: float, rng: np.random.Generator, kind: str = "F32") -> Tensor:
    x = (size * rng.standard_normal(shape)).astype(np.float16 if kind == "F16" else np.float32)
    return Tensor(name, shape, by_name(kind), x if kind == "F32" else x.view(np.uint8).reshape(shape[0], -1))


def _matrix(name: str, shape: tuple[int, int], kind: str, rng: np.random.Generator) -> Tensor:
    if kind in ("F32", "F16"):
        return _floats(name, shape, 1 / 16, rng, kind)
    t = by_name(kind)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // t.block_size, t.type_size), np.uint8)
    for at, value in SCALES[kind]:
        blocks[..., at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return Tensor(name, shape, t, blocks.reshape(shape[0], -1))


def run(path: Path) -> dict[str, np.ndarray]:
    """The values that llama.cpp computes for it, by `cache type/node`."""
    from assay.gguf import open_file
    from assay.models import load
    from assay.verify.dumps.tracing import take_trace
    from assay.verify.witness.engines_by_name import open_engine

    model = load(open_file(path))
    found = {}
    for kv_type, decode in RUNS.items():
        engine = open_engine("llamacpp", model, kv_type=kv_type)
        dump = take_trace(engine, TOKENS, decode=decode, nodes="^(?!cache_)")
        engine.close()
        found |= {f"{kv_type}/{o.name}": o.array().astype(np.float32) for o in dump.observations}
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = run(make(Path(folder) / "golden.gguf"))
    if "--record" in sys.argv:
        np.savez_compressed(RECORD, **found)  # type: ignore[arg-type]
        print(f"{RECORD}: {len(found)} nodes, {RECORD.stat().st_size / 1e3:.0f} kB")
        return 0
    record = np.load(RECORD)
    worst = max((float(np.sum((v - record[k]) ** 2) / (np.sum(record[k] ** 2) + 1e-30)), k) for k, v in found.items())
    same = sum(np.array_equal(v, record[k]) for k, v in found.items())
    print(f"{len(found)} nodes, {same} with the recorded bits; largest nmse {worst[0]:.1e} at {worst[1]}")
    return 0 if set(found) == set(record.files) and worst[0] < 1e-3 else 1  # another processor adds in another order


if __name__ == "__main__":
    sys.exit(main())
