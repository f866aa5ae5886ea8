"""Are the faults of recurrent models named, and is a right engine of these models ever called wrong?

python bench/recurrent_faults.py                    # each fault on one model, and all right engines
python bench/recurrent_faults.py --models all       # each fault on every model that shows it
python bench/recurrent_faults.py --only gdn-        # faults whose name begins so; "healthy" for the right engines
python bench/recurrent_faults.py --table            # print the tables of the results so far
python bench/recurrent_faults.py --write            # and write them to docs/lab/recurrent-score.md

The engine is tests/second_recurrent.py, which shares no code with assay. It runs the golden models of the reference
data (`$ASSAY_SHARED`): a prompt of 24 tokens and two decode calls, dumped in four styles. Right engines compute in
float32, with weights in bfloat16 or halves; the recorded nodes of llama.cpp are judged as well.
Results are kept line by line in build/recurrent-faults.jsonl and reused; `--again` starts over.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import numpy as np  # noqa: E402
from tests import recurrent_planting as planting  # noqa: E402
from tests.planting import Case  # noqa: E402
from tests.planting import grade as graded  # noqa: E402

from assay.engines.reference.weights import Weights  # noqa: E402
from assay.errors import AssayError  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402
from assay.verify.diagnosis.result import Diagnosis  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402

NEEDED = {"full": 98, "layers": 90, "last": 85, "logits": 60}  # percent of the rows that must be named or tied
STYLE_WORDS = {"full": "full dump", "layers": "layers", "last": "ten values of each node", "logits": "logits"}
SURE = 0.9  # confidence from which a wrong name misleads
SHOWS = 1e-6  # of a node's size: less is float32's own noise
FINE = ("healthy", "undecided")  # verdicts that are no alarm
RIGHT = {"f32": {}, "bf16 weights": {"weights": "bf16"}, "f16 weights": {"weights": "f16"}, "llama.cpp": {}}
PROMPTS = {"golden": planting.STEPS, "one token": (1, 1, 1), "100 tokens": (98, 1, 1)}
# The same mistake under the name that the catalogue had for it before.
ALSO = {
    "gattn-full-rope": ("rope-partial",),
    "gattn-norm-after-rope": ("qknorm-order",),
    "gattn-qk-norm-absent": ("qknorm-missing",),
    "hyb-rope-flip": ("rope-missing", "rope-nope-layer"),
    "hyb-rope-mode": ("rope-type", "qk-hf-in-interleaved", "qk-gguf-in-halfsplit"),
    "hyb-residual-plain": ("res-multiplier",),
    "hyb-scale-default": ("scale-wrong-dim",),
    "falcon-serial": ("res-serial",),
    "kda-mla-rope": ("rope-nope-layer",),
    "kda-mla-scale": ("mla-scale", "scale-wrong-dim"),
    "nemo-relu": ("ffn-act-family",),
    "nemo-silu": ("ffn-act-family",),
    "moe-norm-flip": ("moe-no-renorm", "moe-topk-norm"),
    "moe-bias-absent": ("moe-router-bias",),
    "moe-bias-in-weights": ("moe-router-bias",),
    "moe-scale-absent": ("moe-routed-scale",),
    "moe-shared-absent": ("moe-shared-missing",),
    "moe-shared-gate-absent": ("moe-shared-gate",),
    "st-leak": ("kv-stale-request",),
}
HEAD = """# Score: models with a state

Made by `bench/recurrent_faults.py --write` on {machine}, {day}. The second engine (`tests/second_recurrent.py`) shares
no code with assay and has {count} planted faults. It runs a prompt of 24 tokens and two decode calls on the golden
models. *Named*: the fault is a cause of the diagnosis. *Tied*: it is in the class of a cause. *Unexplained*: no cause
is named. *Wrong*: another fault is named. *Sure*: with a confidence of 0.9 or more.

{graded} of {all} rows were graded (each fault on one model in four styles, right engines on three prompts); the others
wait for a machine with more time. Run the same command again to go on.
"""
WHOLE = """
{all} rows: each fault on one model in four styles, right engines on three prompts.
"""


def folder() -> Path:
    found = planting.folder()
    if found is None:
        raise SystemExit("no golden recurrent models; set ASSAY_SHARED to the reference data")
    return found


@cache
def _case(path: Path, bug: str) -> Case:
    return planting.planted(path, *([bug] if bug else []))


def _shown(case: Case, healthy: Case, style: str) -> bool:
    """Does an observed value move by more than float32's noise?"""
    for part, right in zip(case.parts, healthy.parts, strict=True):
        for name, value in part.items():
            role = name.split("-")[0]
            if name not in right or (style == "logits" and name != "result_output"):
                continue
            if (style == "layers" and role not in planting.LAYER_NODES) or (style == "last" and "cache_" in name):
                continue
            expected = right[name]
            size = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) + 1e-30
            moved = value.shape != expected.shape or np.sqrt(np.mean(np.square(value - expected))) > SHOWS * size
            if moved:
                return True
    return False


def _diagnosed(model: Model, weights: Weights, case: Case, style: str, ids: Sequence[int], steps: Sequence[int]) -> Any:
    """The diagnosis, or the words of the error where the dump was refused."""
    with tempfile.TemporaryDirectory() as place:
        try:
            dump = load_dump(planting.STYLES[style](case, Path(place), ids, steps), model)
            return diagnose(model, dump, weights=weights)
        except AssayError as error:
            return str(error)


def _answer(found: Diagnosis) -> str:
    if found.causes:
        return "; ".join(f"{c.fault} ({c.how}) {c.confidence:.2f}" for c in found.causes[:3])
    return ", ".join([found.verdict, *found.unexplained[:3]])


def _fault_grade(found: Diagnosis, case: Case) -> str:
    best = graded(found, case.faults)
    for other in ALSO.get(case.faults[0], ()):
        if best in ("right", "tied"):
            break
        second = graded(found, (other,))
        best = second if second in ("right", "tied") else best
    return best


def grade(model: Model, weights: Weights, name: str, bug: str, style: str) -> dict[str, Any] | None:
    """One planted fault in one style."""
    started = time.monotonic()
    path = model.file.path
    case = _case(path, bug)
    row: dict[str, Any] = {"model": name, "kind": "fault", "bug": bug, "style": style, "sure": False}
    draft = bug.startswith("mtp-")
    if not draft and not _shown(case, _case(path, ""), style):
        return {**row, "grade": "not shown", "answer": "", "seconds": 0.0}
    ids, steps = planting.tokens_of(path), planting.STEPS
    if draft:
        case, ids, steps = planting.as_draft(case, path), ids[:24], (24,)
    found = _diagnosed(model, weights, case, style, ids, steps)
    seconds = round(time.monotonic() - started, 1)
    if isinstance(found, str):
        return {**row, "grade": "refused", "answer": found[:200], "seconds": seconds}
    mark = _fault_grade(found, case)
    sure = mark == "wrong" and bool(found.causes) and found.causes[0].confidence >= SURE
    surest = max((c.confidence for c in found.causes), default=0.0)
    return {
        **row, "grade": mark, "sure": sure, "confidence": surest, "answer": _answer(found), "seconds": seconds
    }  # fmt: skip


def grade_right(model: Model, weights: Weights, name: str, kind: str, prompt: str, style: str) -> dict[str, Any] | None:
    """One right engine on one prompt in one style."""
    started = time.monotonic()
    path, steps = model.file.path, PROMPTS[prompt]
    if prompt == "golden":
        ids = planting.tokens_of(path)
    else:
        ids = tuple(int(t) for t in planting.golden(path)["long_tokens"][: sum(steps)])
    case = planting.recorded(path) if kind == "llama.cpp" else planting.planted(
        path, tokens=ids, steps=steps, **RIGHT[kind]
    )  # fmt: skip
    found = _diagnosed(model, weights, case, style, ids, steps)
    row = {"model": name, "kind": kind, "bug": f"healthy {prompt}", "style": style, "sure": False}
    seconds = round(time.monotonic() - started, 1)
    if isinstance(found, str):
        return {**row, "grade": "refused", "answer": found[:200], "seconds": seconds}
    return {**row, "grade": found.verdict, "answer": _answer(found), "seconds": seconds}


# -- tables ------------------------------------------------------------------------------------------------------------


def _share(n: int, of: int) -> str:
    return f"{100 * n / of:.1f} % ({n} of {of})" if of else "–"


def fault_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ("", "needed", "named or tied", "named", "tied", "unexplained", "wrong", "sure and wrong")
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for style, needed in NEEDED.items():
        mine = [r for r in rows if r["kind"] == "fault" and r["style"] == style and r["grade"] != "not shown"]
        named, tied, wrong = (sum(r["grade"] == g for r in mine) for g in ("right", "tied", "wrong"))
        sure = sum(r["sure"] for r in mine)
        cells = [_share(named + tied, len(mine)), named, tied, len(mine) - named - tied - wrong, wrong, sure]
        out.append(f"| {STYLE_WORDS[style]} | {needed} % | {' | '.join(map(str, cells))} |")
    hidden = sum(r["grade"] == "not shown" for r in rows)
    out.append(f"\n{hidden} rows move no observed value by more than float32's noise and are not counted.")
    return out


def right_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ("right engine", *PROMPTS)
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind in RIGHT:
        cells = []
        for prompt in PROMPTS:
            mine = [r for r in rows if r["kind"] == kind and r["bug"] == f"healthy {prompt}"]
            alarms = sum(r["grade"] not in FINE for r in mine)
            cells.append(f"{alarms} of {len(mine)}" if mine else "–")
        out.append(f"| {kind} | {' | '.join(cells)} |")
    return out


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    bad = [r for r in rows if r["kind"] == "fault" and r["grade"] not in ("right", "tied", "not shown")]
    bad += [r for r in rows if r["kind"] != "fault" and r["grade"] not in FINE]
    out = ["| not named, or a false alarm | model | style | grade | answer |", "|---|---|---|---|---|"]
    for r in sorted(bad, key=lambda r: (r["bug"], r["model"], list(NEEDED).index(r["style"]))):
        what = r["bug"] if r["kind"] == "fault" else f"{r['bug']}, {r['kind']}"
        mark = r["grade"] + (", sure" if r["sure"] else "")
        out.append(f"| {what} | {r['model']} | {r['style']} | {mark} | {r['answer'].replace('|', '/')} |")
    return out if bad else ["Every fault is named or tied, and no right engine is called wrong."]


def page(rows: Sequence[dict[str, Any]], machine: str) -> str:
    count = len({fault.split("/")[0] for fault in planting.PLANTED})
    every = len(list(wanted("first", "")))
    told = {"machine": machine, "day": date.today().isoformat(), "count": count, "graded": len(rows), "all": every}
    head = HEAD if len(rows) < every else HEAD[: HEAD.index("\n{graded}")] + WHOLE
    out = [head.format(**told)]
    out += ["## Faults\n", *fault_table(rows), "\n## False alarms\n", "Alarms of all runs.\n", *right_table(rows)]
    return "\n".join([*out, "\n## What is missing\n", *failures(rows)]) + "\n"


# -- the program -------------------------------------------------------------------------------------------------------


def wanted(models: str, only: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Model and the rest of a case: faults first, then right engines."""
    for bug, names in planting.PLANTED.items():
        if bug.startswith(only):
            for name in names if models == "all" else names[:1]:
                for style in NEEDED:
                    yield name, (bug, style)
    for name in planting.MODELS if "healthy".startswith(only) or only == "" else ():
        for kind in RIGHT:
            for prompt in PROMPTS if kind != "llama.cpp" else ("golden",):
                for style in NEEDED if prompt == "golden" else ("layers", "last"):
                    yield name, (kind, prompt, style)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    grading.add_arguments(parser)
    parser.add_argument(
        "--models", choices=("first", "all"), default="first", help="models that each fault is tried on"
    )
    parser.add_argument("--only", default="", metavar="FAULT", help="faults whose name begins so, or healthy")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "recurrent-faults.jsonl", help="keep results here")
    parser.add_argument("--table", action="store_true", help="grade nothing; print the tables")
    parser.add_argument("--write", action="store_true", help="write docs/lab/recurrent-score.md")
    parser.add_argument("--machine", default="two x86 cores (Xeon 2.5 GHz, AVX2)", help="named on the page")
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    if args.again:
        args.out.unlink(missing_ok=True)
    if not args.table:
        done = {(r["model"], r["kind"], r["bug"], r["style"]) for r in grading.read(args.out)}
        opened: dict[str, tuple[Model, Weights]] = {}
        todo = []
        for i, (name, rest) in enumerate(wanted(args.models, args.only)):
            right = len(rest) == 3
            key = (name, rest[0], f"healthy {rest[1]}", rest[2]) if right else (name, "fault", *rest)
            if i % args.every or key in done:
                continue
            if name not in opened:
                model = load(open_file(folder() / f"{name}.gguf"))
                opened[name] = model, Weights(model.file)
            todo.append(partial(grade_right if right else grade, *opened[name], name, *rest))
        grading.side_by_side(todo, args.out, args)
    text = page(grading.read(args.out), args.machine)
    print(text)
    if args.write:
        (ROOT / "docs" / "lab" / "recurrent-score.md").write_text(text)


if __name__ == "__main__":
    main()
