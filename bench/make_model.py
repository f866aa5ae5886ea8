"""Write a GGUF file with random weights: any size, any quantisation, most architectures, in seconds.

    python bench/make_model.py tiny-q4km.gguf --type Q4_K_M                 # TinyLlama's shape
    python bench/make_model.py wide.gguf --type Q8_0 --n-embd 4096 --n-layer 4
    python bench/make_model.py moe.gguf --type Q4_K_M --arch qwen3moe --n-expert 32 --n-expert-used 4 --n-ff-exp 768
    python bench/make_model.py hybrid.gguf --type Q4_K_M --shape qwen3.5-0.8b         # a published model's dimensions

Speed does not depend on the weights' values, only on their types and shapes, which are llama.cpp's for the mix. A few
thousand random blocks of each type are really quantised, and every tensor is a random choice of them. A type that is
not a mix (IQ2_XXS, TQ1_0) is used for every matrix, and its blocks are random codes. The vocabulary is a SentencePiece
dummy that lets any engine load the file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf.codecs import encode
from assay.gguf.mixes import QUANTIZATION_VERSION, Facts, choose, mix_by_name, role_of
from assay.gguf.types import GGMLType, by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import ARCHITECTURES, Arch, Sizes, metadata, tensor_shapes

POOL = 4096  # different blocks of a type
CODES = (
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
)
# Published models with experts, or whose layers keep a state: the architecture, its sizes, and the keys that differ
# from its example.
_QWEN35 = Sizes(n_layer=24, n_embd=1024, n_head=8, n_head_kv=2, n_embd_head=256, n_embd_head_v=256, n_ff=3584,
                n_vocab=248320, n_ctx=4096, n_rot=64)  # fmt: skip
_GEMMA3 = Sizes(n_layer=18, n_embd=640, n_head=4, n_head_kv=1, n_embd_head=256, n_embd_head_v=256, n_ff=2048,
                n_vocab=262144, n_ctx=32768)  # fmt: skip
_LFM2 = Sizes(n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, n_embd_head=64, n_embd_head_v=64, n_ff=8192,
              n_vocab=65536, n_ctx=4096)  # fmt: skip
_GRANITE = Sizes(n_layer=32, n_embd=768, n_head=12, n_head_kv=4, n_embd_head=64, n_embd_head_v=64, n_ff=2048,
                 n_vocab=100352, n_ctx=4096)  # fmt: skip
_QWEN35_9B = replace(_QWEN35, n_layer=32, n_embd=4096, n_head=16, n_head_kv=4, n_ff=12288)
_QWEN36_35B = replace(_QWEN35, n_layer=40, n_embd=2048, n_head=16, n_head_kv=2, n_expert=256, n_expert_used=8,
                      n_ff_exp=512, n_ff_shexp=512)  # fmt: skip
_QWEN3_30B = Sizes(n_layer=48, n_embd=2048, n_head=32, n_head_kv=4, n_embd_head=128, n_embd_head_v=128, n_ff=6144,
                   n_vocab=151936, n_ctx=4096, n_expert=128, n_expert_used=8, n_ff_exp=768)  # fmt: skip
_GPT_OSS_20B = Sizes(n_layer=24, n_embd=2880, n_head=64, n_head_kv=8, n_embd_head=64, n_embd_head_v=64, n_ff=2880,
                     n_vocab=201088, n_ctx=4096, n_expert=32, n_expert_used=4, n_ff_exp=2880)  # fmt: skip
_LINEAR = {
    "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": 32, "ssm.group_count": 16,
    "ssm.inner_size": 4096, "full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0],
}  # fmt: skip
SHAPES: dict[str, tuple[str, Sizes, dict[str, Any]]] = {
    "qwen3-30b-a3b": ("qwen3moe", _QWEN3_30B, {}),
    "gpt-oss-20b": ("gpt-oss", _GPT_OSS_20B, {"attention.sliding_window": 128}),
    "qwen3.5-9b": ("qwen35", _QWEN35_9B, _LINEAR),
    "qwen3.6-35b-a3b": ("qwen35moe", _QWEN36_35B, _LINEAR),
    "qwen3.5-0.8b": ("qwen35", _QWEN35, {
        "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": 16, "ssm.group_count": 16,
        "ssm.inner_size": 2048, "full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]}),
    "lfm2-1.2b": ("lfm2", _LFM2, {
        "shortconv.l_cache": 3, "attention.head_count_kv": [8 * (i in (2, 5, 8, 10, 12, 14)) for i in range(16)]}),
    "gemma-3-270m": ("gemma3", _GEMMA3, {"attention.sliding_window": 512}),
    "granite-4-h-350m": ("granitehybrid", _GRANITE, {
        "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": 48, "ssm.group_count": 1,
        "ssm.inner_size": 1536, "attention.head_count_kv": [4 * (i in (10, 13, 17, 27)) for i in range(32)]}),
}  # fmt: skip
TYPES = (*CODES, "Q3_K", "Q4_K", "Q5_K")  # used for every matrix when given by name; other names are mixes


class Blocks:
    """Quantised blocks of random normal weights of a trained model's size."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pools: dict[str, NDArray[np.uint8]] = {}

    def tensor(self, kind: GGMLType, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        if kind.name not in self.pools:
            self.pools[kind.name] = self._codes(kind) if kind.name in CODES else self._quantised(kind)
        count = int(np.prod(shape)) // kind.block_size
        chosen = self.pools[kind.name][self.rng.integers(0, POOL, count)]
        return chosen.reshape(*shape[:-1], -1)

    def _quantised(self, kind: GGMLType) -> NDArray[np.uint8]:
        values = 0.02 * self.rng.standard_normal((POOL, kind.block_size)).astype(np.float32)
        return encode(kind, values).reshape(POOL, kind.type_size)

    def _codes(self, kind: GGMLType) -> NDArray[np.uint8]:
        """Without the top bits, so that a scale is finite. MXFP4's is an exponent, large enough for normal numbers; its
        codes have both signs: else all tokens are alike, and choose the same experts."""
        codes = self.rng.integers(0, 64, (POOL, kind.type_size)).astype(np.uint8)
        if kind.name == "MXFP4":
            codes[:, 0] = 118 + codes[:, 0] % 8
            codes[:, 1:] = self.rng.integers(0, 256, codes[:, 1:].shape)
        return codes


def make(
    path: Path,
    mix_name: str,
    *,
    n_embd: int = 2048,
    n_layer: int = 22,
    n_head: int = 32,
    n_head_kv: int = 4,
    n_ff: int = 5632,
    n_vocab: int = 32000,
    n_ctx: int = 4096,
    n_expert: int = 0,
    n_expert_used: int = 0,
    n_ff_exp: int = 768,
    seed: int = 1,
    arch: str = "llama",
) -> Path:
    """Write the model and give its path back."""
    width = n_embd // n_head
    sizes = Sizes(
        n_layer=n_layer, n_embd=n_embd, n_head=n_head, n_head_kv=n_head_kv, n_embd_head=width, n_embd_head_v=width,
        n_ff=n_ff, n_vocab=n_vocab, n_ctx=n_ctx, n_expert=n_expert, n_expert_used=n_expert_used, n_ff_exp=n_ff_exp,
        n_ff_shexp=n_ff_exp,
    )  # fmt: skip
    row = replace(ARCHITECTURES[arch], sizes=sizes)
    if arch == "llama":
        row = replace(row, top="token_embd output_norm output", blocks="PRE QKV EXPERTS" if n_expert else row.blocks)
    return write_row(path, mix_name, row, seed)


def make_shape(path: Path, mix_name: str, shape: str, seed: int = 1, n_layer: int = 0) -> Path:
    """Write a model with the dimensions of a published one, or fewer layers of it, and give its path back."""
    arch, sizes, keys = SHAPES[shape]
    sizes = replace(sizes, n_layer=n_layer or sizes.n_layer)
    row = ARCHITECTURES[arch]
    return write_row(path, mix_name, replace(row, sizes=sizes, keys={**row.keys, **keys}), seed)


def write_row(path: Path, mix_name: str, row: Arch, seed: int) -> Path:
    """Write a model with the tensors of a row of the catalogue."""
    z, shapes = row.sizes, tensor_shapes(row)
    f32, mix = by_name("F32"), mix_by_name("Q8_0" if mix_name in TYPES else mix_name)
    value = sum(role_of(name) == "value" for name in shapes)
    tied = "output.weight" not in shapes
    facts = Facts(row.name, z.n_layer, z.n_head, z.n_head_kv, z.n_expert, tied=tied, n_value=value)
    types = choose(mix, facts, [(name, shape, f32) for name, shape in shapes.items()])
    if mix_name in TYPES:
        types = {name: by_name(mix_name) if kind.name == mix.name else kind for name, kind in types.items()}
    blocks = Blocks(seed)

    def data(name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | NDArray[np.uint8]:
        if name.endswith("ssm_a"):  # negative, so that the state fades
            return np.full(shape, -1.0, np.float32)
        return np.ones(shape, np.float32) if len(shape) == 1 else blocks.tensor(types[name], shape)

    tensors = [
        Tensor(name, shape, types[name], lambda name=name, shape=shape: data(name, shape))
        for name, shape in shapes.items()
    ]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *(f"▁w{i}" for i in range(z.n_vocab - 259)),
    ]
    keys = {
        **metadata(row),
        "general.name": f"random {mix_name}",
        "general.file_type": mix.file_type,
        "general.quantization_version": QUANTIZATION_VERSION,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens[: z.n_vocab],
        "tokenizer.ggml.scores": np.zeros(z.n_vocab, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * z.n_vocab][: z.n_vocab], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    write(path, keys, tensors)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", required=True, help="Q4_0, Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 and so on")
    parser.add_argument("--arch", default="llama", choices=ARCHITECTURES, metavar="NAME", help="default llama")
    parser.add_argument("--shape", choices=SHAPES, help="a published model's; the options below do not count")
    for name, default in (("n-embd", 2048), ("n-layer", 22), ("n-head", 32), ("n-head-kv", 4), ("n-ff", 5632),
                          ("n-vocab", 32000), ("n-ctx", 4096), ("n-expert", 0), ("n-expert-used", 0), ("n-ff-exp", 768),
                          ("seed", 1)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    options = vars(parser.parse_args())
    path, kind, shape = options.pop("path"), options.pop("type"), options.pop("shape")
    path = make_shape(path, kind, shape, options["seed"]) if shape else make(path, kind, **options)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
