"""Make a stand-in for an EAGLE-3 head of SmolLM2: one that is fitted by least squares.

    python bench/eagle_head.py smollm2 smollm2-eagle3.gguf
    python bench/lookahead.py smollm2 --draft smollm2-eagle3.gguf --head 1

No EAGLE-3 head of a model of this size is published. In the stand-in each position sees itself almost alone: queries
and keys are the token's normed embedding, times a large factor. So what reaches its feed-forward part is linear: fc of
the model's three rows, plus a matrix of the normed embedding. Both together are the map that comes nearest to the input
of the feed-forward part of the model's last layer at the next token. Feed-forward part, norms and output are the
model's own, the output with the `--kept` tokens that occur most. Fitted over the same texts as `bench/draft_head.py`. A
trained head is better: it learns its attention, and to go on from its own rows.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from draft_head import CHUNK, own_answers, repository_texts, rms
from numpy.typing import NDArray

from assay.engines.contract import Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.gguf import open_file
from assay.gguf.codecs import encode
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.models.eagle3 import row_before
from assay.runtime import hub
from assay.text import Tokenizer

SHARP = 3.0  # of queries and keys


def fit(
    model: Model, layers: list[int], texts: list[NDArray[np.int32]], threads: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """fc and the matrix of the embedding: least squares, a small ridge."""
    hp = model.hparams
    e, last = hp.n_embd, hp.n_layer - 1
    engine = CpuEngine(model, threads=threads, n_pages=pages_for(CHUNK))
    pages, target = np.arange(pages_for(CHUNK), dtype=np.int32), f"ffn_inp-{last}"
    reads = [row_before(model.graph, layer) or "" for layer in layers]
    gram, cross, square = np.zeros((4 * e, 4 * e)), np.zeros((4 * e, e)), 0.0
    for ids in texts:
        nodes = engine.forward([Chunk(ids, 0, pages, "none")], [*reads, "embd", target])[0].nodes
        rows = np.concatenate([nodes[name] for name in reads], axis=1)[:-1]
        x = np.concatenate([rows, rms(nodes["embd"], hp.eps)[1:]], axis=1).astype(np.float64)
        y = nodes[target][1:].astype(np.float64)
        keep = np.abs(rows).max(axis=1) < 50 * np.median(np.abs(rows).max(axis=1))  # not the first token's huge row
        gram += x[keep].T @ x[keep]
        cross += x[keep].T @ y[keep]
        square += float((y[keep] ** 2).sum())
    found = np.linalg.solve(gram + 1e-5 * np.diag(np.diag(gram)), cross)
    left = square - 2 * float((found * cross).sum()) + float((found * (gram @ found)).sum())
    print(f"{left / square:.3f} of the square of {target} is not explained")
    return found[: 3 * e].T, found[3 * e :].T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a llama file, such as smollm2")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=16000, help="tokens to fit on")
    parser.add_argument("--kept", type=int, default=8192, help="tokens that the head can guess")
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args()
    file = open_file(hub.resolve(args.model))
    model, tokenizer = load(file), Tokenizer.from_gguf(file)
    hp = model.hparams
    e, last = hp.n_embd, hp.n_layer - 1
    texts = [*own_answers(file.path, args.tokens // 2, args.threads), *repository_texts(tokenizer, args.tokens // 2)]
    layers = [2, hp.n_layer // 2, hp.n_layer]
    fc, embedded = fit(model, layers, texts, args.threads)
    seen = Counter(int(token) for ids in texts for token in ids)
    often = sorted(range(hp.n_vocab), key=lambda token: -seen[token])
    kept = np.sort(np.array(often[: args.kept], np.int64))

    f32, q8 = by_name("F32"), by_name("Q8_0")
    output = file.decode("output.weight" if "output.weight" in file.tensors else "token_embd.weight")
    none = np.zeros((e, e))
    sharp = np.concatenate([SHARP * np.eye(e), none], axis=1)
    matrices = {
        "fc": fc, "output": output[kept], "blk.0.attn_q": sharp, "blk.0.attn_k": sharp,
        "blk.0.attn_v": np.concatenate([embedded, none], axis=1), "blk.0.attn_output": np.eye(e),
        **{f"blk.0.{part}": file.decode(f"blk.{last}.{part}.weight") for part in ("ffn_gate", "ffn_up", "ffn_down")},
    }  # fmt: skip
    vectors = {
        "output_norm": file.decode("output_norm.weight"), "blk.0.ffn_norm": file.decode(f"blk.{last}.ffn_norm.weight"),
        "blk.0.attn_norm": np.ones(e), "blk.0.attn_norm_2": np.ones(e),
    }  # fmt: skip
    tensors = [
        Tensor(f"{n}.weight", m.shape, q8, encode(q8, np.ascontiguousarray(m, np.float32))) for n, m in matrices.items()
    ]
    tensors += [Tensor(f"{n}.weight", v.shape, f32, v.astype(np.float32)) for n, v in vectors.items()]
    tensors.append(Tensor("d2t", kept.shape, by_name("I64"), kept))
    keys = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    n_head = hp.layers[0].n_head
    write(args.out, keys | {
        "general.architecture": "eagle3", "eagle3.block_count": 1, "eagle3.embedding_length": e,
        "eagle3.context_length": hp.n_ctx_train, "eagle3.feed_forward_length": hp.layers[last].n_ff,
        "eagle3.attention.head_count": n_head, "eagle3.attention.head_count_kv": n_head,
        "eagle3.attention.layer_norm_rms_epsilon": hp.eps, "eagle3.rope.freq_base": hp.rope.base,
        "eagle3.target_layers": np.array(layers, np.int32), "eagle3.target_hidden_size": e,
    }, tensors)  # fmt: skip


if __name__ == "__main__":
    main()
