"""Make a stand-in for a file with a draft head: SmolLM2, and a head that is fitted by least squares.

    python bench/draft_head.py smollm2 smollm2-mtp.gguf
    python bench/lookahead.py smollm2-mtp.gguf --draft mtp

No file with a draft head has this size. The stand-in has SmolLM2's own matrices, under the names of an architecture
with draft heads: glm4moe with dense layers. The rows of queries and keys are put into its order. The head's block is a
copy of the last layer. Its first matrix, `eh_proj`, is the linear map of [embedding of the token | the model's row
before] that comes nearest to the input of the last layer. It is fitted over the model's own answers to other prompts
than those of `bench/lookahead.py`, and over this repository's pages and sources. A trained head is better: it learns
its block, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import assay
from assay.engines.contract import Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.gguf import GGUFFile, open_file
from assay.gguf.codecs import encode
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import load
from assay.runtime import hub
from assay.text import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
ARCH = "glm4moe"
CHUNK = 512


def _neox(raw: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of queries or keys whose pairs are neighbours, in the order of pairs that are half a head apart."""
    each = raw.reshape(heads, -1, 2, raw.shape[-1])
    return np.ascontiguousarray(each.transpose(0, 2, 1, 3)).reshape(raw.shape)


def renamed(file: GGUFFile) -> tuple[dict[str, Any], list[Tensor]]:
    """The file's keys and tensors as those of the other architecture, without a head."""
    old = file.get_str("general.architecture")
    keys = {k.replace(f"{old}.", f"{ARCH}.", 1) if k.startswith(f"{old}.") else k: v for k, v in file.metadata.items()}
    keys |= {"general.architecture": ARCH, f"{ARCH}.expert_used_count": 0}
    heads = {"attn_q": keys[f"{ARCH}.attention.head_count"], "attn_k": keys[f"{ARCH}.attention.head_count_kv"]}
    tensors = []
    for name, info in file.tensors.items():
        raw, role = file.raw(name), name.split(".")[-2]
        raw = raw.reshape(*info.shape[:-1], -1) if len(info.shape) > 1 else raw
        data = _neox(raw, int(heads[role])) if role in heads else raw
        tensors.append(Tensor(name.replace("ffn_norm", "post_attention_norm"), info.shape, info.type, data))
    return keys, tensors


def with_head(keys: dict[str, Any], tensors: list[Tensor], eh_proj: NDArray[np.float32]) -> dict[str, Any]:
    """Add a head: the last layer again, and `eh_proj`. Gives the keys."""
    last = int(keys[f"{ARCH}.block_count"]) - 1
    width = eh_proj.shape[0]
    for tensor in list(tensors):
        if tensor.name.startswith(f"blk.{last}."):
            name = tensor.name.replace(f"blk.{last}.", f"blk.{last + 1}.")
            tensors.append(Tensor(name, tensor.shape, tensor.type, tensor.data))
    norm = next(tensor for tensor in tensors if tensor.name == "output_norm.weight")
    head, f32, q8 = f"blk.{last + 1}.nextn.", by_name("F32"), by_name("Q8_0")
    ones = np.ones(width, np.float32)
    tensors.append(Tensor(f"{head}eh_proj.weight", eh_proj.shape, q8, encode(q8, eh_proj)))
    tensors += [Tensor(f"{head}{name}.weight", (width,), f32, ones) for name in ("enorm", "hnorm")]
    tensors.append(Tensor(f"{head}shared_head_norm.weight", norm.shape, norm.type, norm.data))
    return keys | {f"{ARCH}.block_count": last + 2, f"{ARCH}.nextn_predict_layers": 1}


def repository_texts(tokenizer: Tokenizer, most: int) -> list[NDArray[np.int32]]:
    """Pages and sources of this repository in turn, in pieces of one pass."""
    pages, sources = sorted(ROOT.glob("docs/**/*.md")), sorted(ROOT.glob("src/assay/**/*.py"))
    found: list[NDArray[np.int32]] = []
    for pair in zip(pages * 9, sources, strict=False):
        for path in pair:
            ids = tokenizer.encode(path.read_text(encoding="utf-8")[: 4 * CHUNK])[:CHUNK]
            found.append(np.array(ids, np.int32))
        if sum(map(len, found)) >= most:
            break
    return found


TOPICS = (
    "a fox", "the sea", "an old clock", "winter", "a train", "bread", "the moon", "a garden", "a violin", "maps",
    "a river", "friendship",
)  # fmt: skip
ASKS = (
    "Tell me a story about {}.",
    "Explain {} to a child.",
    "Write a Python class about {}.",
    "Write code that prints {}.",
)


def own_answers(path: Path, most: int, threads: int | None) -> list[NDArray[np.int32]]:
    """The model's own answers, sampled: text and code, several at once."""
    asks = [ask.format(topic) for topic in TOPICS for ask in ASKS]
    with assay.load(path, threads=threads, lookahead=False) as model:
        template = model.opened.template
        assert template
        texts = [template.render([{"role": "user", "content": ask}]) for ask in asks]
        jobs = [
            model.generator.generate(
                model.tokenize(text, add_special=False), assay.SamplerParams(temp=0.5, seed=i),
                max_tokens=most // len(asks), ignore_eos=True,
            )
            for i, text in enumerate(texts)
        ]  # fmt: skip
        results = [work.result for work in model.generator.together(jobs)]
    return [np.array([*r.prompt_ids, *r.ids], np.int32)[:CHUNK] for r in results]


def fit(path: Path, most: int, threads: int | None) -> NDArray[np.float32]:
    """The linear map [rms(embedding) | rms(row before)] -> input of the last layer: least squares, a small ridge."""
    model = load(open_file(path))
    hp = model.hparams
    engine = CpuEngine(model, threads=threads, n_pages=pages_for(CHUNK))
    pages, target = np.arange(pages_for(CHUNK), dtype=np.int32), f"l_out-{hp.n_layer - 2}"
    e = hp.n_embd
    gram, cross, square, seen = np.zeros((2 * e, 2 * e)), np.zeros((2 * e, e)), 0.0, 0
    for ids in [*own_answers(path, most // 2, threads), *repository_texts(Tokenizer.from_gguf(model.file), most // 2)]:
        nodes = engine.forward([Chunk(ids, 0, pages, "none")], ["embd", target, "result_norm"])[0].nodes
        before = np.concatenate([np.zeros((1, e)), nodes["result_norm"][:-1]])
        x = np.concatenate([rms(nodes["embd"], hp.eps), rms(before, hp.eps)], axis=1)[1:]
        y = nodes[target][1:].astype(np.float64)
        keep = np.abs(y).max(axis=1) < 50 * np.median(np.abs(y).max(axis=1))  # not the first token's huge row
        gram += x[keep].T @ x[keep]
        cross += x[keep].T @ y[keep]
        square, seen = square + float((y[keep] ** 2).sum()), seen + int(keep.sum())
        print(f"\r{seen} tokens", end="", flush=True)
    engine.close()
    found = np.linalg.solve(gram + 1e-4 * np.trace(gram) / len(gram) * np.eye(2 * e), cross)
    left = square - 2 * float((found * cross).sum()) + float((found * (gram @ found)).sum())
    print(f"; {left / square:.3f} of the square of the last layer's input is not explained")
    return found.T.astype(np.float32)


def rms(x: NDArray[Any], eps: float) -> NDArray[np.float64]:
    x = x.astype(np.float64)
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a llama file, such as smollm2")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=24000, help="tokens to fit on")
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args()
    file = open_file(hub.resolve(args.model))
    keys, tensors = renamed(file)
    plain = args.out.with_suffix(".plain.gguf")
    write(plain, keys, tensors)
    eh_proj = fit(plain, args.tokens, args.threads)
    write(args.out, with_head(keys, tensors, eh_proj), tensors)
    plain.unlink()


if __name__ == "__main__":
    main()
