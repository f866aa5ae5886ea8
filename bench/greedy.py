"""Greedy text of assay and llama.cpp on real files, token by token.

    python bench/greedy.py gemma-3-270m-Q4_K_M.gguf qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf [-n 48]

llama.cpp (llama-cpp-python, its plain kernels, f16 cache) answers each prompt greedily. assay is asked for the same
answer twice: by itself, and at every position of llama.cpp's text, so that one close call does not hide what follows.
Two engines that round otherwise may part where the two best tokens are all but equal: a token counts where llama.cpp's
gap between them is above `--gap`. Where one that counts differs, the float32 arithmetic of `--precision exact` says
whose rounding it was: `exactly` is by how much it puts llama.cpp's token above assay's. Exit code 1 if assay's was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import assay

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

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp as L

        defaults = L.llama_model_default_params

        def plain() -> Any:
            params = defaults()
            params.use_extra_bufts = False  # no repacked weights: the kernels that every build has
            return params

        L.llama_cpp.llama_model_default_params = plain
        self.llm = L.Llama(str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)

    def answer(self, ids: list[int], n: int, ends: frozenset[int]) -> tuple[list[int], list[float]]:
        """Its greedy answer, and the gap between the two best logits at each token."""
        self.llm.reset()
        self.llm.eval(ids)
        found: list[int] = []
        gaps: list[float] = []
        while len(found) < n:
            logits = np.array(self.llm._ctx.get_logits()[: self.llm.n_vocab()])
            second, best = np.argpartition(logits, -2)[-2:]
            second, best = sorted((second, best), key=lambda token: logits[token])
            found.append(int(best))
            gaps.append(float(logits[best] - logits[second]))
            if found[-1] in ends:
                break
            self.llm.eval([found[-1]])
        return found, gaps


def compare(path: Path, n: int, gap: float, threads: int) -> tuple[list[str], int]:
    """Rows of a table, and how many tokens that count differ and are not llama.cpp's own rounding."""
    peer = Peer(path, threads)
    answers: list[tuple[list[int], list[int], list[float], list[int], int]] = []
    with assay.load(path, threads=threads, ctx_size=1024) as model:
        for prompt in PROMPTS:
            ids = model.tokenize(prompt)
            theirs, gaps = peer.answer(ids, n, model.tokenizer.eog)
            ours = model.logits([*ids, *theirs])[len(ids) - 1 : -1].argmax(axis=1).tolist()
            alone = model.generate(ids, max_new_tokens=n, temperature=0).ids
            parted = next((i for i, (a, b) in enumerate(zip(alone, theirs, strict=False)) if a != b), len(theirs))
            answers.append((ids, theirs, gaps, ours, parted))
    del peer
    rows = []
    count = dict.fromkeys(("counted", "ours", "theirs", "close", "same"), 0)
    with assay.load(path, precision="exact", threads=threads, ctx_size=1024) as model:
        for prompt, (ids, theirs, gaps, ours, parted) in zip(PROMPTS, answers, strict=True):
            differ = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
            exact = model.logits([*ids, *theirs])[len(ids) - 1 : -1] if differ else np.zeros((0, 0))
            where = []
            for i in differ:
                margin = float(exact[i, theirs[i]] - exact[i, ours[i]])  # above 0: llama.cpp's is the better one
                kind = "close" if gaps[i] <= gap else "ours" if margin > 0 else "theirs"
                count[kind] += 1
                where.append(f"{i} (gap {gaps[i]:.3f}, exactly {margin:+.3f})")
            count["counted"] += sum(g > gap for g in gaps)
            count["same"] += parted == len(theirs)
            rows.append(f"| {prompt.splitlines()[0][:32]!r} | {len(theirs)} | {', '.join(where) or '–'} | {parted} |")
    head = [
        f"\n**{path.name}**: {count['counted']} tokens with a gap above {gap}. Of them differ: {count['ours']} where "
        f"exact arithmetic has llama.cpp's token, {count['theirs']} where it has assay's. {count['close']} differ at "
        f"closer calls. {count['same']} of {len(PROMPTS)} texts are equal to the end.\n",
        "| prompt | tokens | differ at | equal up to |",
        "|---|---:|---|---:|",
    ]
    return head + rows, count["ours"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-n", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    wrong = 0
    for path in args.files:
        rows, bad = compare(path, args.n, args.gap, args.threads)
        print("\n".join(rows), flush=True)
        wrong += bad
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
