"""Are printed numbers judged as intervals? A right engine must stay right in every way of printing.

python bench/printed.py                 # right engines: 162 ways to print; then every planted fault with 4 digits
python bench/printed.py --every 10      # a sample

Right engines print 3 to 9 significant digits, fixed decimals or integers; the first 3, 5 or 10 values of a node's last,
first or every row, with and without an rms. Faults are the second engine's, printed with four digits: ten values of
every node, and five of every layer. Results are kept in build/printed.jsonl; `--again` starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import numpy as np  # noqa: E402
from tests import planting  # noqa: E402

from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402

FORMATS = {
    "%.3g": "3 digits", "%.4g": "4 digits", "%.5g": "5 digits", "%.6g": "6 digits", "%.7g": "7 digits",
    "%.9g": "9 digits", "%.4f": "4 decimals", "%.2f": "2 decimals", "%.0f": "integers",
}  # fmt: skip
COUNTS = (3, 5, 10)
ROWS = ("last", "first", "all")
LAYERS = ("embd", "l_out", "result_norm", "result_output")
HEADS = ("kq", "kq_soft_max", "kqv")  # [head, token, …]
FAULTY = {"ten values a node": (10, False, 90), "five values a layer": (5, True, 80)}  # values, layers, goal


def write(case: planting.Case, path: Path, fmt: str, count: int, rms: bool, rows: str, layers: bool) -> Path:
    """JSON lines as people print them: the tensor's shape, the row, and some of its values as text."""
    lines = [json.dumps({"assay_dump": 1, "engine": "x", "tokens": list(planting.TOKENS)})]
    for name, value in case.parts[0].items():
        role = name.split("-")[0]
        if layers and role not in LAYERS:
            continue
        n = value.shape[1] if role in HEADS else len(value)
        for row in {"last": [n - 1], "first": [0], "all": range(n)}[rows]:
            x = (value[:, row] if role in HEADS else value[row]).reshape(-1).astype(np.float64)
            said = f', "rms": {fmt % np.sqrt(np.mean(x * x))}' if rms else ""
            first = ", ".join(fmt % v for v in x[:count])
            shape = "" if role in HEADS else f'"shape": {list(value.shape)}, '
            lines.append(f'{{"name": "{name}", "row": {row}, {shape}"first": [{first}]{said}}}')
    path.write_text("\n".join(lines) + "\n")
    return path


def grade(
    model: Model, weights: Weights, name: str, style: str, bug: str, fmt: str, count: int, rms: bool, rows: str,
    layers: bool,
) -> dict[str, Any] | None:  # fmt: skip
    begun = time.process_time()
    n = len(planting.TOKENS)
    try:
        case = planting.second(model.file.path, *[bug] * bool(bug), steps=(n,))
    except (KeyError, ValueError, IndexError, AssertionError):
        return None  # does not apply to this model
    if bug and (not case.finite or _same(case, planting.second(model.file.path, steps=(n,)))):
        return None  # the fault does not show
    with tempfile.TemporaryDirectory() as folder:
        path = write(case, Path(folder) / "log.jsonl", fmt, count, rms, rows, layers)
        found = diagnose(model, load_dump(path, model), weights=weights)
    mark = planting.grade(found, [planting.fault_id(bug)] if bug else [])
    return {
        "model": name, "kind": fmt, "bug": bug or f"{count} {rows} {'rms' if rms else ''}", "style": style,
        "grade": mark, "answer": ", ".join([*(c.fault for c in found.causes), *found.unexplained[:3]]),
        "seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def _same(a: planting.Case, b: planting.Case) -> bool:
    """The fault does not show in one step without a past."""
    return all(
        v.shape == b.parts[0][k].shape and np.allclose(v, b.parts[0][k], rtol=1e-4, atol=1e-6)
        for k, v in a.parts[0].items()
        if k in b.parts[0]
    )


def table(rows: list[dict[str, Any]]) -> str:
    healthy = [r for r in rows if r["style"] == "healthy"]
    out = ["| right engines that print | runs | false alarms |", "|---|---|---|"]
    for fmt, words in FORMATS.items():
        mine = [r for r in healthy if r["kind"] == fmt]
        out.append(f"| {words} | {len(mine)} | {sum(r['grade'] != 'right' for r in mine)} |")
    out += [f"- {r['model']} {r['kind']} {r['bug']}: {r['answer']}" for r in healthy if r["grade"] != "right"]
    out += ["", "| faults, four digits | needed | named or tied |", "|---|---|---|"]
    for style, (_, _, needed) in FAULTY.items():
        mine = [r for r in rows if r["style"] == style]
        good = sum(r["grade"] in ("right", "tied") for r in mine)
        if mine:
            out.append(f"| {style} | {needed} % | {100 * good / len(mine):.1f} % ({good} of {len(mine)}) |")
    bad = [r for r in rows if r["style"] != "healthy" and r["grade"] not in ("right", "tied")]
    out += [f"- {r['bug']}, {r['style']}: {r['grade']} ({r['answer']})" for r in bad]
    return "\n".join(out)


def main() -> None:
    import healthy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    grading.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "printed.jsonl", help="keep the results here")
    args = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    out = args.out
    if args.again:
        out.unlink(missing_ok=True)
    done = {(r["kind"], r["style"], r["bug"]) for r in grading.read(out)}
    opened = [(name, model := load(open_file(path)), Weights(model.file)) for name, path in healthy.models(build)]
    todo = []
    for i, (fmt, count, rms, rows) in enumerate(product(FORMATS, COUNTS, (True, False), ROWS)):
        name, model, weights = opened[i % len(opened)]
        if (fmt, "healthy", f"{count} {rows} {'rms' if rms else ''}") not in done:
            todo.append(partial(grade, model, weights, name, "healthy", "", fmt, count, rms, rows, True))
    name, model, weights = opened[0]
    for style, (count, layers, _) in FAULTY.items():
        for bug in planting.BUGS:
            if ("%.4g", style, bug) not in done:
                todo.append(partial(grade, model, weights, name, style, bug, "%.4g", count, True, "last", layers))
    todo = todo[:: args.every]
    grading.side_by_side(todo, out, args)
    print(table(grading.read(out)))


if __name__ == "__main__":
    main()
