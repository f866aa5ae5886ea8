"""Speed of the cuda engine with every type of weights and with graphs of other families.

    python bench/gpu_types.py                          all of them, 8 layers of TinyLlama's width
    python bench/gpu_types.py --only Q3_K_M gemma3     some
    python bench/gpu_types.py --layers 22 --only F16

Tokens a second: one stream, 8 and 64 in `fast`, a prompt of 2,048; then 64 streams and the prompt in `tensor`. Models
are written to a temporary folder first (bench/make_model.py). An outlier here means that a kernel is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

from gpu import decode, prefill, slots_for
from make_model import make

from assay.engines.contract import pages_for
from assay.engines.cuda import CudaEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load

TYPES = (
    "Q4_K_M", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4",
    "IQ2_XXS", "IQ3_S", "TQ2_0", "F16", "BF16", "F32",
)  # fmt: skip
_EXPERTS = {"n_expert": 32, "n_expert_used": 4}
_DENSE = ("qwen2", "qwen3", "gemma2", "gemma3", "phi3", "command-r", "olmo2", "gpt2", "glm4")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("Q4_K_M", {}) for name in _DENSE},
    "qwen3moe": ("Q4_K_M", {**_EXPERTS, "n_ff_exp": 768}),
    "gpt-oss": ("MXFP4", {**_EXPERTS, "n_ff_exp": 2048}),
}


def write(job: tuple[Path, str, int]) -> None:
    path, name, layers = job
    kind, sizes = FAMILIES.get(name, (name, {}))
    make(path, kind, n_layer=layers, arch=name if name in FAMILIES else "llama", **sizes)


def row(path: Path, name: str) -> str:
    pages, cells = 64 * pages_for(slots_for(128, 8)), [f"{name:9}"]
    for precision, streams in (("fast", (1, 8, 64)), ("tensor", (64,))):
        engine = CudaEngine(load(open_file(path)), precision=precision, n_pages=pages)
        cells += [f"{decode(engine, n, 16 if n == 1 else 128, 8)[0]:8.0f}" for n in streams]
        cells.append(f"{prefill(engine, 2048, 2):8.0f}")
        engine.close()
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    every = [*TYPES, *FAMILIES]
    parser.add_argument("--only", nargs="*", default=every, choices=every, metavar="NAME")
    args = parser.parse_args()
    print(" " * 9 + "".join(f"{title:>9}" for title in ("1", "8", "64", "2,048", "tensor:64", "2,048")))
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.gguf" for name in args.only}
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            pool.map(write, [(path, name, args.layers) for name, path in paths.items()])
        for name, path in paths.items():
            try:
                print(row(path, name), flush=True)
            except AssayError as error:
                print(f"{name:9} {error}", flush=True)


if __name__ == "__main__":
    main()
