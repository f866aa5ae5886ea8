"""Check an engine on every commit: run its dump command on each model of a TOML file, judge it, write the report.

The file says how the engine is run, which models it is run on, and which arithmetic may excuse a deviation:

    [engine]
    command = "./engine --model {model} --tokens {tokens} --dump {dump}"
    dump = "dump.npz"              # what the command writes; without it, its output is read
    arithmetic = ["f32"]           # deviations beyond the noise of these fail; default: any

    [[model]]
    path = "models/stories260K.gguf"
    tokens = [1, 403, 407, 261, 378]

A model fails at its first wrong node, or if its values are right only in an arithmetic that is not allowed.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.library.command import run_to_dump
from assay.library.verdicts import Finding, diagnose, diff, opened
from assay.system.counting import counted
from assay.system.files import write
from assay.system.plain import plain
from assay.system.text_files import read_text
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.version import __version__

FILE = "assay.toml"
REPORT = "assay-report"
_TIMEOUT_S = 600.0
_ALWAYS = ("f32", "f32, GELU table")
_ENGINE = {"name", "command", "dump", "timeout", "arithmetic", "map", "patterns", "diagnose"}
_MODEL = {"path", "name", "tokens", "prompt", "arithmetic", "dump"}


@dataclass(frozen=True)
class CiModel:
    """A model that the engine is run on."""

    model: str  # A path, or a name that `assay run` knows.
    title: str
    tokens: tuple[int, ...] = ()
    prompt: str | None = None
    arithmetic: tuple[str, ...] = ()  # Names of ARITHMETICS whose noise is excused; empty: any.


@dataclass(frozen=True)
class CiConfig:
    """Settings of the TOML file."""

    path: Path
    engine: str
    command: tuple[str, ...]
    dump: str
    timeout: float
    models: tuple[CiModel, ...]
    names: Mapping[str, str]
    patterns: tuple[str, ...]
    diagnose: bool


@dataclass(frozen=True)
class CiResult:
    """The verdict on one model."""

    title: str
    passed: bool
    words: str  # One line.
    first_wrong: str | None
    arithmetic: str
    cause: str  # The known mistake, if one was found.
    seconds: float
    tokens: int
    detail: str  # The whole text of the verdict, or of the error.
    finding: Finding | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.title, "passed": self.passed, "result": self.words, "first_wrong": self.first_wrong,
            "arithmetic": self.arithmetic, "cause": self.cause or None, "seconds": round(self.seconds, 1),
            "tokens": self.tokens, "verdict": self.finding.to_dict() if self.finding is not None else None,
        }  # fmt: skip


# -- the file ----------------------------------------------------------------------------------------------------------


def read_config(path: Path) -> CiConfig:
    """The configuration; every error names the key."""
    try:
        tables = tomllib.loads(read_text(path, "a configuration; write it in TOML"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AssayError(f"{path}: not valid TOML ({str(error).lower()})") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise AssayError(f"{path}: cannot be opened ({why}); `assay ci --help` says what it holds") from None
    engine = tables.get("engine")
    if not isinstance(engine, dict) or not isinstance(engine.get("command"), str | list):
        raise AssayError(f"{path}: [engine] command: missing (expected the command that runs the engine and dumps)")
    _known(f"{path}: [engine]", engine, _ENGINE)
    rows = tables.get("model")
    if not isinstance(rows, list) or not rows:
        raise AssayError(f"{path}: [[model]]: missing (expected at least one model with path and tokens or prompt)")
    command = engine["command"]
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise AssayError(f"{path}: [engine] command: not a command line ({str(error).lower()})") from None
    timeout = engine.get("timeout", _TIMEOUT_S)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise AssayError(f"{path}: [engine] timeout: must be seconds above 0 (found {timeout!r:.40})")
    allowed = _arithmetic(f"{path}: [engine]", engine.get("arithmetic", []))
    models = tuple(_model(f"{path}: [[model]] {i}", row, allowed) for i, row in enumerate(rows, 1))
    if not words:
        raise AssayError(f"{path}: [engine] command: is empty")
    return CiConfig(
        path, str(engine.get("name", Path(words[0]).name)), tuple(words), str(engine.get("dump", "")), float(timeout),
        models, _texts(f"{path}: [engine] map", engine.get("map", {})),
        tuple(map(str, engine.get("patterns", []))), engine.get("diagnose", True) is not False,
    )  # fmt: skip


def _known(where: str, table: Mapping[str, Any], keys: set[str]) -> None:
    if unknown := sorted(set(table) - keys):
        raise AssayError(f"{where}: unknown key {unknown[0]!r:.40}; known are {', '.join(sorted(keys))}")


def _texts(where: str, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise AssayError(f"{where}: must be a table from the dump's names to node names")
    return found


def _arithmetic(where: str, found: Any) -> tuple[str, ...]:
    names = [found] if isinstance(found, str) else found
    known = [a.name for a in ARITHMETICS]
    if not isinstance(names, list) or not all(name in known for name in names):
        raise AssayError(f"{where} arithmetic: found {found!r:.60}, expected any of {'; '.join(known)}")
    return tuple(dict.fromkeys((*_ALWAYS, *names))) if names else ()


def _model(where: str, row: Any, allowed: tuple[str, ...]) -> CiModel:
    if not isinstance(row, dict) or not isinstance(row.get("path", row.get("name")), str):
        raise AssayError(f"{where}: path: missing (expected a .gguf file, or a name that `assay search` lists)")
    _known(where, row, _MODEL)
    tokens, prompt = row.get("tokens", []), row.get("prompt")
    if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < 2**31 for t in tokens):
        raise AssayError(f"{where}: tokens: must be a list of token ids")
    if prompt is not None and not isinstance(prompt, str):
        raise AssayError(f"{where}: prompt: must be a text")
    if not tokens and not prompt:
        raise AssayError(f"{where}: tokens or prompt: missing (expected what the engine is fed)")
    name = str(row.get("path", row.get("name")))
    own = _arithmetic(where, row["arithmetic"]) if "arithmetic" in row else allowed
    return CiModel(name, str(row.get("name", Path(name).name)), tuple(tokens), prompt, own)


# -- the runs ----------------------------------------------------------------------------------------------------------


def check_models(config: CiConfig) -> Iterator[CiResult]:
    """Run and judge one model after the other."""
    for row in config.models:
        started = time.monotonic()
        try:
            yield _checked(config, row, started)
        except AssayError as error:
            spent = time.monotonic() - started
            yield CiResult(row.title, False, "no verdict", None, "", "", spent, len(row.tokens), str(error))


def _checked(config: CiConfig, row: CiModel, started: float) -> CiResult:
    base = config.path.absolute().parent
    local = base / row.model
    on = opened(str(local) if local.is_file() else row.model)
    ids = row.tokens or tuple(on.tokenizer.encode(row.prompt or ""))
    with tempfile.TemporaryDirectory(prefix="assay-ci-") as folder:
        fill = {
            "model": str(on.file.path), "tokens": ",".join(map(str, ids)), "prompt": row.prompt or "",
            "name": re.sub(r"\W+", "-", row.title), "folder": folder,
        }  # fmt: skip
        dump = base / _filled(config.dump, fill) if config.dump else None
        fill["dump"] = str(dump or "")
        command = [_filled(word, fill) for word in config.command]
        read = run_to_dump(command, Path(folder), dump=dump, patterns=config.patterns, cwd=base, timeout=config.timeout)
        found: Any = diff(on, read, tokens=() if read.tokens else ids, names=config.names or None)
        used = found.result.arithmetic.name if found.verdict == "noise" else ""
        refused = bool(used and row.arithmetic and used not in row.arithmetic)
        passed = bool(found) and not refused
        cause = ""
        if not bool(found) and config.diagnose and found.dump is not None:
            found = diagnose(on, found.dump)
            cause = next((c.fault for c in found.result.causes), "")
        words = _words(found, used, refused)
        return CiResult(
            row.title, passed, words, None if passed else found.first_wrong, used, cause, time.monotonic() - started,
            len(ids), repr(found), found,
        )  # fmt: skip


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The text with {model}, {tokens}, … filled in; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), text)


def _words(found: Any, used: str, refused: bool) -> str:
    if refused:
        return f"right only in {used}, which is not allowed"
    if found:
        return f"right, deviations are the noise of {used}" if used else "right"
    return f"first wrong node {found.first_wrong}"


# -- the report --------------------------------------------------------------------------------------------------------


def write_report(folder: Path, config: CiConfig, results: Sequence[CiResult]) -> list[Path]:
    """report.json, comment.md, and one page for each model that has values."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / "report.json", folder / "comment.md"]
    told = {"assay": __version__, "engine": config.engine, "passed": all(r.passed for r in results)}
    rows = [r.to_dict() for r in results]
    write(made[0], json.dumps(plain({**told, "models": rows}), indent=1, allow_nan=False) + "\n")
    write(made[1], comment(config, results))
    for result in results:
        page = result.finding.page() if result.finding is not None else None
        if page is not None:
            made.append(folder / (re.sub(r"[^\w.-]+", "-", result.title) + ".html"))
            write(made[-1], page)
    return made


def comment(config: CiConfig, results: Sequence[CiResult]) -> str:
    """The results as Markdown, for a comment on a pull request."""
    failed = [r for r in results if not r.passed]
    right = f"{counted(len(results), 'model')} right"
    head = f"{len(failed)} of {counted(len(results), 'model')} wrong" if failed else right
    lines = [f"### assay: {_cell(config.engine)}: {head}", "", "| model | tokens | result | cause | seconds |"]
    lines += ["|---|---:|---|---|---:|"]
    lines += [
        f"| {_cell(r.title)} | {r.tokens} | {'' if r.passed else '**'}{_cell(r.words)}{'' if r.passed else '**'} "
        f"| {_cell(r.cause)} | {r.seconds:.1f} |"
        for r in results
    ]
    for r in failed:
        text = r.detail.replace("```", "'''")[:6000]
        lines += ["", f"<details><summary>{_cell(r.title)}</summary>", "", "```text", text, "```", "", "</details>"]
    return "\n".join([*lines, "", f"assay {__version__}"]) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", " ".join(text.split()))[:200]
