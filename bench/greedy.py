"""Greedy text of assay and llama.cpp on real files, token by token.

    python bench/greedy.py gemma-3-270m-Q4_K_M.gguf qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf [-n 48]
    python bench/greedy.py --float32 FILE...      # both on a copy of the file in float32: no rounding of activations
    python bench/greedy.py --itself FILE...       # llama.cpp beside llama.cpp with another kernel, without assay

llama.cpp (llama-cpp-python, its plain kernels, f16 cache) answers each prompt greedily. assay is asked for the same
answer twice: by itself, and at every position of llama.cpp's text, so that one close call does not hide what follows.
Two engines that round differently may diverge where the two best tokens are almost equal. A token counts only if
llama.cpp's gap between them is above `--gap`.

The definition shows which engine's rounding decided. It computes the gap between the same two tokens twice: in float64,
and with llama.cpp's rules of rounding (activations in eight bits, a half cache, GELU by a table). So there are four
gaps at every position, and the text says how far each engine's are from the exact ones. Exit code 1 if a token that
counts differs and the exact gap says that llama.cpp was right by more than assay's own rms error. With `--float32` no
difference is excused: llama.cpp has a float32 cache too, and every token that counts must be the same. `--itself`
counts the tokens that differ between llama.cpp's own kernels: plain, flash attention, repacked weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import assay
from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import ReferenceEngine
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.models import load
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.rounding import hooks, roundings

Array = NDArray[Any]

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of motion are",
    "import numpy as np\n\ndef softmax(x):\n",
    "Q: What is 17 times 23?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "SELECT name, COUNT(*) FROM orders",
    "Der schnellste Weg von Berlin nach München",
    "La tour Eiffel a été construite en",
    "1, 1, 2, 3, 5, 8, 13,",
    "To be, or not to be:",
    "#include <stdio.h>\n\nint main(void) {\n",
    "The recipe needs two eggs, a cup of flour and",
    "日本の首都は",
    "{\"name\": \"Ada\", \"born\":",
    "In 1969, Neil Armstrong",
    "The difference between a list and a tuple in Python is",
    "Water boils at 100 degrees Celsius because",
)  # fmt: skip


class Peer:
    """llama.cpp on one file."""

    def __init__(self, path: Path, threads: int, float32: bool, *, repacked: bool = False, flash: bool = False) -> None:
        import llama_cpp as L

        defaults = L.llama_model_default_params

        def chosen() -> Any:
            params = defaults()
            params.use_extra_bufts = repacked  # without: the kernels that every build has
            return params

        L.llama_cpp.llama_model_default_params = chosen
        cache = {"type_k": L.GGML_TYPE_F32, "type_v": L.GGML_TYPE_F32} if float32 else {}
        common: dict[str, Any] = {"n_ctx": 1024, "n_threads": threads, "n_threads_batch": threads, "verbose": False}
        self.llm = L.Llama(str(path), flash_attn=flash, **common, **cache)
        L.llama_cpp.llama_model_default_params = defaults

    def along(self, ids: list[int], text: list[int]) -> Iterator[Array]:
        """Its logits at every position of a given answer."""
        self.llm.reset()
        for part in (ids, *([token] for token in text[:-1])):
            self.llm.eval(part)
            yield np.array(self.llm._ctx.get_logits()[: self.llm.n_vocab()])

    def answer(self, ids: list[int], n: int, ends: frozenset[int]) -> tuple[Array, Array]:
        """Its greedy answer: at each position the two best tokens, the best first, and the gap between their logits."""
        self.llm.reset()
        self.llm.eval(ids)
        best: list[list[int]] = []
        gaps: list[float] = []
        while len(best) < n and (not best or best[-1][0] not in ends):
            if best:
                self.llm.eval([best[-1][0]])
            logits = np.array(self.llm._ctx.get_logits()[: self.llm.n_vocab()])
            pair = sorted(np.argpartition(logits, -2)[-2:].tolist(), key=lambda token: -logits[token])
            best.append(pair)
            gaps.append(float(logits[pair[0]] - logits[pair[1]]))
        return np.array(best), np.array(gaps)


@dataclass(frozen=True)
class Answer:
    """One prompt: llama.cpp's tokens with the runners-up, what assay says there, and how far its own text agrees."""

    prompt: str
    ids: list[int]  # the prompt and llama.cpp's text
    best: Array  # [n, 2]
    gaps: dict[str, Array]  # by who computes: the first of `best` over the second
    ours: Array  # assay's best token
    equal: int


def gap(logits: Array, best: Array) -> Array:
    """At the positions of the answer: by how much llama.cpp's token is above its runner-up."""
    rows, at = logits[-len(best) - 1 : -1], np.arange(len(best))
    return np.asarray(rows[at, best[:, 0]] - rows[at, best[:, 1]], np.float64)


def answers(path: Path, n: int, threads: int, *, float32: bool = False) -> Iterator[Answer]:
    peer = Peer(path, threads, float32)
    cache = {"kv_type": "f32"} if float32 else {}
    with assay.load(path, threads=threads, ctx_size=1024, **cache) as model:
        for prompt in PROMPTS:
            ids = model.tokenize(prompt)
            best, theirs = peer.answer(ids, n, model.tokenizer.eog)
            text = best[:, 0].tolist()
            logits = model.logits([*ids, *text])
            alone = model.generate(ids, max_new_tokens=n, temperature=0).ids
            equal = next((i for i, (a, b) in enumerate(zip(alone, text, strict=False)) if a != b), len(text))
            gaps = {"llama.cpp": theirs, "assay": gap(logits, best)}
            yield Answer(prompt, [*ids, *text], best, gaps, logits[-len(text) - 1 : -1].argmax(axis=1), equal)


def judged(path: Path, found: Iterable[Answer]) -> Iterator[Answer]:
    """With the gaps of the definition: exact, and rounded as llama.cpp rounds."""
    model = load(open_file(path))
    weights = Weights(model.file)
    rule = next(rule for rule in roundings(ARITHMETICS[-1]) if rule.name == "Q8 activations and a half cache")
    engines = {
        name: ReferenceEngine(model, n_pages=pages_for(1024), weights=weights, hooks=hooks)
        for name, hooks in (("exact", None), ("rounded", hooks(rule, model.file)))
    }
    for answer in found:
        gaps = dict(answer.gaps)
        for name, engine in engines.items():
            ids = np.array(answer.ids, np.int32)
            pages = np.arange(pages_for(len(ids)), dtype=np.int32)
            gaps[name] = gap(engine.forward([Chunk(ids, 0, pages, "all")])[0].logits, answer.best)
        yield replace(answer, gaps=gaps)


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x * x)))


def compare(path: Path, n: int, least: float, threads: int) -> tuple[list[str], int]:
    """Rows of a table, and how many tokens that count differ where llama.cpp is right beyond assay's rounding."""
    found = list(judged(path, list(answers(path, n, threads))))
    gaps = {name: np.concatenate([answer.gaps[name] for answer in found]) for name in found[0].gaps}
    error = {name: rms(gaps[name] - gaps["exact"]) for name in gaps}
    explained = rms(gaps["llama.cpp"] - gaps["rounded"])
    counted = int((gaps["llama.cpp"] > least).sum())
    parted, close, wrong, rows = 0, 0, 0, []
    for answer in found:
        where = []
        for i in np.flatnonzero(answer.ours != answer.best[:, 0]):
            here = {name: float(answer.gaps[name][i]) for name in gaps}
            counts = here["llama.cpp"] > least
            parted, close = parted + counts, close + (not counts)
            wrong += counts and here["exact"] > error["assay"]
            if counts:
                where.append(f"{i}: " + ", ".join(f"{name} {value:+.3f}" for name, value in here.items()))
        rows.append(
            f"| {answer.prompt.splitlines()[0][:32]!r} | {len(answer.best)} | {'; '.join(where) or '–'} "
            f"| {answer.equal} |"
        )
    head = [
        f"\n**{path.name}**: {counted - parted} of the {counted} tokens with a gap above {least} are the same, of the "
        f"other {len(gaps['exact']) - counted} all but {close}. "
        f"{sum(answer.equal == len(answer.best) for answer in found)} of {len(found)} texts are equal to the end.\n",
        f"Error of the gap, rms: llama.cpp {error['llama.cpp']:.3f}, assay {error['assay']:.3f}; the definition "
        f"rounded as llama.cpp rounds {error['rounded']:.3f}, and {explained:.3f} from llama.cpp's.\n",
        "| prompt | tokens | differs: the gaps there | equal up to |",
        "|---|---:|---|---:|",
    ]
    return head + rows, wrong


def in_float32(path: Path, n: int, least: float, threads: int) -> tuple[list[str], int]:
    """The same on a copy in float32: what differs is the order of sums, and llama.cpp's table for GELU."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        quantize(open_file(path), copy, mix_by_name("F32"))
        found = list(answers(copy, n, threads, float32=True))
    theirs, ours = (np.concatenate([a.gaps[name] for a in found]) for name in ("llama.cpp", "assay"))
    parted = np.concatenate([a.ours != a.best[:, 0] for a in found])
    counted, wrong = int((theirs > least).sum()), int((parted & (theirs > least)).sum())
    return [
        f"\n**{path.name}** in float32: {counted - wrong} of the {counted} tokens with a gap above {least} are the "
        f"same, of the other {len(theirs) - counted} all but {int(parted.sum()) - wrong}. "
        f"{sum(a.equal == len(a.best) for a in found)} of {len(found)} texts are equal to the end. "
        f"The gaps differ by {rms(theirs - ours):.4f} (rms)."
    ], wrong


def itself(path: Path, n: int, least: float, threads: int) -> tuple[list[str], int]:
    """llama.cpp's plain kernels beside its others and beside assay, at every position of the plain ones' text."""
    plain = Peer(path, threads, False)
    with assay.load(path, threads=threads, ctx_size=1024) as model:
        prompts, ends = [model.tokenize(prompt) for prompt in PROMPTS], model.tokenizer.eog
        texts = [(ids, *plain.answer(ids, n, ends)) for ids in prompts]
        ours = [model.logits([*ids, *best[:, 0].tolist()])[-len(best) - 1 : -1] for ids, best, _ in texts]
    others = {"assay": np.concatenate(ours)}
    for name, chosen in (("flash attention", {"flash": True}), ("repacked weights", {"repacked": True})):
        other = Peer(path, threads, False, **chosen)
        found = [logits for ids, best, _ in texts for logits in other.along(ids, best[:, 0].tolist())]
        others[name] = np.array(found)
    best, gaps = (np.concatenate([text[i] for text in texts]) for i in (1, 2))
    counted, at = gaps > least, np.arange(len(gaps))
    rows = [f"\n**{path.name}**: of llama.cpp's {counted.sum()} tokens with a gap above {least} are the same"]
    agreed = counted.copy()
    for name, logits in others.items():
        same = logits.argmax(axis=1) == best[:, 0]
        error = rms(logits[at, best[:, 0]] - logits[at, best[:, 1]] - gaps)
        rows.append(f"- {name}: {(counted & same).sum()}; the gaps differ by {error:.3f} (rms)")
        if name != "assay":
            agreed &= same & (np.sort(logits, axis=1)[:, -2:] @ [-1, 1] > least)
    same = others["assay"].argmax(axis=1) == best[:, 0]
    rows.append(f"- assay, where all of llama.cpp's agree with such a gap: {(agreed & same).sum()} of {agreed.sum()}")
    return rows, 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-n", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("--float32", action="store_true", help="both on a copy of the file in float32")
    parser.add_argument("--itself", action="store_true", help="llama.cpp beside itself, with other kernels")
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    wrong, how = 0, itself if args.itself else in_float32 if args.float32 else compare
    for path in args.files:
        rows, bad = how(path, args.n, args.gap, args.threads)
        print("\n".join(rows), flush=True)
        wrong += bad
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
