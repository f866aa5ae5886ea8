"""How does `assay diagnose` do at first sight on engines that strangers wrote (bench/strangers/BRIEF.md)?

python bench/strangers/grade.py                       # the logs of the reference data (`$ASSAY_SHARED/strangers`)
python bench/strangers/grade.py bench/strangers/cases # what five writers made, in C, JavaScript, Rust, Go and Python
python bench/strangers/grade.py FOLDER…               # folders of cases: evidence.* and truth.toml in each
python bench/strangers/grade.py FOLDER --out build/strangers.jsonl --limit 120

Each case is one `assay diagnose MODEL EVIDENCE --tokens IDS --json` in a process of its own. It is graded:

    healthy      a right engine is called healthy, or undecided
    alarm        a right engine is called wrong
    named        a cause is given; whether it is the planted one is decided by `accepted.toml`, or by the reader
    unexplained  the first wrong node is given, no cause
    missed       a wrong engine is called healthy
    refused      the evidence was not read (exit 2), or there was no answer in time

`accepted.toml` says, for each case, which faults are right names for the mistake. A person compares each name with the
mistake, and writes the file after the first run. A case that is not in it is open; a name that is not in a case's list
is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("ASSAY_SHARED", ROOT.parent / "shared"))
SURE = 0.9


@dataclass(frozen=True)
class StrangersCase:
    """Evidence, the model it is of, and what is true."""

    name: str
    evidence: Path
    model: Path
    tokens: tuple[int, ...]
    healthy: bool
    mistake: str


@dataclass(frozen=True)
class Grade:
    case: str
    grade: str
    right: bool | None  # None: open
    answer: str
    confidence: float
    first_wrong: str
    seconds: float
    mistake: str


def cases_in(folder: Path) -> Iterator[StrangersCase]:
    """The cases of a folder of cases, or the one case that it is."""
    for place in [folder] if (folder / "truth.toml").is_file() else sorted(folder.iterdir()):
        if not (place / "truth.toml").is_file():
            continue
        truth = tomllib.loads((place / "truth.toml").read_text("utf-8"))
        evidence = sorted(p for p in place.iterdir() if p.name.startswith("evidence"))
        if not evidence:
            print(f"{place.name}: no evidence", file=sys.stderr)
            continue
        chosen = min(evidence, key=lambda p: "manifest" in p.name)
        healthy = bool(truth.get("healthy"))
        model = _model(str(truth["model"]))
        yield StrangersCase(
            place.name, chosen, model, tuple(truth.get("tokens", ())), healthy, truth.get("mistake", "")
        )


def _model(name: str) -> Path:
    """A path as it is or below the reference data, or the name of a model."""
    if "/" not in name:
        from assay.runtime import hub

        return Path(hub.resolve(name))
    for path in (Path(name), SHARED / "data" / name, SHARED / "data" / Path(name).parent.name / Path(name).name):
        if path.is_file():
            return path
    return Path(name)


def shared_cases() -> Iterator[StrangersCase]:
    """The logs of the reference data: style and planted mistake are in the file's name."""
    folder = SHARED / "strangers"
    if not folder.is_dir():
        return
    table = tomllib.loads((HERE / "shared.toml").read_text("utf-8"))
    planted, model = table["planted"], SHARED / "data" / table["model"]
    for log in sorted(folder.glob("*.log")):
        what = log.stem.partition("-")[2]
        mistake = planted.get(what, "") if what else ""
        healthy = not what or what == "ok" or mistake.startswith("healthy")
        yield StrangersCase(log.stem, log, model, (), healthy, mistake)


def diagnosed(case: StrangersCase, limit: float) -> tuple[dict[str, Any] | str, float]:
    """The answer, or the error; and its seconds."""
    ids = ["--tokens", ",".join(map(str, case.tokens))] if case.tokens else []
    started = time.monotonic()
    last = ""
    for given in ([], ids) if ids else ([],):  # the ids that the evidence itself gives come first
        command = [sys.executable, "-m", "assay.cli", "diagnose", str(case.model), str(case.evidence), *given, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=ROOT)
        except subprocess.TimeoutExpired:
            return f"no answer in {limit:g} s", time.monotonic() - started
        if done.returncode in (0, 1) and done.stdout.strip():
            return json.loads(done.stdout.splitlines()[-1]), time.monotonic() - started
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
    return last, time.monotonic() - started


def graded(case: StrangersCase, accepted: dict[str, list[str]], limit: float) -> Grade:
    found, seconds = diagnosed(case, limit)
    if isinstance(found, str):
        return Grade(case.name, "refused", None, found[:200], 0.0, "", seconds, case.mistake)
    causes = found.get("causes") or []
    first = str(found.get("first_wrong") or "")
    cause = causes[0] if causes else {}
    name, sure = str(cause.get("fault", "")), float(cause.get("confidence", 0.0))
    calm = found["verdict"] in ("healthy", "undecided", "noise", "same")
    if case.healthy:
        return Grade(
            case.name, "healthy" if calm else "alarm", calm, name or found["verdict"], sure, first, seconds, ""
        )
    grade = "missed" if calm else "named" if causes else "unexplained"
    known = accepted.get(case.name)
    right = False if grade == "missed" else None if known is None or grade != "named" else name in known
    told = " ".join(str(cause.get("how") or found["verdict"]).split())
    return Grade(case.name, grade, right, f"{name}: {told}"[:160], sure, first, seconds, case.mistake)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a case")
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    parser.add_argument("--out", type=Path, help="also write one JSON line a case")
    args = parser.parse_args()
    cases = [case for folder in args.folders for case in cases_in(folder)] if args.folders else [*shared_cases()]
    if not cases:
        raise SystemExit("no cases; name folders, or set ASSAY_SHARED to the reference data")
    accepted: dict[str, list[str]] = tomllib.loads((HERE / "accepted.toml").read_text("utf-8"))
    rows = []
    for case in cases:
        if not case.name.startswith(args.only):
            continue
        row = graded(case, accepted, args.limit)
        rows.append(row)
        mark = {True: "right", False: "WRONG", None: "open"}[row.right]
        print(f"{row.case:<18} {row.grade:<12} {mark:<6} {row.confidence:.2f} {row.seconds:6.1f} s  {row.first_wrong}")
        print(f"    {row.answer}" + (f"\n    truth: {row.mistake}" if row.mistake else ""), flush=True)
        if args.out is not None:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    counts = Counter(row.grade for row in rows)
    sure = sum(row.right is False and row.confidence >= SURE for row in rows)
    times = sorted(row.seconds for row in rows)
    print(f"\n{len(rows)} cases: " + ", ".join(f"{n} {grade}" for grade, n in counts.most_common()))
    print(f"wrong at {SURE} or more: {sure}; seconds: median {times[len(times) // 2]:.1f}, longest {times[-1]:.1f}")


if __name__ == "__main__":
    main()
