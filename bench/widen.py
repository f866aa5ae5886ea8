"""A quantised file as a float model of the same function, whose rows are whole K blocks.

    python bench/widen.py smollm2 wide.gguf            # 576 wide, 9 heads over 3  ->  768 wide, 12 heads over 4, F16
    python bench/widen.py tinyllama turned.gguf        # 2048 wide stays 2048

Comparing quantisers needs a float model whose rows are multiples of 256. An available file may be neither: the weights
of a quantised file lie on that type's grid, so rounding to it again looks too good, and rows of 576 have no K type.
This script changes both without changing the model's function. The residual stream is mapped by an isometry E
(orthonormal columns, made of small blocks, so that outlying channels stay outlying):

    embedding  E e      into a matrix  W diag(g) E^T sqrt(n / N)      out of one  E W      norm gains  1      eps  n / N

The width n becomes N; the square root compensates the norm's mean over more channels. Heads of zeros fill the rows of
the attention's output, and the output head gets a separate matrix. Only Llama's architecture is supported.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import GGUFFile, by_name, codecs, open_file
from assay.gguf.types import Typed
from assay.gguf.writer import Tensor, write
from assay.runtime import hub

SEED = 1
BLOCK = 256
Floats = NDArray[np.float32]
GAIN = {
    "attn_q": "attn_norm", "attn_k": "attn_norm", "attn_v": "attn_norm", "ffn_gate": "ffn_norm", "ffn_up": "ffn_norm",
    "output": "output_norm",
}  # fmt: skip


@dataclass(frozen=True)
class Wide:
    """The model to be, from the file that is."""

    file: GGUFFile
    n: int
    wide: int
    width: int  # of a head
    heads: tuple[int, int]  # of queries, of keys
    e: Floats  # [blocks, m, k]: k channels become m, in every block by another rotation

    @staticmethod
    def of(file: GGUFFile) -> Wide:
        meta: dict[str, Any] = {key: file.metadata[key] for key in file.metadata if key.startswith("llama.")}
        n, n_head = meta["llama.embedding_length"], meta["llama.attention.head_count"]
        wide = -(-n // BLOCK) * BLOCK
        width, n_kv = n // n_head, meta["llama.attention.head_count_kv"]
        heads = wide // width, wide // width * n_kv // n_head
        assert heads[0] * width == wide and heads[0] * n_kv == heads[1] * n_head, "heads do not fill the rows"
        blocks = math.gcd(n, wide) if n < wide else n // 4  # a block of one channel would only be a sign
        turned, _ = np.linalg.qr(np.random.default_rng(SEED).normal(size=(blocks, wide // blocks, n // blocks)))
        return Wide(file, n, wide, width, heads, turned.astype(np.float32))

    def mapped(self, x: Floats) -> Floats:
        """E x for every row of x, `[rows, n] -> [rows, wide]`."""
        e = self.e
        found: Floats = np.einsum("bmk,rbk->rbm", e, x.reshape(len(x), len(e), -1), optimize=True)
        return found.reshape(len(x), -1)

    def shape(self, role: str, rows: int, columns: int) -> tuple[int, int]:
        if role == "attn_output":
            return self.wide, self.heads[0] * self.width
        if role == "ffn_down":
            return self.wide, columns
        heads = {"attn_q": self.heads[0], "attn_k": self.heads[1], "attn_v": self.heads[1]}
        return heads[role] * self.width if role in heads else rows, self.wide

    def matrix(self, name: str, role: str) -> NDArray[np.uint8]:
        x = self.file.decode(name)
        shape = self.shape(role, *x.shape)
        if role in GAIN:
            gain = self.file.decode(name.replace(role, GAIN[role]) if role != "output" else "output_norm.weight")
            x = self.mapped(x * gain) * np.float32(math.sqrt(self.n / self.wide))
        else:
            x = self.mapped(x) if role == "token_embd" else self.mapped(np.ascontiguousarray(x.T)).T
        return codecs.encode("F16", np.pad(x, [(0, to - has) for to, has in zip(shape, x.shape, strict=True)]))

    def tensors(self) -> list[Tensor]:
        found = []
        ones = codecs.encode("F32", np.ones(self.wide, np.float32))
        for name, info in self.file.tensors.items():
            role = name.removesuffix(".weight").rsplit(".", 1)[-1]
            if role.endswith("norm"):
                found.append(Tensor(name, (self.wide,), by_name("F32"), ones))
            else:
                shape = self.shape(role, *info.shape)
                found.append(Tensor(name, shape, by_name("F16"), partial(self.matrix, name, role)))
        if "output.weight" not in self.file.tensors:
            shape = self.file.tensors["token_embd.weight"].shape[0], self.wide
            head = partial(self.matrix, "token_embd.weight", "output")
            found.append(Tensor("output.weight", shape, by_name("F16"), head))
        return found

    def metadata(self) -> dict[str, Typed]:
        meta = {key: self.file.metadata.typed(key) for key in self.file.metadata}
        eps = "llama.attention.layer_norm_rms_epsilon"
        changed: dict[str, Any] = {
            "llama.embedding_length": self.wide,
            "llama.attention.head_count": self.heads[0],
            "llama.attention.head_count_kv": self.heads[1],
            eps: float(str(self.file.metadata[eps])) * self.n / self.wide,
            "general.file_type": 1,
        }
        return meta | {key: Typed(meta[key].type, value) for key, value in changed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    model = Wide.of(open_file(hub.resolve(args.model)))
    write(args.out, model.metadata(), model.tensors())


if __name__ == "__main__":
    main()
