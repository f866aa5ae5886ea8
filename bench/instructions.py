"""Count the instructions of the cpu engine in two checkouts, under callgrind: a busy machine does not disturb it.

    for type in Q4_0 Q8_0 Q4_K_M Q6_K F16; do python bench/make_model.py $type.gguf --type $type --n-embd 512 \
        --n-layer 2 --n-head 8 --n-head-kv 4 --n-ff 1024 --n-vocab 4096; done
    python bench/instructions.py --before ../before/src --after src *.gguf

`--scheduled` counts answers of the library instead, with scheduler, pages, prefix cache and sampler. The prompt was
answered before. Its columns are an answer of one token and one of as many as `--decode` says.

Python and native code both count, on one thread, after a first run that compiles the programs. Each checkout needs its
native module built beside its sources. Callgrind emulates AVX2 at most. It needs valgrind.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# These run in either checkout: `Chunk` has moved between them, and a library answers under the names of both.
ENGINE = """
import numpy as np
from assay.engines import create
from assay.gguf import open_file
from assay.models import load
try:
    from assay.engines.contract import Chunk
except ImportError:
    from assay.engines.base import Chunk

def prefill():
    engine.forward([Chunk(ids[:prompt], 0, table)])

def decode():
    for i in range(prompt, len(ids)):
        engine.forward([Chunk(ids[i : i + 1], i, table)])

engine = create("cpu", load(open_file(sys.argv[1])), n_pages=8, threads=1)
ids = np.arange(3, 3 + prompt + tokens, dtype=np.int32)
table = np.arange(8, dtype=np.int32)
"""
SCHEDULED = """
from assay.runtime.params import GREEDY
model = assay.load(sys.argv[1], engine="cpu", threads=1, ctx_size=256, kv_type="f16", lookahead=False)
ids = [3 + i for i in range(prompt)]

def answer(n):
    asked = [model.generator.generate(ids, GREEDY, max_tokens=n, ignore_eos=True)]
    assert len(next(iter(model.generator.together(asked))).result.ids) == n

def prefill():
    answer(1)

def decode():
    answer(tokens)
"""
CHILD = """
import os, subprocess, sys
import assay
assert assay.__file__.startswith(sys.argv[4]), "another assay is imported"

def callgrind(*command):
    subprocess.run(["callgrind_control", *command, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)

prompt, tokens = int(sys.argv[2]), int(sys.argv[3])
{body}
prefill()
decode()
callgrind("-i", "on")
prefill()
callgrind("--dump=prefill")
decode()
callgrind("--dump=decode")
callgrind("-i", "off")
"""


def count(source: Path, model: Path, prompt: int, decode: int, body: str) -> tuple[int, int]:
    """Instructions of a prompt, and of the decode steps after it."""
    with tempfile.TemporaryDirectory() as work:
        out = f"{work}/out"
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "PYTHONHASHSEED": "0", "ASSAY_ISA": "avx2"}
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        child = [sys.executable, "-c", CHILD.format(body=body), str(model), str(prompt), str(decode)]
        done = subprocess.run(
            [*command, *child, str(source.resolve())],
            env={**environment, "OPENBLAS_NUM_THREADS": "1"}, cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{source}: {done.stderr.strip().splitlines()[-1]}")
        dumps = {}
        for path in Path(work).glob("out.*"):
            text = path.read_text(errors="replace")
            why, total = (
                re.search(r"^desc: Trigger: (.*)$", text, re.M),
                re.search(r"^(?:totals|summary): (\d+)", text, re.M),
            )
            if why and total:
                dumps[why[1].split()[-1]] = int(total[1])
    return dumps["prefill"], dumps["decode"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="the src folder of the older checkout")
    parser.add_argument("--after", type=Path, required=True, help="the src folder of the newer one")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=8, help="steps after it")
    parser.add_argument("--scheduled", action="store_true", help="answers of the library, not steps of the engine")
    given = parser.parse_args()
    body = SCHEDULED if given.scheduled else ENGINE
    print("| millions of instructions | prompt, before | after | speed | decode, before | after | speed |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for model in given.models:
        old, new = (
            count(source, model.resolve(), given.prompt, given.decode, body) for source in (given.before, given.after)
        )
        cells = [f"{a / 1e6:,.1f} | {b / 1e6:,.1f} | {a / b:.3f}" for a, b in zip(old, new, strict=True)]
        print(f"| {model.stem} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
