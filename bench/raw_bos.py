"""Prints what a model predicts after BOS alone: the ten best tokens of the reference engine and of llama.cpp.

python bench/raw_bos.py [MODEL] [--witness PYTHON]      # PYTHON: an interpreter with llama-cpp-python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np

WITNESS = """
import json, sys, llama_cpp
llm = llama_cpp.Llama(sys.argv[1], n_ctx=32, logits_all=True, verbose=False)
llm.eval([llm.token_bos()])
json.dump([float(x) for x in llm.scores[0]], sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="tinyllama")
    parser.add_argument("--witness", default=sys.executable)
    args = parser.parse_args()

    from assay.engines.contract import Chunk
    from assay.engines.reference import ReferenceEngine
    from assay.gguf import open_file
    from assay.models import load
    from assay.runtime import hub
    from assay.text import Tokenizer

    path = hub.resolve(args.model)
    file = open_file(path)
    tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.bos is not None, "the vocabulary has no BOS"
    engine = ReferenceEngine(load(file))
    found = {"reference": engine.forward([Chunk(np.array([tokenizer.bos]), 0, np.zeros(1, np.int32))])[0].logits[0]}
    witness = subprocess.run([args.witness, "-c", WITNESS, str(path)], capture_output=True, text=True)
    if witness.returncode == 0:
        found["llama.cpp"] = np.array(json.loads(witness.stdout))
    else:
        print("llama-cpp-python is not at hand; --witness names an interpreter that has it", file=sys.stderr)
    best = {who: np.argsort(-logits)[:10] for who, logits in found.items()}
    for who, logits in found.items():
        p = np.exp(logits - logits.max())
        p /= p.sum()
        bits = -float(np.sum(p * np.log2(p + 1e-300)))
        print(f"\n{who}: entropy {bits:.2f} bits of {np.log2(len(p)):.2f}; best token has probability {p.max():.4f}\n")
        print("| token | piece | logit | probability | rank in the other |\n|---|---|---|---|---|")
        other = next((found[w] for w in found if w != who), logits)
        for i in best[who]:
            piece = tokenizer.piece(int(i)).decode("utf-8", "replace")
            rank = int(np.sum(other > other[i])) + 1
            print(f"| {i} | `{piece!r}` | {logits[i]:.3f} | {p[i]:.5f} | {rank} |")


if __name__ == "__main__":
    main()
