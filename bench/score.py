"""How often is the bug named? Faults are planted in two engines, dumped in four styles, and diagnosed.

python bench/score.py                       # the synthetic model of every block type, everything
python bench/score.py --model smollm2       # SmolLM2, a sample (a run of it costs more)
python bench/score.py --page                # write docs/lab/score.md from the results so far
python bench/score.py --every 9 --out build/after.jsonl --against build/before.jsonl    # did a change alter a verdict?

Results are kept line by line in build/score-MODEL.jsonl and reused; `--again` starts over.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # cases run in parallel; waiting BLAS threads would cost most
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import small_faults  # noqa: E402
from tests import planting  # noqa: E402
from tests.synthetic import make_kquant  # noqa: E402

from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import CHOSEN, diagnose  # noqa: E402
from assay.verify.faults import FAULTS  # noqa: E402

GOALS = {
    "full": "full dump",
    "last": "last row's first ten values and rms of every node",
    "layers": "layer outputs, result_norm and logits only",
    "logits": "logits only",
}
NEEDED = {"full": 98, "last": 90, "layers": 80, "logits": 60, "stage": 80, "pairs": 85, "unknown": 95, "healthy": 100}
# Another row than the dumped one is wrong.
NOT_SEEN = {("last", f"head-wrong-row{v}") for v in ("", "/before", "/hidden", "/middle", "/shifted")}
GENERAL = {  # faults that every Llama file can have, for a model that has not every block type
    "full": """q4_1-min/dropped q4_1-min/subtracted q4_0-interleave f16-as-bf16 w-transposed embd-strided head-transposed
        qkv-split gateup-split o-proj-head-order norm-name-swap head-dim-axes eps-value eps-value/odd eps-place
        norm-layernorm norm-no-weight norm-weight-twice norm-plus1-double kv-swapped rope-type rope-overlap-pairs
        rope-inplace-alias rope-base rope-base/odd rope-linear rope-partial rope-one-side/k rope-missing rope-on-v
        pos-all-same pos-reset-decode pos-off-by-one-decode scale-missing scale-twice scale-wrong-dim/odd
        mask-missing-prefill mask-plus1 softmax-axis softmax-unfilled gqa-modulo gqa-tile-cross kv-recreated kv-pre-rope
        ffn-gate-up-weights ffn-silu-on-up ffn-act-family ffn-dim res-from-norm res-parallel head-no-final-norm
        head-wrong-row head-logit-scale/odd""",
    "last": """q4_1-min/dropped w-transposed eps-value norm-weight-twice rope-type rope-base/odd pos-reset-decode
        scale-missing mask-missing-prefill gqa-modulo kv-pre-rope ffn-silu-on-up res-from-norm head-no-final-norm""",
    "layers": """q4_1-min/dropped w-transposed eps-value norm-weight-twice rope-type rope-base pos-reset-decode
        scale-missing mask-missing-prefill gqa-modulo kv-pre-rope ffn-silu-on-up res-from-norm head-no-final-norm""",
    "logits": "norm-weight-twice rope-type pos-reset-decode scale-missing mask-missing-prefill ffn-silu-on-up",
}


Made = Callable[[], planting.Case | None]


def cases(model: Model, weights: Weights, name: str) -> Iterator[tuple[str, str, str, Made]]:
    """(kind, bug, style, how to make the case); kind is one of healthy, unknown, pairs, second, reference."""
    synthetic = name == "synthetic"
    tokens = tokens_of(name)

    def second(*bugs: str, **options: Any) -> Made:
        return cache(lambda: planting.second(model.file.path, *bugs, tokens=tokens, **options))

    healthy: list[tuple[str, Made]] = [(a, second(arithmetic=a)) for a in ("f32", "f16", "q8", "kv16")]
    healthy += [("hf order", second(hf=True)), ("positions + 11", second("pos-global-offset"))]
    for label, made in healthy:
        for style in planting.STYLES if synthetic else ("full", "last"):
            yield "healthy", label, style, made
    for bug in planting.UNKNOWN if synthetic else ("x-residual-mean", "x-head-reversed", "x-rope-last-pair"):
        yield "unknown", bug, "full", second(bug)
    for pair in planting.PAIRS:
        if synthetic or all(b in GENERAL["full"].split() for b in pair):
            yield "pairs", "+".join(pair), "full", second(*pair)
    for bug in (*planting.BUGS, *planting.LIMITED) if synthetic else GENERAL["full"].split():
        made = second(bug)
        for style in planting.STYLES:
            if synthetic or bug in GENERAL[style].split():
                yield "second", bug, style, made
    for fault in FAULTS.values() if synthetic else ():
        for i, variant in enumerate(fault.variants):
            if fault.id != "pos-global-offset":
                yield (
                    "reference",
                    f"{fault.id}: {variant.label}",
                    "full",
                    partial(planting.reference, model, weights, fault.id, i),
                )


def tokens_of(name: str) -> Sequence[int]:
    return planting.TOKENS if name == "synthetic" else planting.SMOL_TOKENS


def run(model: Model, name: str, out: Path, args: argparse.Namespace) -> None:
    """Grade the cases that are not graded yet (every n-th one), until the time is over."""
    done = {(r["kind"], r["bug"], r["style"]) for r in grading.read(out)}
    weights = Weights(model.file)
    todo = [
        partial(grade, model, weights, name, *case)
        for i, case in enumerate(_makers(weights, name))
        if i % args.every == 0 and case not in done and (case[2], case[1]) not in NOT_SEEN
    ]
    grading.side_by_side(todo, out, args)


def grade(model: Model, weights: Weights, name: str, kind: str, bug: str, style: str) -> dict[str, Any] | None:
    """One case; None where it does not show."""
    case = _makers(weights, name)[kind, bug, style]()
    return None if case is None else _one(model, weights, kind, bug, style, case, tokens_of(name))


@cache
def _makers(weights: Weights, name: str) -> dict[tuple[str, str, str], Made]:
    model = load(weights.file)
    return {(kind, bug, style): make for kind, bug, style, make in cases(model, weights, name)}


def _one(
    model: Model, weights: Weights, kind: str, bug: str, style: str, case: planting.Case, tokens: Sequence[int]
) -> dict[str, Any]:
    started = time.monotonic()
    result: dict[str, Any] = {"kind": kind, "bug": bug, "style": style}
    if not case.finite:
        return {**result, "grade": "not finite", "seconds": 0.0, "answer": "refused: the dump holds NaN"}
    with tempfile.TemporaryDirectory() as folder:
        dump = planting.dump(case, style, model, Path(folder), tokens)
        found = diagnose(model, dump, weights=weights)
    first = found.causes[0] if found.causes else None
    if kind == "unknown":
        right_place = found.first_wrong is not None and found.first_wrong.split("-")[0] == planting.UNKNOWN[bug]
        confident = any(c.confidence > 0.5 for c in found.causes)
        grade = "right" if right_place and not confident else "wrong"
    elif kind == "healthy":
        grade = "right" if found else "wrong"
    else:
        grade = planting.grade(found, case.faults)
        if found.verdict == "healthy" and case.faults[0] in CHOSEN and bug.endswith("Q8_0"):
            grade = "right"  # a cache in eight bits is a choice, not a fault
    stage = kind in ("second", "reference") and planting.stage_right(found, case.faults[0])
    answer = f"{first.fault} ({first.how})" if first else found.verdict
    return {**result, "grade": grade, "stage": stage, "seconds": time.monotonic() - started, "answer": answer,
            "confidence": first.confidence if first else None}  # fmt: skip


def moved(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Cases of both whose grade, stage or first cause differs, one line each."""
    case, verdict = ("kind", "bug", "style"), ("grade", "stage", "answer")
    known = {tuple(r[k] for k in case): [r.get(k) for k in verdict] for r in before}
    both = [(key, [r.get(k) for k in verdict]) for r in after if (key := tuple(r[k] for k in case)) in known]
    print(f"{len(both)} cases in both", file=sys.stderr)
    return [f"{' '.join(key)}: {known[key]} became {found}" for key, found in both if found != known[key]]


# -- the page ------------------------------------------------------------------------------------------------------------


def share(rows: list[dict[str, Any]], good: Sequence[str] = ("right", "tied")) -> str:
    counted = [r for r in rows if r["grade"] != "not finite"]
    if not counted:
        return "–"
    n = sum(r["grade"] in good for r in counted)
    return f"{100 * n / len(counted):.1f} % ({n} of {len(counted)})"


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    names = list(results)
    out = [
        "<!-- Made by bench/score.py (make score). Do not edit. -->\n",
        "# Score\n",
        "How often `assay diagnose` names a planted fault. Each fault is planted in the reference engine (every variant of the",
        "table) and, written independently, in a second engine that shares no code with assay; six tokens are fed at once and",
        "two one by one; the dump goes through a file and the reader. *Right*: it is the first cause, or one of the causes",
        "where several were planted. *Tied*: it is in the class of faults that give the same observed values. The synthetic",
        "model has every block type and gets every fault; SmolLM2 gets those that any Llama file can have, a sample of them in",
        "the three styles with little evidence.\n",
        "| | needed | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]

    def line(label: str, need: str, pick: Any, good: Sequence[str] = ("right", "tied")) -> str:
        cells = " | ".join(share([r for r in rows if pick(r)], good) for rows in results.values())
        return f"| {label} | {need} | {cells} |"

    for style, text in GOALS.items():
        out.append(
            line(
                f"{text}: right or tied",
                f"{NEEDED[style]} %",
                lambda r, s=style: r["kind"] == "second" and r["style"] == s,
            )
        )
    staged = [
        f"{100 * sum(r['stage'] for r in rows) / len(rows):.1f} %" if rows else "–"
        for rows in (
            [r for r in all_ if r["kind"] == "second" and r["style"] == "logits" and "stage" in r]
            for all_ in results.values()
        )
    ]
    out.append(f"| logits only: the right stage | {NEEDED['stage']} % | {' | '.join(staged)} |")
    out.append(
        line("every variant of the table in the reference, full dump", "98 %", lambda r: r["kind"] == "reference")
    )
    out.append(line("pairs of faults, full dump: both named", f"{NEEDED['pairs']} %", lambda r: r["kind"] == "pairs"))
    out.append(
        line(
            "faults outside the table: right node, no confident name",
            f"{NEEDED['unknown']} %",
            lambda r: r["kind"] == "unknown",
        )
    )
    out.append(
        line(
            "healthy engines (float32, float16, Q8 activations, f16 KV, HF row order, shifted positions)",
            "100 %",
            lambda r: r["kind"] == "healthy",
        )
    )
    for name, rows in results.items():
        times = sorted(r["seconds"] for r in rows if r["style"] == "full" and r["seconds"])
        if times:
            out.append(
                f"\nTime for a full dump of {name}: median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s, on a shared 2-core machine."
            )
    for name, rows in results.items():
        out += [f"\n## {name}: second engine\n", "| fault | " + " | ".join(GOALS) + " |", "|---|" + "---|" * len(GOALS)]
        table: dict[str, dict[str, dict[str, Any]]] = {}
        for r in rows:
            if r["kind"] == "second":
                table.setdefault(r["bug"], {})[r["style"]] = r
        for bug, found in sorted(table.items()):
            cells = [_cell(found.get(style)) for style in GOALS]
            out.append(f"| [{bug}](../reference/faults.md#{planting.fault_id(bug)}) | " + " | ".join(cells) + " |")
        for kind, title in (
            ("pairs", "pairs"),
            ("unknown", "faults outside the table"),
            ("healthy", "healthy engines"),
        ):
            mine = [r for r in rows if r["kind"] == kind]
            if mine:
                out += [f"\n### {name}: {title}\n", "| case | style | grade | answer |", "|---|---|---|---|"]
                out += [f"| {r['bug']} | {r['style']} | {r['grade']} | {r['answer'].replace('|', '/')} |" for r in mine]
        failed = [r for r in rows if r["kind"] == "reference" and r["grade"] not in ("right", "tied", "not finite")]
        if failed:
            out += [
                f"\n### {name}: variants in the reference that were not named\n",
                "| variant | answer |",
                "|---|---|",
            ]
            out += [f"| {r['bug']} | {r['answer'].replace('|', '/')} |" for r in failed]
    out.append("\n*not finite*: the fault makes NaN, which the reader refuses with the name of the first such tensor.")
    return "\n".join(out) + "\n"


def _cell(r: dict[str, Any] | None) -> str:
    if r is None:
        return ""
    if r["grade"] in ("right", "tied", "not finite"):
        return str(r["grade"])
    return f"**{r['grade']}**: {r['answer'].replace('|', '/')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="synthetic", help="synthetic, or a model that assay knows")
    grading.add_arguments(parser)
    parser.add_argument("--page", action="store_true", help="only write docs/lab/score.md")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the results here, and leave the page alone")
    parser.add_argument("--against", type=Path, metavar="FILE", help="exit 1 if a verdict of these results has moved")
    args = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    if not args.page:
        out = args.out or build / f"score-{args.model}.jsonl"
        if args.again:
            out.unlink(missing_ok=True)
        if args.model == "synthetic":
            path = make_kquant(build / "synthetic.gguf")
        else:
            from assay.runtime import hub

            path = hub.resolve(args.model)
        run(load(open_file(path)), args.model, out, args)
        if args.against:
            differ = moved(grading.read(args.against), grading.read(out))
            print("\n".join(differ) or "no verdict has moved")
            raise SystemExit(bool(differ))
        if args.out:
            return
    results = {
        p.stem.removeprefix("score-"): grading.read(p) for p in sorted(build.glob("score-*.jsonl"), reverse=True)
    }
    text = page(results) + small_faults.section(grading.read(build / "small-faults.jsonl"))
    (ROOT / "docs" / "lab" / "score.md").write_text(text)
    print("\n".join(line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")))
    print("docs/lab/score.md written", file=sys.stderr)


if __name__ == "__main__":
    main()
