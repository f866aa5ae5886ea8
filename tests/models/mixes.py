"""The types that llama.cpp's quantiser gives the tensors of every architecture.

    python tests/models/mixes.py        records them anew in tests/data/mixes_archs.json (needs llama-cpp-python)

Models have the catalogue's names and keys, rows of whole blocks, and two rows a matrix: only the rows' length matters.
Recorded are the tensors that are neither left as they are nor of the mix's base type, as `Q6_K*3 Q4_K*12` over layers.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.gguf import GGUFFile, Tensor, by_name, open_file, write
from assay.gguf.mixes import MIXES
from assay.models.catalogue import ARCHITECTURES, VARIANTS, Arch, Sizes, metadata, tensor_shapes
from tests.gguf.witness import by_pattern, llamacpp_types, runs

RECORD = Path(__file__).parents[1] / "data" / "mixes_archs.json"
NAMES = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16")
ROWS = {**ARCHITECTURES, **VARIANTS}
ROWS |= {
    "qwen2 of 80 layers": replace(ARCHITECTURES["qwen2"], sizes=Sizes(n_layer=80)),
    "qwen3moe with 4 experts": replace(ARCHITECTURES["qwen3moe"], sizes=Sizes(n_expert=4, n_expert_used=2)),
    "glm4moe with a draft layer": replace(
        ARCHITECTURES["glm4moe"], keys={**ARCHITECTURES["glm4moe"].keys, "nextn_predict_layers": 1}
    ),
}


def make(row: Arch, path: Path) -> GGUFFile:
    """The row's tensors over nine layers or more, 256 wide or a multiple."""
    z = row.sizes
    layers = max(9, z.n_layer)
    keys = {k: (v * layers)[:layers] if isinstance(v, list) and "sections" not in k else v for k, v in row.keys.items()}
    if "attention.sliding_window_pattern" in keys:
        keys["attention.sliding_window_pattern"] = [True] * layers
    sizes = replace(z, n_layer=layers, n_embd=256, n_embd_head=64, n_embd_head_v=64, n_ff=512, n_ff_exp=256,
                    n_ff_shexp=256, n_lora_q=256, n_lora_kv=256, n_per_layer=256, n_vocab=256, n_ctx=256)  # fmt: skip
    row = replace(row, sizes=sizes, keys=keys)
    shapes = {n: (*s[:-2], 2, s[-1]) if len(s) > 1 else s for n, s in tensor_shapes(row).items()}
    rng = np.random.default_rng(0)
    tensors = [Tensor(n, s, by_name("F32"), rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
    write(path, {**metadata(row), "tokenizer.ggml.model": "no_vocab", "tokenizer.ggml.token_type_count": 2}, tensors)
    return open_file(path)


def summary(file: GGUFFile, mix: str, types: dict[str, str]) -> dict[str, str]:
    """What is neither left as it is nor of the mix's base type, by pattern."""
    found = {re.sub(r"\.weight$", "", p): runs([types[n] for n in names]) for p, names in by_pattern(file).items()}
    plain = ({MIXES[mix].base}, {"F32"})
    return {p: text for p, text in found.items() if {run.split("*")[0] for run in text.split()} not in plain}


def main() -> None:
    record: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, row in ROWS.items():
            path = Path(folder) / "model.gguf"
            file = make(row, path)
            record[title] = {mix: summary(file, mix, llamacpp_types(path, MIXES[mix].file_type)) for mix in NAMES}
    text = json.dumps(record, separators=(",", ":")).replace('"},"', '"},\n"')
    RECORD.write_text(text + "\n")


if __name__ == "__main__":
    main()
