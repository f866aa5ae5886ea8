"""Does diagnosis name faults that are smaller than the noise of the engine that has them, or call the engine healthy?

python bench/small_faults.py                  # three tiny models of three kinds, everything
python bench/small_faults.py --model smollm2  # SmolLM2 (a run of it costs more), or a cut of it (bench/cut.py)
python bench/small_faults.py --every 5        # a sample

Each is planted in the second engine, which computes in float32, with a half cache or with Q8 activations, and is dumped
in four styles. A fault that changes no observed value by more than float32's noise is counted separately: no
evidence can show it.
Results are kept line by line in build/small-faults.jsonl and reused; `--again` starts over.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
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
from assay.verify.diagnosis.diagnose_dump import BENEATH, diagnose  # noqa: E402

_SMALL = """
rope-freq-factors rope-base rope-base/odd rope-linear rope-yarn-factor eps-value eps-place norm-weight-half
norm-weight-half/bf16 norm-half softmax-half softmax-half/bf16 accumulate-half kv-rounded-twice kv-rounded-twice/rope
swa-off-by-one swa-off-by-one/short head-one-wrong head-one-wrong/neighbour weight-damaged weight-damaged/row
weight-torn pos-last-off-by-one pos-last-off-by-one/early pos-clamped clamp-silent
"""
SMALL = tuple(_SMALL.split())
ARITHMETICS = {"f32": "float32", "kv16": "half cache", "q8": "Q8 activations"}
STYLES = {"full": 98, "layers": 95, "last": 90, "logits": 60}  # how much of them must be named or tied, in percent
SHOWS = 1e-6  # of a row's size: less is float32's own noise
STEPS = (22, 1, 1)
TOKENS = tuple(int(t) for t in np.random.default_rng(3).integers(3, 300, sum(STEPS)))
DAMAGED = {"synthetic": "blk.1.ffn_down.weight", "window": "blk.0.ffn_up.weight", "experts": "blk.1.attn_output.weight"}
SECTION = """
## Small faults

Faults that no eye sees, planted in the second engine ({models}; {n} tokens, {steps} of them one by one), which computes
in float32, with a half cache and with Q8 activations: right or tied. *Healthy*: called so although the fault
moves an observed value beyond float32's noise. *Undecided*: the answer is that this evidence cannot tell, and what to
dump next. Made by `bench/small_faults.py`.
"""


def models(name: str, build: Path) -> Iterator[tuple[str, Path]]:
    if name != "tiny":
        from assay.runtime import hub

        yield Path(name).stem, hub.resolve(name)
        return
    yield "synthetic", make_kquant(build / "synthetic.gguf")
    yield "window", tiny.make(build / "tiny-window.gguf", window=6, type="Q8_0")
    yield "experts", tiny.make(build / "tiny-experts.gguf", n_expert=4, type=tiny.with_experts("Q8_0"), n_layer=3)


def fed(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens and steps."""
    return (TOKENS, STEPS) if name in DAMAGED else (planting.SMOL_TOKENS, planting.STEPS)


def made(path: Path, name: str, bug: str, arithmetic: str) -> planting.Case:
    """The faulty engine's run, or the healthy one's where there is no bug."""
    tokens, steps = fed(name)
    options: dict[str, Any] = {"tokens": tokens, "steps": steps, "arithmetic": arithmetic}
    if bug.startswith("weight-damaged"):
        options["only"] = (DAMAGED.get(name, "blk.3.ffn_down.weight"),)
    if bug == "clamp-silent":
        healthy = _healthy(path, name, arithmetic)
        act = [np.abs(v).max() for part in healthy.parts for n, v in part.items() if "glu" in n] or [1.0]
        options["limit"] = float(f"{0.6 * max(act):.2g}")
    return planting.second(path, *([bug] if bug else []), **options)


@cache
def _healthy(path: Path, name: str, arithmetic: str) -> planting.Case:
    return made(path, name, "", arithmetic)


def shown(case: planting.Case, healthy: planting.Case, style: str) -> bool:
    """Does an observed value move by more than float32's noise?"""
    for i, (part, right) in enumerate(zip(case.parts, healthy.parts, strict=True)):
        for name, value in part.items():
            kept = {"layers": ("l_out", "result_norm", "result_output"), "logits": ("result_output",)}.get(style)
            if (kept and name.split("-")[0] not in kept) or (style == "last" and i + 1 < len(case.parts)):
                continue
            size = float(np.sqrt(np.mean(np.square(right[name], dtype=np.float64)))) + 1e-30
            if float(np.sqrt(np.mean(np.square(value - right[name], dtype=np.float64)))) > SHOWS * size:
                return True
    return False


def grade(model: Model, weights: Weights, name: str, bug: str, arithmetic: str, style: str) -> dict[str, Any] | None:
    started = time.monotonic()
    case, healthy = made(model.file.path, name, bug, arithmetic), _healthy(model.file.path, name, arithmetic)
    row: dict[str, Any] = {"model": name, "kind": arithmetic, "bug": bug, "style": style}
    if not case.finite:
        return None
    if not shown(case, healthy, style):
        return {**row, "grade": "not shown", "answer": "", "seconds": 0.0}
    tokens, steps = fed(name)
    with tempfile.TemporaryDirectory() as folder:
        found = diagnose(model, planting.dump(case, style, model, Path(folder), tokens, steps), weights=weights)
    answer = f"{found.causes[0].fault} ({found.causes[0].how})" if found.causes else found.verdict
    if found:
        answer = f"undecided: {found.next_observation}" if found.next_observation else _reason(found.notes)
    return {**row, "grade": planting.grade(found, case.faults), "answer": answer, "seconds": time.monotonic() - started}


def _reason(notes: Sequence[str]) -> str:
    return f"healthy; {BENEATH}" if BENEATH in notes else "healthy"


def section(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/lab/score.md."""
    if not rows:
        return ""
    names = ", ".join(dict.fromkeys(r["model"] for r in rows))
    out = [SECTION.format(models=names, n=len(TOKENS), steps=len(STEPS) - 1)]
    heads = ("", "needed", *ARITHMETICS.values(), "all", "undecided", "healthy (under 2 %)")
    out += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for style, needed in STYLES.items():
        mine = [r for r in rows if r["style"] == style and r["grade"] != "not shown"]
        cells = [_share([r for r in mine if r["kind"] == a]) for a in ARITHMETICS]
        cells += [_share(mine), _share(mine, ("undecided",)), _share(mine, ("missed",))]
        out.append(f"| {style} | {needed} % | {' | '.join(cells)} |")
    hidden = sum(r["grade"] == "not shown" for r in rows)
    out.append(
        f"\n{hidden} cases of {len(rows)} move no observed value by more than float32's noise and are not counted.\n"
    )
    failed = [r for r in rows if r["grade"] not in ("right", "tied", "not shown")]
    if failed:
        out += ["| not named | model | arithmetic | style | answer |", "|---|---|---|---|---|"]
        out += [
            f"| {r['bug']} | {r['model']} | {ARITHMETICS[r['kind']]} | {r['style']} | {r['answer'].replace('|', '/')} |"
            for r in sorted(failed, key=lambda r: (r["bug"], r["style"], r["model"], r["kind"]))
        ]
    return "\n".join(out) + "\n"


def _share(rows: Sequence[dict[str, Any]], good: Sequence[str] = ("right", "tied")) -> str:
    n = sum(r["grade"] in good for r in rows)
    return f"{100 * n / len(rows):.1f} % ({n} of {len(rows)})" if rows else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="tiny (three of them), a file, or a model that assay knows")
    grading.add_arguments(parser)
    parser.add_argument("--only", default="", metavar="FAULT", help="faults whose name begins so")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the results here")
    args = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    out = args.out or build / "small-faults.jsonl"
    if args.again:
        out.unlink(missing_ok=True)
    done = {(r["model"], r["kind"], r["bug"], r["style"]) for r in grading.read(out)}
    todo = []
    for name, path in models(args.model, build):
        model = load(open_file(path))
        weights = Weights(model.file)
        cases = [(bug, a, style) for bug in SMALL for a in ARITHMETICS for style in STYLES if bug.startswith(args.only)]
        todo += [
            partial(grade, model, weights, name, *case)
            for i, case in enumerate(cases)
            if i % args.every == 0 and (name, case[1], case[0], case[2]) not in done
        ]
    grading.side_by_side(todo, out, args)
    print(section(grading.read(out)))


if __name__ == "__main__":
    main()
