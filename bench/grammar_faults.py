"""Are mistakes described that no row of the catalogue lists? Drawn from a grammar of edits, in an engine apart.

python bench/grammar_faults.py --count 20 --seed 1              # 20 mistakes, each dumped in three styles
python bench/grammar_faults.py --count 200 --jobs 16 --write    # and write docs/lab/grammar-score.md

`tests/grammar_planting.py` draws a mistake and plants it in the second engine, which shares no code with assay. *Right*
means that a cause describes what was planted, by the words of the grammar or by a row of the catalogue for the same
computation. *Tied*: it is listed beside a cause, as another mistake with the same values. A mistake that moves no
dumped value is not counted. Results are kept in build/grammar-faults.jsonl; `--again` starts over.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import numpy as np  # noqa: E402
from tests import planting  # noqa: E402
from tests.grammar_planting import Drawn, Edited, draw  # noqa: E402
from tests.second_engine import Engine  # noqa: E402

from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.runtime import hub  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402
from assay.verify.diagnosis.result import Diagnosis  # noqa: E402

NEEDED = {"full": 95, "last": 85, "layers": 75}  # percent of the mistakes that must be described
WORDS = {"full": "full dump", "last": "ten values of each node", "layers": "layers"}
SURE = 0.9  # confidence from which a wrong name misleads
SHOWS = 1e-5  # of a node's size: less is float32's own noise
STORIES = Path(os.environ.get("ASSAY_SHARED", ROOT.parent / "shared")) / "data" / "models" / "stories260K-f32.gguf"
_KV = re.compile(r"\b(keys|values)\b(?! and)")
TOKENS, STEPS = planting.TOKENS, planting.STEPS


def described(found: Diagnosis, drawn: Drawn) -> bool:
    """Does a cause say what was planted? Keys and values that are named one after the other are both."""
    if "keys and values" in drawn.words and len(found.causes) > 1:
        both = replace(found, causes=tuple(replace(c, how=_KV.sub("keys and values", c.how)) for c in found.causes))
        if all(any(what in c.how for c in found.causes) for what in ("keys", "values")):
            found = both
    return any(c.fault == fault and re.search(words, c.how) for c in found.causes for fault, words in drawn.accepts)


def tied(found: Diagnosis, drawn: Drawn) -> bool:
    """Is it among the mistakes that give the same values as a cause?"""
    return any(fault in c.equivalent for c in found.causes for fault, _ in drawn.accepts)


def _shown(run: planting.Case, right: planting.Case, style: str) -> bool:
    for part, own in zip(run.parts, right.parts, strict=True):
        for name in own:
            role = name.split("-")[0]
            if style == "layers" and role not in ("l_out", "result_norm", "result_output"):
                continue
            if name not in part:
                return True
            size = float(np.sqrt(np.mean(np.square(own[name], dtype=np.float64)))) + 1e-30
            if np.abs(part[name] - own[name]).max() > SHOWS * size:
                return True
    return False


def grade(model: Model, weights: Weights, seed: int, number: int, style: str) -> dict[str, Any]:
    """One drawn mistake in one style. The number and the seed determine it."""
    path, begun = model.file.path, time.monotonic()
    drawn = draw(np.random.default_rng([seed, number]), Engine(path), TOKENS)
    run, right = _run(path, drawn), _run(path, Drawn())
    row: dict[str, Any] = {"kind": str(seed), "bug": f"{number}: {drawn.words}", "style": style, "sure": False}
    if not _shown(run, right, style):
        return {**row, "grade": "not shown", "answer": "", "confidence": 0.0, "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        found = diagnose(model, planting.dump(run, style, model, Path(folder)), weights=weights)
    named = bool(found.causes)
    mark = "right" if described(found, drawn) else "tied" if tied(found, drawn) else "wrong" if named else found.verdict
    surest = max((c.confidence for c in found.causes), default=0.0)
    answer = "; ".join(f"{c.fault} ({c.how}) at {c.node} {c.confidence:.2f}" for c in found.causes[:3])
    return {
        **row, "grade": mark, "sure": mark == "wrong" and surest >= SURE, "confidence": surest,
        "answer": answer or f"{found.verdict} at {found.first_wrong}", "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def _run(path: Path, drawn: Drawn) -> planting.Case:
    engine = Edited(path, drawn)
    with np.errstate(all="ignore"):
        engine.run(list(TOKENS), STEPS)
    return planting.Case(drawn.words or "healthy", (), tuple(engine.parts))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ("", "needed", "described", "of them tied", "unexplained or undecided", "another name", "sure of it")
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for style, needed in NEEDED.items():
        mine = [r for r in rows if r["style"] == style and r["grade"] != "not shown"]
        right, same, wrong = (sum(r["grade"] in g for r in mine) for g in (("right", "tied"), ("tied",), ("wrong",)))
        share = f"{100 * right / len(mine):.1f} % ({right} of {len(mine)})" if mine else "–"
        sure = sum(r["sure"] for r in mine)
        cells = (WORDS[style], f"{needed} %", share, same, len(mine) - right - wrong, wrong, sure)
        out.append(f"| {' | '.join(map(str, cells))} |")
    bad = [r for r in rows if r["grade"] not in ("right", "tied", "not shown")]
    out += ["\n| not described | style | answer |", "|---|---|---|"]
    return [*out, *(f"| {r['bug']} | {r['style']} | {r['answer'].replace('|', '/')} |" for r in bad)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    grading.add_arguments(parser)
    parser.add_argument("--count", type=int, default=20, help="mistakes to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=str(STORIES), help="a file of the llama architecture, or a known name")
    parser.add_argument("--styles", nargs="*", default=list(NEEDED), choices=list(NEEDED))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "grammar-faults.jsonl", help="keep results here")
    parser.add_argument("--write", action="store_true", help="write docs/lab/grammar-score.md")
    parser.add_argument("--machine", default="two cores", help="named on the page")
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    if args.again:
        args.out.unlink(missing_ok=True)
    model = load(open_file(hub.resolve(args.model)))
    kept = model, Weights(model.file)
    done = {(r["kind"], r["bug"].split(":")[0], r["style"]) for r in grading.read(args.out)}
    cases = [(n, style) for n in range(args.count) for style in args.styles]
    todo = [partial(grade, *kept, args.seed, n, s) for n, s in cases if (str(args.seed), str(n), s) not in done]
    grading.side_by_side(todo[:: args.every], args.out, args)
    rows = [r for r in grading.read(args.out) if r["kind"] == str(args.seed)]
    text = "\n".join(table(rows))
    print(text)
    if args.write:
        head = (
            "# Score: mistakes outside the catalogue\n\n"
            f"Made by `bench/grammar_faults.py --write` on {args.machine}, {date.today().isoformat()}: "
            f"{args.count} mistakes drawn from a grammar (seed {args.seed}), planted in the second engine on "
            f"{model.file.path.name}.\n\n"
        )
        (ROOT / "docs" / "lab" / "grammar-score.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
