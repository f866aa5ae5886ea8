"""Cases of a benchmark program, graded side by side: by processes of this machine, or by the workers of a cluster.

A case is `partial(grade, model, weights, *rest)`: a function of the program, a model, and JSON values. A remote worker
therefore needs the program's name, the model's file and the values. Results are kept line by line as they arrive. A
cluster also keeps them under the hash of case, model and code, so that a killed run resumes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from assay.cli.cluster_options import sweep_progress  # noqa: E402
from assay.cluster.fingerprint import file_digest  # noqa: E402
from assay.cluster.sweep import Task, folder, sweep  # noqa: E402
from assay.cluster.worker_pool import worker_pool  # noqa: E402
from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402

Result = dict[str, Any] | None  # None: the case does not apply
Case = partial[Result]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time; results so far are kept")
    parser.add_argument("--jobs", type=int, default=1, help="cases graded at the same time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every Nth case")
    parser.add_argument("--cluster", metavar="ADDRESS", help="share the cases out: local:N, or a Ray cluster's address")


def read(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def side_by_side(todo: Sequence[Case], out: Path, args: argparse.Namespace) -> None:
    """Grade them all, and keep each result."""
    with open(out, "a") as log:
        if args.cluster:
            for result in sweep(
                [_task(case) for case in todo], worker_pool(args.cluster), folder(None), sweep_progress()
            ):
                _keep(result, log)
            return
        started = time.monotonic()
        # Forked, so that workers share the models; only a number is pickled.
        with multiprocessing.get_context("fork").Pool(args.jobs, _inherit, (todo,)) as pool:
            for result in pool.imap_unordered(_grade, range(len(todo))):
                _keep(result, log)
                if time.monotonic() - started > args.seconds:
                    print("out of time; run again to go on", file=sys.stderr)
                    return


def _keep(result: Result, log: TextIO) -> None:
    if result:
        log.write(json.dumps(result) + "\n")
        log.flush()
        kind, bug, style, mark = (result[k] for k in ("kind", "bug", "style", "grade"))
        print(f"{kind:10}{bug:60}{style:8}{mark:12}{result['seconds']:6.1f} s", flush=True)


def _inherit(todo: Sequence[Case]) -> None:
    global _todo
    _todo = todo


def _grade(i: int) -> Result:
    return _todo[i]()


# -- on a cluster ------------------------------------------------------------------------------------------------------


def prepare(shared: dict[str, Any], where: dict[str, Any]) -> tuple[Model, Weights]:
    """The state that a worker keeps between cases."""
    model = load(open_file(Path(where["path"])))
    return model, Weights(model.file)


def graded(kept: tuple[Model, Weights], given: dict[str, Any]) -> dict[str, Any]:
    """Grade one case; `{}` if it does not apply."""
    rest = [tuple(part) if isinstance(part, list) else part for part in given["rest"]]
    return getattr(import_module(given["program"]), given["function"])(*kept, *rest) or {}


def _task(case: Case) -> Task:
    model, _, *rest = case.args
    program = Path(case.func.__code__.co_filename).stem  # which may run as __main__ here
    given = {"program": program, "function": case.func.__name__, "rest": rest}
    shared = {"file": _digest(model.file.path), "code": _code()}
    where = {"path": str(model.file.path.resolve())}
    return Task("bench.grading:graded", shared, given, where, " ".join(str(part) for part in rest)[:60])


@cache
def _digest(path: Path) -> str:
    return file_digest(path)


@cache
def _code() -> str:
    """The hash of all grading code: results of other code are not reused."""
    places = (ROOT / "src" / "assay", ROOT / "tests", ROOT / "bench")
    files = sorted(file for place in places for file in place.rglob("*.py"))
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in files)).hexdigest()
