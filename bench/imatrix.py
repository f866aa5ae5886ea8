"""llama.cpp's own importance matrix of a text beside assay's: the mean squares of every column of every matrix.

    python bench/imatrix.py MODEL-f16.gguf --windows 2

Needs llama-cpp-python. It has no llama-imatrix in it, but the interface that llama-imatrix is made of: a function that
is shown every product while llama.cpp computes. Here it follows llama-imatrix's rule: products with `blk.*`, of 16 rows
and more, the squares of their float32 inputs summed column by column, over whole windows whose first token is BOS.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.evaluate.importance_sums import collect
from assay.evaluate.pieces import TextWindow
from assay.gguf.importance import Importance, ImportanceEntry

FEWEST = 16  # rows of a product that counts
F32 = 0


class Ggml(ctypes.Structure):
    """ggml_tensor up to its name."""

    _fields_ = (
        ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    )  # fmt: skip


def by_llamacpp(model: Path, pieces: Sequence[TextWindow]) -> Importance:
    """Every matrix of a dense model's blocks; llama.cpp runs the pieces and computes the inputs."""
    import llama_cpp as L
    from llama_cpp._ggml import libggml

    libggml.ggml_op_name.restype, libggml.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, int] = {}

    @L.ggml_backend_sched_eval_callback
    def shown(address: int, ask: bool, _data: object) -> bool:
        """Asked first whether a node is wanted, then shown it."""
        node = Ggml.from_address(address)
        if libggml.ggml_op_name(node.op) != b"MUL_MAT":
            return not ask
        weight, x = (Ggml.from_address(node.src[i]) for i in range(2))
        name = weight.name.decode()
        if not name.startswith("blk.") or x.type != F32 or x.ne[1] < FEWEST:
            return not ask
        if not ask:
            columns, rows = x.ne[0], x.ne[1]
            assert (x.nb[0], x.nb[1], x.ne[2], x.ne[3]) == (4, 4 * columns, 1, 1), name
            values = np.ctypeslib.as_array(ctypes.cast(x.data, ctypes.POINTER(ctypes.c_float)), (rows, columns))
            sums[name] = sums.get(name, 0) + np.einsum("ij,ij->j", values, values, dtype=np.float64)
            counts[name] = counts.get(name, 0) + rows
        return True

    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    loaded = L.llama_model_load_from_file(str(model).encode(), L.llama_model_default_params())
    assert loaded, f"{model}: llama.cpp refuses it"
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(len(piece.tokens) for piece in pieces)
    params.cb_eval = shown
    context = L.llama_init_from_model(loaded, params)
    batch = L.llama_batch_init(params.n_batch, 0, 1)
    for piece in pieces:
        L.llama_memory_clear(L.llama_get_memory(context), True)
        batch.n_tokens = len(piece.tokens)
        for i, token in enumerate(piece.tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(context, batch) == 0
    L.llama_batch_free(batch)
    L.llama_free(context)
    L.llama_model_free(loaded)
    entries = {n: ImportanceEntry(sums[n].astype(np.float32)[None], np.array([counts[n]], np.float32)) for n in sums}
    return Importance(entries, len(pieces), params.n_ctx)


def main() -> None:
    import quantize as bench

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=2, help="of 512 tokens of the text to calibrate on")
    args = parser.parse_args()
    work = bench.Work(args.model, Path(), args.windows, 0, 512, "exact")
    pieces = work.pieces(0, args.windows)
    ours, theirs = collect(work.engine, pieces), by_llamacpp(args.model, pieces)
    assert ours.entries.keys() == theirs.entries.keys()
    pairs = [(entry, theirs.entries[name]) for name, entry in ours.entries.items()]
    assert all((a.counts == b.counts).all() for a, b in pairs)
    off = np.array([np.abs(a.means - b.means).sum() / b.means.sum() for a, b in pairs])
    single = np.concatenate([np.abs(a.means / b.means - 1).reshape(-1) for a, b in pairs])
    print(f"{len(pairs)} matrices, {int(pairs[0][0].counts[0])} tokens")
    print(f"off by {np.median(off):.1e} of the sum of a matrix, at most {off.max():.1e}")
    print(f"off by {np.median(single):.1e} of a column, 99 of 100 by less than {np.quantile(single, 0.99):.1e}")


if __name__ == "__main__":
    main()
