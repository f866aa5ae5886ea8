"""Are the faults of engines that see named, and is a right one ever called wrong?

python bench/vision_faults.py                 # each fault on two models that show it, and all right engines
python bench/vision_faults.py --models 9      # on as many models as show it
python bench/vision_faults.py --only vis-pad  # faults whose name begins so; "healthy" for the right engines
python bench/vision_faults.py --jobs 16       # in so many processes; 1 unless told
python bench/vision_faults.py --write "MACHINE"   # and write docs/lab/vision-score.md

The engine is tests/second_tower.py, which shares no code with assay. It runs the golden mmproj files of the reference
data (`$ASSAY_SHARED`) on their pictures, and dumps pixels and nodes, rows alone, or pixels alone. Right engines compute
in float32, with weights in bfloat16 or halves, or through llama.cpp's half-precision tables; llama.cpp's recorded
values are judged as well, and the behaviours in which the trained models differ from llama.cpp.
"""

# ruff: noqa: E501  tables of a page

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from tests import tower_planting as planting  # noqa: E402

from assay.verify.pictures.diagnose_picture import diagnose_picture  # noqa: E402
from assay.verify.pictures.picture_dump import PictureDump  # noqa: E402

NEEDED = {"tower": 95, "rows": 70, "pixels": 95}
WORDS = {"tower": "pixels and every node", "rows": "rows for the language model alone", "pixels": "pixels alone"}
RIGHT: dict[str, dict[str, object]] = {
    "float32": {},
    "bf16 weights": {"weights": "bf16"},
    "f16 weights": {"weights": "f16"},
    "llama.cpp's halves": {"halves": True},
}
USUAL = ("vis-stretch", "vis-class-first", "vis-gelu-erf")  # as the trained models do, where they differ from llama.cpp
RECORDED = "recorded"
PAGE = ROOT / "docs" / "lab" / "vision-score.md"


def photo() -> np.ndarray:
    """A picture larger than the towers' sizes, with edges, colours and noise: it shows mistakes of reducing."""
    y, x = np.mgrid[0:90, 0:150]
    rng = np.random.default_rng(5)
    waves = [np.sin(x / a) * np.cos(y / b) for a, b in ((3, 5), (7, 4), (11, 9))]
    picture = (
        128 + 80 * np.stack(waves, -1) + rng.normal(0, 20, (90, 150, 3)) + 40 * ((x // 17 + y // 13) % 2)[..., None]
    )
    return np.clip(picture, 0, 255).astype(np.uint8)


Row = dict[str, object]
Unit = tuple[str, int | str]  # a fault and on how many models, or a model and a right engine


def fault(bug: str, most: int) -> Iterator[Row]:
    """One fault on the first models that show it."""
    seen: Counter[str] = Counter()
    for name in planting.MODELS:
        golden = planting.golden_tower(name)
        if golden is None or min(seen[s] for s in planting.STYLES[:2]) >= most:
            continue
        picture = photo() if bug == "vis-no-antialias" and name not in ("gemma4", "qwen25vl") else golden.picture
        right, wrong = planting.run(golden, picture=picture), planting.run(golden, bug, picture=picture)
        apart = max(
            np.abs(a[0] - b[0]).max() if a[0].shape == b[0].shape else 9 for a, b in zip(wrong, right, strict=False)
        )
        if bug == "vis-no-antialias" and apart < 0.02:  # nothing is reduced: only a byte's rounding differs
            continue
        for style in planting.STYLES if bug in planting.PIXELS else planting.STYLES[:2]:
            if seen[style] >= most or not planting.shown(wrong, right, style):
                continue
            seen[style] += 1
            start = time.process_time()
            found = planting.judged(golden, wrong, style, picture)
            result, sure = planting.grade(found, bug)
            yield {
                "bug": bug, "model": name, "style": style, "grade": result, "sure": sure,
                "said": repr(found.diagnosis), "seconds": time.process_time() - start,
            }  # fmt: skip


def right_engine(name: str, label: str) -> Iterator[Row]:
    """A right engine on one model: one of RIGHT, of USUAL where it applies, or what was recorded."""
    golden = planting.golden_tower(name)
    if golden is None:
        return
    if label == RECORDED:
        yield from recorded(name, golden)
        return
    kind = golden.tower.keys.projector
    applies = {"vis-stretch": kind == "gemma3" or kind.startswith("qwen"), "vis-class-first": kind == "mlp",
               "vis-gelu-erf": kind in ("qwen2vl_merger", "qwen2.5vl_merger", "pixtral", "mlp")}  # fmt: skip
    if not applies.get(label, True):
        return
    images = planting.run(golden, label) if label in USUAL else planting.run(golden, **RIGHT[label])
    for style in planting.STYLES:
        found = planting.judged(golden, images, style)
        yield {
            "right": f"trained model, {label}" if label in USUAL else label,
            "model": name,
            "style": style,
            "good": bool(found.diagnosis),
            "said": repr(found.diagnosis),
        }


def recorded(name: str, golden: planting.GoldenTower) -> Iterator[Row]:
    """llama.cpp's own values, and the exact ones."""
    path = golden.path.with_name(f"{name}.npz")
    if not path.exists():
        return
    with np.load(path) as file:
        values = {key: file[key] for key in file.files}
    graph, first = golden.tower.graph, int(values["traced"])
    count = range(sum(key.startswith("exact_embd_") for key in values))
    pixels = {j: values[f"pixels_{j}"] for j in count if f"pixels_{j}" in values}
    for label, key in (("llama.cpp", "embd_"), ("exact", "exact_embd_")):
        rows = {j: {graph.output: values[f"{key}{j}"]} for j in count}
        nodes = {n: v for n, v in values.items() if n in graph}
        whole = {**rows, first: {**nodes, **rows[first]}} if label == "llama.cpp" else rows
        for style, dump in {
            "tower": PictureDump(name, dict(pixels), whole), "rows": PictureDump(name, {}, rows),
            "pixels": PictureDump(name, dict(pixels), {}),
        }.items():  # fmt: skip
            if dump.pixels or dump.nodes:
                found = diagnose_picture(golden.tower, golden.picture, dump).diagnosis
                yield {"right": label, "model": name, "style": style, "good": bool(found), "said": repr(found)}


def table(rows: list[Row]) -> list[str]:
    out = [
        "|  | needed | named or tied | named | tied | open | wrong | wrong at 0.9 or more |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for style in planting.STYLES:
        mine = [row for row in rows if row["style"] == style]
        n = Counter(str(row["grade"]) for row in mine)
        good = n["named"] + n["tied"]
        bad = sum(row["grade"] == "wrong" and float(str(row["sure"])) >= 0.9 for row in mine)
        share = f"{100 * good / len(mine):.1f} % ({good} of {len(mine)})" if mine else "–"
        out.append(
            f"| {WORDS[style]} | {NEEDED[style]} % | {share} | {n['named']} | {n['tied']} | {n['open']} | {n['wrong']} | {bad} |"
        )
    return out


def units(only: str, most: int) -> list[Unit]:
    """The graded cases, in independent parts."""
    bugs: list[Unit] = [(bug, most) for bug in (*planting.PIXELS, *planting.TOWER) if bug.startswith(only)]
    labels = (*RIGHT, *USUAL, RECORDED) if only in ("", "healthy") else ()
    slowest_first = reversed(planting.MODELS)
    return [*((name, label) for name in slowest_first for label in labels), *bugs]


def graded(parts: list[Unit], jobs: int) -> Iterator[Row]:
    """The rows of every part, as they are done."""
    if jobs == 1:
        for part in parts:
            yield from rows_of(part)
        return
    with get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(rows_of, parts):
            yield from found


def rows_of(part: Unit) -> list[Row]:
    name, what = part
    return list(fault(name, what) if isinstance(what, int) else right_engine(name, what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", metavar="MACHINE")
    args = parser.parse_args()
    rows: list[Row] = []
    right: list[Row] = []
    for row in graded(units(args.only, args.models), args.jobs):
        if "bug" in row:
            rows.append(row)
            if row["grade"] != "named":
                said = f"{row['grade']} {row['sure']:.2f} {row['said']}"
                print(f"{row['bug']} {row['model']} {row['style']}: {said}", flush=True)
        else:
            right.append(row)
            if not row["good"]:
                print(f"FALSE ALARM {row['right']} {row['model']} {row['style']}: {row['said']}", flush=True)
    rows.sort(key=lambda row: (str(row["bug"]), str(row["model"]), str(row["style"])))
    right.sort(key=lambda row: str(row["right"]))
    lines = table(rows)
    alarms = Counter(str(row["right"]) for row in right if not row["good"])
    of = Counter(str(row["right"]) for row in right)
    lines += [
        "",
        "| right engine | false alarms |",
        "|---|---|",
        *(f"| {k} | {alarms[k]} of {n} |" for k, n in of.items()),
    ]
    print("\n".join(lines))
    if args.write:
        PAGE.write_text(page(lines, rows, args.write), "utf-8")


def page(lines: list[str], rows: list[Row], machine: str) -> str:
    missed = [
        f"| {r['bug']} | {r['model']} | {WORDS[str(r['style'])]} | {r['grade']} | {str(r['said']).replace('|', chr(92) + '|')} |"
        for r in rows if r["grade"] not in ("named", "tied")
    ]  # fmt: skip
    seconds = sorted(float(str(r["seconds"])) for r in rows)
    half = lines.index("")
    return "\n".join([
        "# Score: engines that see", "",
        f"Made by `bench/vision_faults.py --write` on {machine}, {date.today()}.",
        "The second engine (`tests/second_tower.py`) shares no code with assay and runs nine golden mmproj files; each fault is planted on up to two of them that show it.",
        "*Named*: the fault is a cause of the diagnosis, or is recognised as what the trained model does. *Tied*: it is in the",
        "class of a cause. *Open*: no cause is named. *Wrong*: another fault is named.", "",
        "## Faults", "", *lines[:half], "",
        f"A diagnosis takes {seconds[len(seconds) // 2]:.1f} s of CPU at the median and {seconds[-1]:.0f} s at most.", "",
        "## False alarms", "", "Files and dump styles together. A *trained model* differs from llama.cpp as",
        "[the page](../reference/vision.md#where-llamacpp-and-the-trained-models-differ) says; both are healthy.", "",
        *lines[half + 1 :], "", "## What is missing", "",
        *(["| fault | model | dump | grade | answer |", "|---|---|---|---|---|", *missed] if missed else ["Nothing."]), "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
