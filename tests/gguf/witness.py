"""What llama.cpp does when it quantises: the data behind test_quantize.py and test_encode.py.

    python tests/gguf/witness.py [more.gguf ...]

needs llama-cpp-python. It writes tests/data/mixes.json (the type that llama.cpp gives every tensor of a few
made-up models, and of the files named, under every mix, with importance and without) and tests/data/encode_rms.json
(the error of llama.cpp's encoders on the Gaussian matrix of `gaussian`, plain and weighted). Types run over layers as
`Q6_K*3 Q4_K*12`. Files that are not named keep their record.
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
from assay.gguf.mixes import MIXES, Mix
from assay.gguf.requantize import facts_of

DATA = Path(__file__).parents[1] / "data"
NEEDY = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")  # types that ggml refuses without weights
SMALL = ("NVFP4", "Q1_0", "Q2_0")  # recorded by ggml_small.py: llama-cpp-python 0.3.36 does not write them all
NEEDY_MIXES = ("Q2_K_S", "IQ3_XS", "IQ3_XXS", *(name for name in MIXES if name.startswith(("IQ1", "IQ2"))))
WEIGHTED_MIXES = ("Q4_0", "Q5_0", "Q2_K", "Q2_K_S", "Q4_K_M", *(name for name in MIXES if name.startswith("IQ")))

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


class Entry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def llamacpp_types(path: Path, file_type: int, weighted: bool = False) -> dict[str, str]:
    """Tensor types of the file that llama.cpp makes of `path`; `weighted`: with an importance of ones."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = file_type, True, 2
    if weighted:
        matrices = [t for t in open_file(path).tensors.values() if t.name.startswith("blk.") and len(t.shape) > 1]
        ones = np.ones(max(t.n_elements for t in matrices), np.float32)
        entries = (Entry * (len(matrices) + 1))()
        for entry, t in zip(entries, matrices, strict=False):
            entry.name, entry.data = t.name.encode(), ones.ctypes.data
            entry.size = t.shape[-1] * (t.shape[0] if len(t.shape) == 3 else 1)
        params.imatrix = ctypes.cast(entries, type(params.imatrix))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.gguf"
        if llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)):
            raise RuntimeError(f"llama.cpp cannot quantise {path} to file type {file_type}")
        return {name: info.type.name for name, info in open_file(out).tensors.items()}


def describe(path: Path) -> dict[str, Any]:
    file = open_file(path)
    patterns = by_pattern(file)

    def types(mix: Mix, weighted: bool) -> dict[str, str]:
        found = llamacpp_types(path, mix.file_type, weighted)
        return {pattern: runs([found[name] for name in names]) for pattern, names in patterns.items()}

    return {
        "facts": asdict(facts_of(file)),
        "tensors": {
            pattern: {
                "shape": list(file.tensors[names[0]].shape),
                "type": runs([file.tensors[name].type.name for name in names]),
            }
            for pattern, names in patterns.items()
        },
        "mixes": {mix.name: types(mix, False) for mix in MIXES.values() if mix.name not in (*NEEDY_MIXES, *SMALL)},
        "weighted": {mix.name: types(mix, True) for mix in MIXES.values() if mix.name in WEIGHTED_MIXES},
    }


def gaussian() -> np.ndarray:
    return np.random.default_rng(20250101).standard_normal((64, 2048)).astype(np.float32)


def weighted_gaussian() -> tuple[np.ndarray, np.ndarray]:
    """Rows, and how much each column counts."""
    return gaussian()[:8], np.random.default_rng(6).lognormal(0, 1, 2048).astype(np.float32)


def lost(error: np.ndarray, weights: np.ndarray) -> float:
    """The root of the weighted squares."""
    return float(np.sqrt(np.sum(weights * np.square(error, dtype=np.float64))))


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def llamacpp_encode(name: str, x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """`ggml_quantize_chunk` on float32 rows, with a weight for each column or without."""
    import llama_cpp

    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))))
    chunk = library.ggml_quantize_chunk
    chunk.restype, chunk.argtypes = ctypes.c_size_t, [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3]
    chunk.argtypes = [*chunk.argtypes, ctypes.c_void_p]
    kind = by_name(name)
    out = np.empty((len(x), kind.row_bytes(x.shape[1])), np.uint8)
    if importance is None and name in NEEDY:
        importance = np.ones(x.shape[1], np.float32)
    weights = None if importance is None else importance.ctypes.data
    written = chunk(kind.id, x.ctypes.data, out.ctypes.data, 0, len(x), x.shape[1], weights)
    assert written == out.nbytes
    return out


def main(files: list[str]) -> None:
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in MODELS.items():
            path = Path(folder) / "model.gguf"
            make_model(path, **options)
            models[name] = describe(path)
    models = json.loads((DATA / "mixes.json").read_text()) | models
    models |= {Path(file).name: describe(Path(file)) for file in files}
    (DATA / "mixes.json").write_text(json.dumps(models, indent=1) + "\n")
    x, encoders = gaussian(), [name for name in codecs.ENCODERS if name not in SMALL]
    errors = json.loads((DATA / "encode_rms.json").read_text())
    errors |= {name: rms(codecs.decode(name, llamacpp_encode(name, x)) - x) for name in encoders}
    some, weights = weighted_gaussian()
    errors |= {
        f"{name} weighted": lost(codecs.decode(name, llamacpp_encode(name, some, weights)) - some, weights)
        for name in encoders
    }
    (DATA / "encode_rms.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
