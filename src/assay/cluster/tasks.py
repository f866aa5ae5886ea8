"""The functions that workers of a sweep run: windows of a text, questions, lengths of a check, sections of a kit.

`prepare` makes the value that all tasks of a sweep share. A task function takes it with the task's own arguments and
returns JSON. A task names files by digest, not by path, so the same file on another machine is the same task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from assay.cluster.fingerprint import file_digest, sampling_digest
from assay.cluster.sweep import Progress, Task, WorkerPool, sweep
from assay.engines import default_name
from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.evaluate.choices import ChoiceResult, Question, QuestionAnswer, answer
from assay.evaluate.evaluation import Evaluation
from assay.evaluate.pieces import Scores, TextWindow
from assay.evaluate.predictors import EngineSource
from assay.evaluate.score import score
from assay.library.verdicts import checks, load_dump
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.verify.conformance.grade import SECTIONS, Grade, Score, grade_section, total_score
from assay.verify.diagnosis.candidates import Share, tried_here
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, ObservationFit
from assay.verify.judge.verdict import judge
from assay.version import __version__

try:
    from assay._native import ARITHMETIC
except ImportError:  # not built: the reference alone
    ARITHMETIC = 0

WINDOWS = 16  # windows of a text in one task: a few seconds of work, so a killed sweep loses little
_ME = "assay.cluster.tasks"


class SweepModels:
    """The models of a sweep, opened and loaded when a task first uses them."""

    def __init__(self, shared: Mapping[str, Any], where: Mapping[str, Any]) -> None:
        self._shared, self.where = shared, where
        self._opened: dict[str, Opened] = {}
        self._engines: dict[str, PagedEngine] = {}

    def opened(self, name: str) -> Opened:
        if name not in self._opened:
            side, where = self._shared[name], self.where[name]
            threads = where["threads"] or int(os.environ.get("ASSAY_SWEEP_THREADS", "0")) or None
            found = open_model(where["path"], OpenOptions(**side["options"], threads=threads))
            if (digest := file_digest(found.file.path)) != side["file"]:
                raise AssayError(
                    f"{found.file.path}: not the file with which the sweep was started "
                    f"(found {digest[:12]}…, expected {side['file'][:12]}…)"
                )
            self._opened[name] = found
        return self._opened[name]

    def engine(self, name: str) -> PagedEngine:
        if name not in self._engines:
            self._engines[name] = self.opened(name).engine()
        return self._engines[name]


def prepare(shared: Mapping[str, Any], where: Mapping[str, Any]) -> SweepModels:
    return SweepModels(shared, where)


def side(opened: Opened) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model as tasks name it, and its path on this machine."""
    options = asdict(opened.options)
    for name in ("template", "template_arguments", "threads"):
        del options[name]
    what = {"file": file_digest(opened.file.path), "options": options, "version": [__version__, ARITHMETIC]}
    return what, {"path": str(opened.file.path.resolve()), "threads": opened.options.threads}


# --- eval


def windows(models: SweepModels, given: Mapping[str, Any]) -> list[dict[str, object]]:
    """Task: the scores of some windows."""
    source = EngineSource(models.engine("model"))
    base = EngineSource(models.engine("base")) if given["base"] else None
    pieces = [TextWindow(i, np.array(tokens, np.int32), start, first) for i, tokens, start, first in given["pieces"]]
    return [score(piece, source, base).to_dict() for piece in pieces]


def evaluate(
    pieces: Sequence[TextWindow], model: Opened, base: Opened | None, pool: WorkerPool, where: Path, progress: Progress
) -> Evaluation:
    """The scores of a text, computed by the pool. The result has the bits of one process."""
    sides = {"model": side(model)} | ({"base": side(base)} if base else {})
    shared = {name: what for name, (what, _) in sides.items()} | {"sampling": sampling_digest()}
    found_at = {name: at for name, (_, at) in sides.items()}
    tasks = []
    for at in range(0, len(pieces), WINDOWS):
        part = pieces[at : at + WINDOWS]
        rows = [[piece.index, piece.tokens.tolist(), piece.start, piece.first] for piece in part]
        label = f"windows {at} to {at + len(part) - 1}"
        tasks.append(Task(f"{_ME}:windows", shared, {"pieces": rows, "base": base is not None}, found_at, label))
    started = time.perf_counter()
    found = [Scores.from_dict(row) for rows in sweep(tasks, pool, where, progress) for row in rows]
    names = [f"{s.file.path.name} on {s.options.engine or default_name()}" for s in (model, base) if s]
    seconds = time.perf_counter() - started
    return Evaluation(found, name=names[0], base=names[1] if base else None, seconds=seconds)


def questions(models: SweepModels, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Task: the answers to some questions."""
    engine, tokenizer = models.engine("model"), models.opened("model").tokenizer
    return [asdict(answer(engine, tokenizer, Question(**row))) for row in given["items"]]


def answers(
    items: Sequence[Question], model: Opened, pool: WorkerPool, where: Path, progress: Progress
) -> ChoiceResult:
    """The answers to all questions, in their order, computed by the pool."""
    what, found_at = side(model)
    shared = {"model": what, "sampling": sampling_digest()}
    parts = [(at, items[at : at + WINDOWS]) for at in range(0, len(items), WINDOWS)]
    tasks = [
        Task(f"{_ME}:questions", shared, {"items": [asdict(it) for it in part]}, {"model": found_at},
             f"questions {at} to {at + len(part) - 1}")
        for at, part in parts
    ]  # fmt: skip
    return ChoiceResult(tuple(QuestionAnswer(**row) for rows in sweep(tasks, pool, where, progress) for row in rows))


# --- check


def length(models: SweepModels, given: Mapping[str, Any]) -> list[list[Any]]:
    """Task: the checks of one length, each as its name, whether it passed, and its detail."""
    on = models.opened("model")
    found = list(checks(on, given["engine"], lengths=[given["n"]], **given["options"]))
    own = 1 if given["n"] < 2 or on.model.graph.whole else 3  # the others do not depend on the length
    return [[check.name, check.passed, check.detail] for check in (found if given["last"] else found[:own])]


def check(
    model: Opened, engine: str, lengths: Sequence[int], options: Mapping[str, Any], pool: WorkerPool, where: Path,
    progress: Progress,
) -> list[tuple[str, bool, str]]:  # fmt: skip
    """The results of a check, in order, one task for each length."""
    what, found_at = side(model)
    tasks = [
        Task(f"{_ME}:length", {"model": what}, {"engine": engine, "n": n, "last": n == lengths[-1], "options": options},
             {"model": found_at}, f"{n} tokens")
        for n in lengths
    ]  # fmt: skip
    return [(name, passed, detail) for rows in sweep(tasks, pool, where, progress) for name, passed, detail in rows]


# --- diagnose


def trials(models: SweepModels, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Task: how well some hypotheses fit a dump, by the number of the hypothesis."""
    on = models.opened("model")
    dump = load_dump(models.where["dump"], on, **given["asked"])
    with np.errstate(all="ignore"):
        trials = FaultTrials(on.model, dump, judge(on.model, dump)).from_tokens()
        found = tried_here(
            trials, EvidenceUnit(given["target"], tuple(given["segment"])), given["part"], given["parts"]
        )
    return {str(i): [fit.ratio, fit.residual, fit.count, fit.strict, list(fit.every)] for i, fit in found.items()}


def shared_trials(
    model: Opened, dump: Path, asked: Mapping[str, Any], pool: WorkerPool, where: Path, progress: Progress
) -> Share:
    """Test the hypotheses that need a run of the model on the pool. Workers read the dump at the same path."""
    what, found_at = side(model)

    def share(unit: EvidenceUnit) -> dict[int, ObservationFit]:
        parts = max(pool.n * 4, 1)
        shared = {"model": what, "dump": file_digest(dump)}
        about = {"target": unit.target, "segment": list(unit.segment), "asked": dict(asked), "parts": parts}
        paths = {"model": found_at, "dump": str(dump.resolve())}
        tasks = [
            Task(f"{_ME}:trials", shared, about | {"part": part}, paths, f"hypotheses {part} of {parts}")
            for part in range(parts)
        ]
        rows = [row for found in sweep(tasks, pool, where, progress) for row in found.items()]
        return {
            int(i): ObservationFit(ratio, residual, n, strict, tuple(every))
            for i, (ratio, residual, n, strict, every) in rows
        }

    return share


# --- kit


def section(models: SweepModels, given: Mapping[str, Any]) -> list[list[str]]:
    """Task: the grades of one section of a kit."""
    grades = grade_section(Path(models.where["kit"]), Path(models.where["results"]), given["section"])
    return [[g.section, g.item, g.verdict, g.detail] for g in grades]


def grade(kit: Path, results: Path, pool: WorkerPool, where: Path, progress: Progress) -> Score:
    """Grade the answers to a kit, one task for each section. Workers read both folders at the same paths."""
    digests = {name: _folder_digest(path) for name, path in (("kit", kit), ("results", results))}
    paths = {"kit": str(kit.resolve()), "results": str(results.resolve())}
    tasks = [Task(f"{_ME}:section", digests, {"section": name}, paths, name) for name in SECTIONS]
    return total_score(results, tuple(Grade(*row) for rows in sweep(tasks, pool, where, progress) for row in rows))


def _folder_digest(path: Path) -> str:
    found = sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        found.update(f"{file.relative_to(path)}\0{file_digest(file)}\0".encode())
    return found.hexdigest()
