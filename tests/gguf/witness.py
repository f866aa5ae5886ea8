"""What llama.cpp does when it quantises: the data behind test_quantize.py and test_encode.py.

    python tests/gguf/witness.py [more.gguf ...]

needs llama-cpp-python. It writes tests/data/mixes.json (the type that llama.cpp gives every tensor of a few
made-up models, and of the files named, under every mix) and tests/data/encode_rms.json (the RMS error of
llama.cpp's encoders on the Gaussian matrix of `gaussian`). Types run over layers as `Q6_K*3 Q4_K*12`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import GGUFFile, Tensor, by_name, codecs, open_file, write
from assay.gguf.mixes import MIXES
from assay.gguf.quantize import facts_of

DATA = Path(__file__).parents[1] / "data"

# layers, width, heads, key-value heads, FFN width; two rows a matrix, since only the rows' length matters
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"n_layer": 33},
    "grouped": {"n_layer": 18, "n_head": 8, "n_kv": 1},
    "tied": {"n_layer": 24, "tied": True},
    "eight experts": {"n_layer": 9, "n_expert": 8},
    "four experts": {"n_layer": 9, "n_expert": 4},
    "rows of 96": {"n_layer": 10, "n_embd": 96, "n_head": 3, "n_kv": 1, "n_ff": 160, "tied": True},
    "rows of 80": {"n_layer": 3, "n_embd": 80, "n_head": 2, "n_kv": 1, "n_ff": 144},
    "80 layers": {"n_layer": 80, "n_head": 8, "n_kv": 1},
    "falcon": {"arch": "falcon", "n_layer": 20, "n_head": 8, "n_kv": 1},
    "qwen2 of 80 layers": {"arch": "qwen2", "n_layer": 80, "n_head": 4, "n_kv": 4},
}


def make_model(
    path: Path,
    arch: str = "llama",
    n_layer: int = 4,
    n_embd: int = 256,
    n_head: int = 4,
    n_kv: int = 2,
    n_ff: int = 512,
    tied: bool = False,
    n_expert: int = 0,
) -> None:
    """A file with a model's names and row lengths, and noise for weights."""
    falcon, experts = arch == "falcon", "_exps" if n_expert else ""
    layer: dict[str, tuple[int, ...]] = {"attn_norm": (n_embd,), "attn_output": (2, n_embd)}
    layer |= dict.fromkeys(["attn_qkv"] if falcon else ["attn_q", "attn_k", "attn_v"], (2, n_embd))
    layer |= {"ffn_norm": (n_embd,)} | ({"ffn_gate_inp": (n_expert, n_embd)} if n_expert else {})
    stack = (n_expert,) if n_expert else ()
    layer |= {f"ffn_{part}{experts}": (*stack, 2, n_embd) for part in (["up"] if falcon else ["gate", "up"])}
    layer |= {f"ffn_down{experts}": (*stack, 2, n_ff)}
    shapes = {"token_embd": (2, n_embd), "output_norm": (n_embd,)} | ({} if tied else {"output": (2, n_embd)})
    shapes |= {f"blk.{i}.{name}": shape for i in range(n_layer) for name, shape in layer.items()}
    rng = np.random.default_rng(0)
    tensors = [
        Tensor(f"{name}.weight", shape, by_name("F32"), rng.standard_normal(shape).astype(np.float32))
        for name, shape in shapes.items()
    ]
    keys: dict[str, object] = {
        "context_length": 128,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.layer_norm_epsilon" if falcon else "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": n_embd // n_head,
        "vocab_size": 2,
    }
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": 2}
    write(path, {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}, tensors)


def runs(values: list[str]) -> str:
    """`Q6_K*3 Q4_K*12`"""
    return " ".join(f"{value}*{len(list(group))}" for value, group in itertools.groupby(values))


def unroll(text: str) -> list[str]:
    return [value for run in text.split() for value in [run.split("*")[0]] * int(run.split("*")[1])]


def by_pattern(file: GGUFFile) -> dict[str, list[str]]:
    """Tensor names, in file order, under `blk.*.attn_v.weight` and the like; then in layer order."""
    patterns: dict[str, list[str]] = {}
    for name in file.tensors:
        patterns.setdefault(re.sub(r"^blk\.\d+\.", "blk.*.", name), []).append(name)
    for names in patterns.values():
        names.sort(key=lambda name: int(name.split(".")[1]) if name.startswith("blk.") else 0)
    return patterns


def llamacpp_types(path: Path, file_type: int) -> dict[str, str]:
    """Tensor types of the file that llama.cpp makes of `path`."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = file_type, True, 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.gguf"
        if llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)):
            raise RuntimeError(f"llama.cpp cannot quantise {path} to file type {file_type}")
        return {name: info.type.name for name, info in open_file(out).tensors.items()}


def describe(path: Path) -> dict[str, Any]:
    file = open_file(path)
    patterns = by_pattern(file)
    return {
        "facts": asdict(facts_of(file)),
        "tensors": {
            pattern: {
                "shape": list(file.tensors[names[0]].shape),
                "type": runs([file.tensors[name].type.name for name in names]),
            }
            for pattern, names in patterns.items()
        },
        "mixes": {
            mix.name: {pattern: runs([types[name] for name in names]) for pattern, names in patterns.items()}
            for mix in MIXES.values()
            for types in [llamacpp_types(path, mix.file_type)]
        },
    }


def gaussian() -> np.ndarray:
    return np.random.default_rng(20250101).standard_normal((64, 2048)).astype(np.float32)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def llamacpp_encode(name: str, x: np.ndarray) -> np.ndarray:
    """`ggml_quantize_chunk` on float32 rows, without an importance matrix."""
    import llama_cpp

    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))))
    chunk = library.ggml_quantize_chunk
    chunk.restype, chunk.argtypes = ctypes.c_size_t, [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3]
    chunk.argtypes = [*chunk.argtypes, ctypes.c_void_p]
    kind = by_name(name)
    out = np.empty((len(x), kind.row_bytes(x.shape[1])), np.uint8)
    written = chunk(kind.id, x.ctypes.data, out.ctypes.data, 0, len(x), x.shape[1], None)
    assert written == out.nbytes
    return out


def main(files: list[str]) -> None:
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in MODELS.items():
            path = Path(folder) / "model.gguf"
            make_model(path, **options)
            models[name] = describe(path)
    models |= {Path(file).name: describe(Path(file)) for file in files}
    (DATA / "mixes.json").write_text(json.dumps(models, indent=1) + "\n")
    x = gaussian()
    errors = {name: rms(codecs.decode(name, llamacpp_encode(name, x)) - x) for name in codecs.ENCODERS}
    (DATA / "encode_rms.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
