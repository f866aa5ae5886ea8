"""Verdicts on engines: read, compare and diagnose dumps; check engines.

A model is given as for `load`, or as a `LanguageModel`. Values are a path to a dump, a dictionary of named arrays (with
the ids as `tokens`), a `Trace`, or a `Dump`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.engines.contract import pages_for
from assay.errors import AssayError
from assay.library.file_pair import TwoFiles, two_files
from assay.library.language_model import LanguageModel
from assay.library.notebook import inline, watched
from assay.library.trace_view import Trace
from assay.models import Model
from assay.runtime.model_names import find_name
from assay.runtime.opening import Opened, open_model
from assay.system.files import write
from assay.system.stages import Report, note
from assay.verify.conformance.between_requests import PAGES
from assay.verify.conformance.engine_check import Check, check_engine, lengths_for
from assay.verify.conformance.sample import PROMPT, sample_ids
from assay.verify.diagnosis.time_budget import working_clock
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.resolve import resolve
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge import text as judged
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.overflow import explain
from assay.verify.judge.verdict import compare, judge
from assay.verify.thresholds import READING_LEFT, SECONDS
from assay.verify.witness import WITNESSES
from assay.verify.witness.engines_by_name import known, open_engine, open_talker, talkers

if TYPE_CHECKING:
    from assay.verify.diagnosis.candidates import Share
    from assay.verify.diagnosis.result import Answer, Diagnosis

Values = str | Path | Mapping[str, Any] | Trace | Dump
ModelLike = str | Path | LanguageModel | Opened | None
ENOUGH = 5  # tokens from which on errors of positions are visible
_READINGS = 16  # lines that report how a log was interpreted


@dataclass(frozen=True, repr=False)
class Finding:
    """A verdict. True if nothing is wrong; printing it shows the same text as the command line.

    `result` is its basis: a `Diff`, a `Diagnosis` or the checks. `dump` has the judged values.
    """

    verdict: str
    first_wrong: str | None
    result: Any
    good: bool
    words: Callable[[int], str]  # the text, with at most that many rows of a table
    dump: Dump | None = None
    model: Model | None = None
    source: str = ""  # what was judged, where it is not a dump: the address of a server

    def __bool__(self) -> bool:
        return self.good

    def __repr__(self) -> str:
        return self.words(12)

    def to_dict(self) -> dict[str, Any]:
        """The data of `--json`."""
        if isinstance(self.result, tuple):
            return {"verdict": self.verdict, "checks": [check.to_dict() for check in self.result]}
        found: dict[str, Any] = self.result.to_dict()
        if found.get("causes"):
            from assay.verify.diagnosis.wording import words

            told = [words(cause, self.model, self.result.diff) for cause in self.result.causes]
            found["causes"] = [
                {**cause, **said.to_dict(), "fix": said.fix or said.right}
                for cause, said in zip(found["causes"], told, strict=True)
            ]
        return found

    def report(self) -> dict[str, Any] | None:
        """The data of the page; None without a model, or for a verdict on neither a dump nor a server."""
        from assay.verify.diagnosis.result import Diagnosis
        from assay.verify.report import content

        diagnosis = self.result if isinstance(self.result, Diagnosis) else None
        diff = self.result if diagnosis is None else diagnosis.diff
        judged = self.dump is not None or diagnosis is not None
        if self.model is None or not judged or not isinstance(diff, Diff | None):
            return None
        return content(self.model, self.dump, diff, diagnosis, self.source)

    def page(self) -> str | None:
        """A self-contained page: what to fix, the map of nodes, the values side by side; None as `report`."""
        from assay.verify.report import drawn

        data = self.report()
        return None if data is None else drawn(data)

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        page = self.page()
        if page is None:
            raise AssayError(
                f"{path}: this verdict has no page, because it has no model, or judges neither a dump nor a server"
            )
        write(path, page)

    def _repr_html_(self) -> str | None:
        page = self.page()
        return None if page is None else inline(page)


# --- dumps


def load_dump(
    values: Values,
    model: ModelLike = None,
    *,
    tokens: Sequence[int] = (),
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    side: str = "",
) -> Dump:
    """Read a dump of any known format. With a model, its observations get the model's names and layouts.

    tokens    the ids of the run, if the dump has none
    names     from the dump's names to node names, if they are not recognised
    patterns  patterns of log lines, such as "{name} {layer}: rms={rms}"
    side      engine whose values to read, if a log has several
    """
    dump = read_values(values, patterns, lenient=model is not None)
    return dump if model is None else resolve(dump, opened(model).model, names, tokens=tokens, side=side)


def _report_reading(dump: Dump, say: Callable[[str], None] | None) -> Dump:
    """Report how the printed lines of a dump were interpreted, and return the dump."""
    if say is not None:
        for line in dump.reading[:_READINGS]:
            say(f"read {dump.source}: {line}")
        if len(dump.reading) > _READINGS:
            say(f"read {dump.source}: and {len(dump.reading) - _READINGS} more kinds of lines")
    return dump


def read_values(values: Values, patterns: Sequence[str] = (), *, lenient: bool = False) -> Dump:
    """The observations of a dump, a trace or arrays by name, with the names that they were given."""
    if isinstance(values, Dump):
        return values
    if isinstance(values, Trace):
        return values.dump
    if isinstance(values, str | Path):
        return read_dump(Path(values), patterns, lenient=lenient)
    if not isinstance(values, Mapping):
        raise AssayError(f"values: must be a path, a mapping from names to arrays, or a trace (found {values!r:.60})")
    arrays = {str(name): np.asarray(value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise AssayError(f"{name}: must have numbers (found dtype {array.dtype})")
    return from_arrays(Path("arrays"), {name: (a.shape, lambda a=a: a) for name, a in arrays.items()})  # type: ignore[misc]


def opened(model: ModelLike) -> Opened:
    """Open a model, without an engine."""
    if isinstance(model, Opened):
        return model
    return model.opened if isinstance(model, LanguageModel) else open_model(model)


# --- diff


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a model, a model on an engine, or values."""

    shown: str
    model: ModelLike = None
    engine: str = ""
    values: Values | None = None

    @property
    def is_file(self) -> bool:
        return self.model is not None and not self.engine

    @staticmethod
    def of(given: Values | LanguageModel | Opened, *, truth: bool = False) -> Side:
        if isinstance(given, Opened):
            return Side(given.file.path.name, given)
        if isinstance(given, LanguageModel):  # on the right side its definition, else the results of its engine
            return Side(given.path.name, given, "" if truth else given.engine.name)
        if not isinstance(given, str):
            return Side(str(given) if isinstance(given, Path) else type(given).__name__, values=given)
        model, at, engine = given.rpartition("@")
        if at and engine in known():
            return Side(given, model, engine)
        if find_name(given) or given.endswith(".gguf") or given.startswith(("hf:", "ollama:")):
            return Side(given, given)
        if at and not Path(given).exists():
            raise AssayError(f"{given}: no such file, and no engine {engine!r}; there are {', '.join(known())}")
        return Side(given, values=given)


def diff(
    a: Values | LanguageModel | Opened,
    b: Values | LanguageModel,
    *,
    model: ModelLike = None,
    tokens: Sequence[int] = (),
    prompt: str | None = None,
    decode: int = 0,
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    side: str = "",
    progress: Report | None = None,
    reading: Callable[[str], None] | None = None,
) -> Finding | TwoFiles:
    """Compare `b` with `a`, node by node, each judged on its own inputs.

    `a` is the right side: a model (its definition), "MODEL@engine", or values. `b` is values or "MODEL@engine". The ids
    come from the values, from `tokens` or from `prompt`. Without a model, two sets of values are compared as numbers.
    Two model files are compared by weights, activations and logits. `reading` is called with the interpretation of the
    lines of a log, and `progress` with label, amount done and total.
    """
    with watched(progress):
        return _diff(a, b, model, tokens, prompt, decode, names, patterns, side, reading)


def _diff(
    a: Values | LanguageModel | Opened,
    b: Values | LanguageModel,
    model: ModelLike,
    tokens: Sequence[int],
    prompt: str | None,
    decode: int,
    names: Mapping[str, str] | None,
    patterns: Sequence[str],
    side: str,
    reading: Callable[[str], None] | None,
) -> Finding | TwoFiles:
    first, second = Side.of(a, truth=True), Side.of(b)
    if first.is_file and second.is_file:
        return two_files(opened(first.model), opened(second.model), tokens=tokens, prompt=prompt)
    known = model is not None or first.model is not None or second.model is not None
    raw = {s: read_values(s.values, patterns, lenient=known) for s in (first, second) if s.values is not None}
    name = model or first.model or second.model or _provenance(raw.values())
    if name is None:
        return _finding(compare(raw[first], raw[second]), None, raw[second])
    on = opened(name)
    ids = tuple(tokens) or next((dump.tokens for dump in raw.values() if dump.tokens), ())
    if not ids:
        prompt = prompt if prompt is not None else next((dump.prompt for dump in raw.values() if dump.prompt), None)
        if raw and prompt is None:
            where = next(iter(raw)).shown
            raise AssayError(f"{where}: has no token ids; give them with --tokens, or their text with -p")
        ids = tuple(on.tokenizer.encode(PROMPT if prompt is None else prompt))
    steps = next((dump.steps for dump in raw.values() if dump.steps), ())
    cut = decode or max(0, len(steps) - 1)

    def values(s: Side) -> Dump | None:
        if s.values is not None:
            return _report_reading(resolve(raw[s], on.model, names, tokens=ids, side=side), reading)
        if s.engine in ("", "reference"):
            return None  # the definition itself
        if isinstance(s.model, LanguageModel):
            return s.model.trace(ids, decode=cut).dump
        engine = open_engine(s.engine, on.model if s.model == name else opened(s.model).model)
        try:
            return take_trace(engine, ids, decode=cut)
        finally:
            engine.close()

    dumps = [values(first), values(second)]
    if dumps[1] is None:
        dumps = dumps[::-1]
    if dumps[1] is None:
        raise AssayError(f"{first.shown} and {second.shown}: both are the definition; name an engine or a dump")
    result = _judged(on.model, dumps[1])
    if dumps[0] is not None and dumps[0].engine != "reference":
        result = result.beside(_judged(on.model, dumps[0]))
    return _finding(result, on.model, dumps[1])


def _judged(model: Model, dump: Dump) -> Diff:
    """The verdict up to and including the first value that is not finite."""
    result = judge(model, dump)
    return replace(result, broken=explain(model, dump, dump.not_finite)) if dump.not_finite is not None else result


def _finding(result: Diff, model: Model | None, dump: Dump) -> Finding:
    words = lambda rows: judged.text(result, model, rows)  # noqa: E731
    return Finding(result.verdict, result.first_name, result, bool(result), words, dump, model)


def _provenance(dumps: Iterable[Dump]) -> str | None:
    """The model file that a trace names as its origin, if it still exists."""
    paths = (dump.provenance.get("model", "") for dump in dumps)
    return next((str(path) for path in paths if path and Path(path).is_file()), None)


# --- diagnose


def diagnose(
    model: ModelLike = None,
    values: Values | None = None,
    *,
    endpoint: str | None = None,
    api_key: str = "",
    api_model: str = "",
    prompt: str | None = None,
    chat: bool = False,
    system: str | None = None,
    tokens: Sequence[int] = (),
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    side: str = "",
    progress: Report | None = None,
    share: Share | None = None,
    seconds: float = SECONDS,
) -> Finding:
    """Find the wrong operation, the known mistake that reproduces the values, and the right formula.

    The evidence is a dump or, with `endpoint`, the answers of an OpenAI-compatible server. With `prompt`, the text of
    the run (a user message for the chat template, with `chat`), the token ids are judged, too; if the values have no
    ids, those of the prompt are taken. `progress` is called with label, amount done and total; a note has 0 of 0.
    Reading and searching a dump end after about `seconds` of computing; a note then says what was not tried.
    """
    with watched(progress):
        on = opened(model)
        dump, spent = None, working_clock()
        if endpoint is not None:
            result = _by_endpoint(on, endpoint, api_key, api_model)
        elif values is None:
            raise AssayError("diagnose: needs values (a dump) or an endpoint")
        else:
            read = read_values(values, patterns, lenient=True)
            text = prompt if prompt is not None else read.prompt or None
            if text is not None and not (tokens or read.tokens):
                tokens = _ids_of_prompt(on, text, chat, system)
                source = "the prompt" if prompt is not None else f"its prompt {text!r:.60}"
                note(f"{read.source}: has no token ids; those of {source} are taken: {', '.join(map(str, tokens))}")
            dump = load_dump(read, on, tokens=tokens, names=names, side=side)
            _report_reading(dump, note)
            result = _by_values(on, dump, share, max(seconds - spent(), READING_LEFT * seconds))
            if prompt is not None:
                result = _with_token_causes(on, dump, result, prompt, chat, system)
    return _diagnosed(result, on, dump, endpoint or "")


def _ids_of_prompt(on: Opened, prompt: str, chat: bool, system: str | None) -> tuple[int, ...]:
    from assay.verify.diagnosis.by_tokens import expected_ids

    return tuple(expected_ids(on.file, on.tokenizer, prompt, chat=chat, system=system)[0])


def _by_endpoint(on: Opened, endpoint: str, api_key: str, api_model: str) -> Diagnosis:
    from assay.verify.endpoint.blackbox import diagnose_endpoint
    from assay.verify.endpoint.client import Client

    return diagnose_endpoint(on.model, Client(endpoint, on.tokenizer, key=api_key, model=api_model))


def _by_values(on: Opened, dump: Dump, share: Share | None, seconds: float) -> Diagnosis:
    from assay.verify.diagnosis import diagnose_dump as by_values

    result = by_values.diagnose(on.model, dump, share=share, seconds=seconds)
    if dump.not_finite is None:
        return result
    first = result.first_wrong or dump.not_finite.node
    verdict: Answer = "fault" if result else result.verdict
    return replace(result, verdict=verdict, first_wrong=first, broken=explain(on.model, dump, dump.not_finite))


def _with_token_causes(
    on: Opened, dump: Dump, result: Diagnosis, prompt: str, chat: bool, system: str | None
) -> Diagnosis:
    """The diagnosis with the causes that the token ids show, first."""
    from assay.verify.diagnosis.by_tokens import expected_ids, token_causes

    expected, turns = expected_ids(on.file, on.tokenizer, prompt, chat=chat, system=system)
    causes = token_causes(on.tokenizer, dump, expected, prompt, turns)
    if not causes:
        return result
    first = result.first_wrong or causes[0].node
    return replace(result, verdict="fault", causes=(*causes, *result.causes), first_wrong=first)


def _diagnosed(result: Diagnosis, on: Opened, dump: Dump | None, source: str) -> Finding:
    from assay.verify.diagnosis import answer

    words = lambda _: answer.text(result, on.model)  # noqa: E731
    return Finding(result.verdict, result.first_wrong, result, bool(result), words, dump, on.model, source)


# --- check


def checks(
    model: ModelLike = None,
    engine: str = "cpu",
    *,
    lengths: Sequence[int] = (),
    **options: Any,
) -> Iterator[Check]:
    """Check an engine against the definition, and yield each result. `options` are those of the engine.

    A failure is diagnosed at the end. An external engine that passes is diagnosed, too, because a mistake may be
    smaller than its noise.
    """
    on = opened(model)
    lengths = lengths or lengths_for(on.model)
    most = on.model.hparams.n_ctx_train
    if not 1 <= min(lengths) <= max(lengths) <= most:
        raise AssayError(f"--lengths: must be 1 to {most}, the model's context (found {', '.join(map(str, lengths))})")
    if engine in talkers():
        yield _asked(on, engine, options)
        return
    ids = sample_ids(on.tokenizer, on.model.hparams.n_vocab)[: max(lengths)]
    pages = max(pages_for(max(lengths)), PAGES)
    found: list[Check] = []
    make = lambda: open_engine(engine, on.model, n_pages=pages, **options)  # noqa: E731
    for check in check_engine(make, on.model, ids, lengths):
        if check.dump is not None and (not found or _most_telling(check) > _most_telling(found[0])):
            found = [check]
        yield check
    if found and (engine in WITNESSES or not found[0].passed):
        yield _known_mistakes(on, found[0])


def _most_telling(check: Check) -> tuple[bool, int]:
    """The run to diagnose: one that fails, else one with enough tokens to show positions, else a short one."""
    n = len(check.dump.tokens) if check.dump is not None else 0
    return not check.passed, min(n, ENOUGH)


def _known_mistakes(on: Opened, check: Check) -> Check:
    from assay.verify.diagnosis import answer
    from assay.verify.diagnosis import diagnose_dump as by_values

    assert check.dump is not None
    name = f"{len(check.dump.tokens)} tokens, known mistakes"
    result = by_values.diagnose(on.model, check.dump)
    if result:
        return Check(name, True, "no known mistake fits these values better")
    said = answer.text(result, on.model)
    return Check(name, False, said.split("\n", 1)[0], answer=said)


def _asked(on: Opened, engine: str, options: Mapping[str, Any]) -> Check:
    """Check a witness that gives only text, in the same way as a server."""
    from assay.verify.diagnosis import answer
    from assay.verify.endpoint.blackbox import diagnose_endpoint
    from assay.verify.endpoint.client import Client

    talker = open_talker(engine, on.model, **options)
    try:
        result = diagnose_endpoint(on.model, Client(f"engine {engine}", on.tokenizer, ask=talker.ask))
    finally:
        talker.close()
    said = answer.text(result, on.model)
    return Check("its log-probabilities", bool(result), said.split("\n", 1)[0], answer="" if result else said)


def check(
    model: ModelLike = None,
    engine: str = "cpu",
    *,
    lengths: Sequence[int] = (),
    progress: Report | None = None,
    **options: Any,
) -> Finding:
    """Check an engine on a model: every node, several lengths, prefill and decode."""
    with watched(progress):
        on = opened(model)
        return verdict_of(on.model, list(checks(on, engine, lengths=lengths, **options)))


def verdict_of(model: Model, done: Sequence[Check]) -> Finding:
    """The verdict over all checks."""
    failed = [check for check in done if not check.passed]
    first = next((check.diff for check in failed if check.diff is not None), None)

    def words(rows: int) -> str:
        lines = [f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.detail}" for check in done]
        lines.append(f"{len(done) - len(failed)} of {len(done)} checks passed")
        if first is not None:
            lines.append(judged.text(first, model, rows))
        return "\n".join([*lines, *(f"\n{check.answer}" for check in failed if check.answer)])

    wrong = first.first_wrong if first is not None else None
    return Finding(
        "wrong" if failed else "right", wrong.name if wrong else None, tuple(done), not failed, words, model=model
    )
