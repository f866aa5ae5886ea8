"""Is a right engine ever called wrong? Every arithmetic and mixture, on four models, on whole and on little evidence.

python bench/healthy.py                 # three tiny models, four prompts each, and SmolLM2: 481 runs
python bench/healthy.py --every 10      # a sample

The engine is the second one (tests/second_engine.py), which shares no code with assay. It computes in float32, halves,
bfloat16, with 8-bit operands (Q8_0 and, on the K-quant model, Q8_K), or with a cache in halves or eight bits. It can
use flash attention's order, or fused kernels whose inner values are neither rounded nor dumped. Results are kept in
build/healthy.jsonl; `--again` starts over. The last lines printed are the table of docs/explanation/verify.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import numpy as np  # noqa: E402
from tests import planting, tiny  # noqa: E402
from tests.synthetic import make_kquant  # noqa: E402

from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402

ARITHMETICS = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8": "Q8 activations", "kv16": "f16 cache",
    "kvq8": "q8 cache", "w16": "weights in halves", "w16+kv16": "weights in halves, f16 cache",
    "q8+kv16": "Q8 activations, f16 cache", "q8+kvq8": "Q8 activations, q8 cache",
    "flash": "flash attention's order", "flash+kv16": "flash attention, f16 cache",
    "f16+fused": "float16, fused kernels",
}  # fmt: skip
STYLES = ("full", "layers", "last")
FINE = ("healthy", "undecided")  # verdicts that are not an alarm
PROMPTS = 4
STEPS = (9, 1, 1)


def models(build: Path) -> Iterator[tuple[str, Path]]:
    """K-quants on Llama's shape, a Gemma with windows, one with experts: heads of 32, which a cache of 8 bits needs."""
    yield "K-quants", make_kquant(build / "synthetic.gguf")
    yield "Gemma", tiny.make(build / "healthy-window.gguf", window=6, type="Q8_0", n_embd=128)
    yield "experts", tiny.make(build / "healthy-experts.gguf", n_expert=4, type=tiny.with_experts("Q8_0"), n_embd=128)


def tokens(prompt: int) -> tuple[int, ...]:
    return (1, *(int(t) for t in np.random.default_rng(prompt).integers(3, 300, sum(STEPS) - 1)))


def grade(
    model: Model, weights: Weights, name: str, arithmetic: str, style: str, prompt: int, ids: tuple[int, ...]
) -> dict[str, Any]:
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        case = planting.second(model.file.path, tokens=ids, steps=STEPS, arithmetic=arithmetic)
        found = diagnose(model, planting.dump(case, style, model, Path(folder), ids, STEPS), weights=weights)
    return {
        "model": name, "kind": arithmetic, "bug": f"{name}, prompt {prompt}", "style": style, "prompt": prompt,
        "grade": found.verdict,
        "answer": ", ".join([*(c.fault for c in found.causes), *found.unexplained[:3]]),
        "seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(r["model"] for r in rows))
    out = ["| right engine in | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for kind, words in ARITHMETICS.items():
        cells = []
        for name in names:
            mine = [r for r in rows if r["model"] == name and r["kind"] == kind]
            wrong = sum(r["grade"] not in FINE for r in mine)
            cells.append(f"{wrong} of {len(mine)}" if mine else "–")
        out.append(f"| {words} | " + " | ".join(cells) + " |")
    wrong = [r for r in rows if r["grade"] not in FINE]
    open_ = sum(r["grade"] == "undecided" for r in rows)
    out.append(f"\n{len(wrong)} false alarms in {len(rows)} runs; {open_} are undecided: this evidence cannot tell.")
    out += [f"- {r['model']}, {ARITHMETICS[r['kind']]}, {r['style']}: {r['grade']} ({r['answer']})" for r in wrong]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    grading.add_arguments(parser)
    parser.add_argument("--model", default="smollm2", help="the fourth model, a file or a name; '' leaves it out")
    parser.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help="so many for each tiny model")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "healthy.jsonl", help="keep the results here")
    args = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    out = args.out
    if args.again:
        out.unlink(missing_ok=True)
    done = {(r["model"], r["kind"], r["style"], r["prompt"]) for r in grading.read(out)}
    opened = [(name, model := load(open_file(path)), Weights(model.file)) for name, path in models(build)]
    todo = [
        partial(grade, model, weights, name, kind, style, prompt, tokens(prompt))
        for prompt, (name, model, weights), kind, style in product(range(args.prompts), opened, ARITHMETICS, STYLES)
        if (name, kind, style, prompt) not in done
    ]
    if args.model:
        from assay.runtime import hub

        model = load(open_file(hub.resolve(args.model)))
        weights = Weights(model.file)
        ids = (*planting.SMOL_TOKENS, 260, 2240, 282)
        for i, kind in enumerate(ARITHMETICS):
            style = STYLES[i % len(STYLES)]
            if ("SmolLM2", kind, style, PROMPTS) not in done:
                todo.append(partial(grade, model, weights, "SmolLM2", kind, style, PROMPTS, ids))
    todo = todo[:: args.every]
    grading.side_by_side(todo, out, args)
    print(table(grading.read(out)))


if __name__ == "__main__":
    main()
