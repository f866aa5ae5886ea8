"""Two runs of one engine against each other: where they part, on which tokens, and which of them is right.

A side is a dump, a command that makes one, or the address of a server. Two builds, two commits or two settings are two
commands. Values are compared with each other first; the definition of the model, where it is given, tells who is right.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.library.command import run_to_dump
from assay.library.verdicts import Finding, ModelLike, diff, opened
from assay.runtime.opening import Opened
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import Dump, Observation, rows_of, token_axis

Array = NDArray[Any]
Progress = Callable[[str], None]
_ALIKE = 1e-10  # nmse of one token's row: two runs in float32 in another order of summation stay below
_SERVERS_ALIKE = 0.05  # of a log-probability: what arithmetic does to the best tokens of a small model
_ASKED = 16  # tokens that a server is asked for


@dataclass(frozen=True)
class Parting:
    """How far two runs are apart at one node; `tokens` are the rows that differ, where it is known which they are."""

    name: str
    nmse: float
    equal: bool  # to the bit, or to the printed digit
    parted: bool
    tokens: tuple[int, ...]
    n_tokens: int
    example: tuple[float, float]  # of A and of B, where they are furthest apart


@dataclass(frozen=True, repr=False)
class Bisection:
    """Where two runs part; true when they do not."""

    a: str
    b: str
    nodes: tuple[Parting, ...]
    right: str = ""  # in words, by the definition; empty without a model
    judged: tuple[Finding, ...] = ()

    @property
    def first(self) -> Parting | None:
        return next((n for n in self.nodes if n.parted), None)

    def __bool__(self) -> bool:
        return self.first is None

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        first, equal = self.first, sum(n.equal for n in self.nodes)
        if first is None:
            lines = [f"they do not part: {_nodes(self.nodes)} agree, {equal} of them to the last digit"]
        else:
            at = self.nodes.index(first)
            before, after = self.nodes[:at], self.nodes[at + 1 :]
            agree = f"{_nodes(before)} before it agree, {sum(n.equal for n in before)} of them to the last digit"
            differ = f"of {_nodes(after)} after it {sum(n.parted for n in after)} differ"
            lines = [
                f"they part at {first.name}{_tokens(first)} (nmse {first.nmse:.2e}, for example "
                f"{first.example[0]:.7g} and {first.example[1]:.7g})",
                f"  A  {self.a}",
                f"  B  {self.b}",
                f"  {agree if at else 'nothing before it was shown'}; {differ if after else 'nothing after it was'}",
            ]
        if self.right:
            lines.append(f"  {self.right}")
        else:
            lines.append("  which of them is right the definition tells: give the model with -m MODEL")
        return lines

    def to_dict(self) -> dict[str, Any]:
        first = self.first
        return {
            "a": self.a, "b": self.b, "parted": first is not None,
            "first": None if first is None else first.name,
            "tokens": [] if first is None else list(first.tokens),
            "right": self.right or None,
            "verdicts": [f.verdict for f in self.judged],
            "nodes": [
                {"name": n.name, "nmse": n.nmse, "equal": n.equal, "tokens": list(n.tokens)} for n in self.nodes
            ],
        }  # fmt: skip


def bisect(
    a: str,
    b: str,
    model: ModelLike = None,
    *,
    dump: Path | None = None,
    tokens: Sequence[int] = (),
    prompt: str | None = None,
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
) -> Bisection:
    """Two dumps, two commands (each a line, as a shell takes it) or two addresses of servers.

    dump    the file that the commands write; without it, what they print is read
    tokens  the ids that were fed, where neither side says; or `prompt`, their text
    """
    say = progress or (lambda _: None)
    servers = [side.startswith(("http://", "https://")) for side in (a, b)]
    if any(servers):
        if not all(servers) or model is None:
            raise AssayError("bisect: a server is compared with a server, and needs its model: give it with -m MODEL")
        return _servers(a, b, opened(model), prompt, say)
    dumps = [_dump(side, dump, patterns, say) for side in (a, b)]
    on = None if model is None else opened(model)
    ids = tuple(tokens) or dumps[0].tokens or dumps[1].tokens
    if not ids and on is not None and prompt is not None:
        ids = tuple(on.tokenizer.encode(prompt))
    judged: tuple[Finding, ...] = ()
    if on is not None:
        say("comparing each with the definition")
        found = [diff(on, d, tokens=ids, names=names, reading=say) for d in dumps]
        judged = tuple(f for f in found if isinstance(f, Finding))
        dumps = [f.dump for f in judged if f.dump is not None]
    elif all(d.tokens for d in dumps) and dumps[0].tokens != dumps[1].tokens:
        raise AssayError(
            f"{a} and {b}: hold other tokens ({list(dumps[0].tokens)[:8]} and {list(dumps[1].tokens)[:8]})"
        )
    nodes = _partings(dumps[0], dumps[1], on, len(ids))
    if not nodes:
        shown = [", ".join(list(d.by_name)[:12]) or "nothing" for d in dumps]
        raise AssayError(f"{a} and {b}: nothing in common to compare (found {shown[0]} and {shown[1]})")
    return Bisection(a, b, tuple(nodes), _who(judged), judged)


def _dump(side: str, file: Path | None, patterns: Sequence[str], say: Progress) -> Dump:
    if Path(side).exists() and (Path(side).is_dir() or not _is_program(Path(side))):
        return read_dump(Path(side), patterns)
    try:
        command = shlex.split(side)
    except ValueError as error:
        raise AssayError(f"{side}: neither a file nor a command ({str(error).lower()})") from None
    say(f"running {side}")
    with tempfile.TemporaryDirectory(prefix="assay-bisect-") as folder:
        found = run_to_dump(command, Path(folder), dump=file, patterns=patterns)
        return _in_memory(found)


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK)


def _in_memory(dump: Dump) -> Dump:
    """With its arrays read: the next command writes to the same file."""
    read = tuple(replace(o, data=o.array()) if o.kind == "values" else o for o in dump.observations)
    return replace(dump, observations=read)


# -- values against values -------------------------------------------------------------------------------------


def _partings(a: Dump, b: Dump, on: Opened | None, n: int) -> list[Parting]:
    """What both show, in the order of computation where a model tells it, else in that of B."""
    theirs = {(o.name, o.kind, o.rows): o for o in a.observations}
    found: dict[str, list[tuple[Observation, Observation]]] = {}
    for obs in b.observations:
        other = theirs.get((obs.name, obs.kind, obs.rows))
        if other is not None and other.target().shape == obs.target().shape:
            found.setdefault(obs.name, []).append((other, obs))
    order = {} if on is None else {node.name: i for i, node in enumerate(on.model.graph)}
    names = sorted(found, key=lambda name: order.get(name, 0))
    return [_parting(name, found[name], on, n) for name in names]


def _parting(name: str, pairs: Sequence[tuple[Observation, Observation]], on: Opened | None, n: int) -> Parting:
    squares = base = 0.0
    equal, parted, rows, worst, example = True, False, set[int](), -1.0, (0.0, 0.0)
    for one, other in pairs:
        x, y = (np.asarray(o.target(), np.float64) for o in (one, other))
        printed = np.maximum(*(np.asarray(o.printed or 0.0) for o in (one, other)))
        off = np.maximum(np.abs(y - x) - 2 * printed, 0)
        off = np.where(
            np.isfinite(x) & np.isfinite(y), off, np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.inf)
        )
        finite = np.nan_to_num(x, posinf=0, neginf=0)
        equal &= not off.any()
        squares, base = squares + float(np.sum(off**2)), base + float(np.sum(finite**2))
        at = np.unravel_index(int(off.argmax()), off.shape)
        if off[at] > worst:
            worst, example = float(off[at]), (float(x[at]), float(y[at]))
        if one.kind != "values":
            if np.sum(off**2) > _ALIKE * np.sum(finite**2):
                parted = True
                rows |= set(range(*(one.rows or ((0, n) if on is not None else (0, 0)))))  # a bare print tells no row
            continue
        axis = _token_axis(name, x.shape, on, n)
        for t in range(x.shape[axis] if x.ndim else 1):
            part = [rows_of(v, axis, (t, t + 1)) if x.ndim else v for v in (off, finite)]
            if np.sum(part[0] ** 2) > _ALIKE * np.sum(part[1] ** 2):
                parted = True
                rows.add(t + (one.rows[0] if one.rows else 0))
    return Parting(name, squares / (base + 1e-30), equal, parted, tuple(sorted(rows)), n, example)


def _token_axis(name: str, shape: tuple[int, ...], on: Opened | None, n: int) -> int:
    if on is not None and name in on.model.graph:
        return token_axis(on.model.graph, name)
    return 1 if len(shape) == 3 and shape[0] != n and shape[1] == n else 0


def _nodes(some: Sequence[Parting]) -> str:
    return f"{len(some)} node{'s' if len(some) != 1 else ''}"


def _tokens(first: Parting) -> str:
    if not first.tokens:
        return ""
    if first.n_tokens and len(first.tokens) >= first.n_tokens:
        return f", on all {first.n_tokens} tokens"
    listed = ", ".join(map(str, first.tokens[:8])) + (" …" if len(first.tokens) > 8 else "")
    of = f" of {first.n_tokens}" if first.n_tokens else ""
    return f", on token{'s' if len(first.tokens) > 1 else ''} {listed}{of}"


def _who(judged: Sequence[Finding]) -> str:
    if len(judged) < 2:
        return ""
    words = [f"{side}: {f.result.summary}" for side, f in zip("AB", judged, strict=True)]
    good = [bool(f) for f in judged]
    head = {
        (True, True): "both are right by the definition",
        (True, False): "A is right, B is wrong by the definition",
        (False, True): "B is right, A is wrong by the definition",
        (False, False): "both are wrong by the definition",
    }[good[0], good[1]]
    return f"{head} ({'; '.join(words)})"


# -- servers ---------------------------------------------------------------------------------------------------


def _servers(a: str, b: str, on: Opened, prompt: str | None, say: Progress) -> Bisection:
    """The same prompt to both, greedy: the first token at which what they say differs."""
    from assay.engines.reference import interpret
    from assay.engines.reference.weights import Weights
    from assay.verify.dumps.observation import inputs_of
    from assay.verify.endpoint.client import Client
    from assay.verify.endpoint.prompt_ids import TEXT

    text = TEXT if prompt is None else prompt
    replies = []
    for url in (a, b):
        say(f"asking {url}")
        replies.append(Client(url, on.tokenizer).complete(text, n=_ASKED))
    ids = on.tokenizer.encode(text)
    steps = list(zip(replies[0].steps, replies[1].steps, strict=False))
    if not steps:
        raise AssayError(f"{a} and {b}: no log-probabilities in the answers; bisect needs them")
    nodes: list[Parting] = []
    for i, (x, y) in enumerate(steps):
        common = [t for t in x.scores if t in y.scores]
        gap = max((abs(x.scores[t] - y.scores[t]) for t in common), default=0.0)
        at = max(common, key=lambda t: abs(x.scores[t] - y.scores[t]), default=None)
        parted = gap > _SERVERS_ALIKE or (x.id, x.text) != (y.id, y.text)
        example = (x.scores[at], y.scores[at]) if at is not None else (float("nan"), float("nan"))
        name = f"generated token {i} ({x.text!r} and {y.text!r})"
        nodes.append(
            Parting(name, gap**2, gap == 0 and not parted, parted, (len(ids) + i,) if parted else (), 0, example)
        )
        if parted:
            fed = [*ids, *(s.id for s, _ in steps[:i] if s.id is not None)]
            logits = interpret(
                on.model.graph, Weights(on.model.file, np.float32, budget=0), inputs_of(fed, range(len(fed))),
                [on.model.graph.output],
            )[on.model.graph.output][-1].astype(np.float64)  # fmt: skip
            truth = logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))
            far = [max((abs(s.scores[t] - truth[t]) for t in s.scores), default=np.inf) for s in (x, y)]
            return Bisection(a, b, tuple(nodes), _nearer(far))
    return Bisection(
        a, b, tuple(nodes), "both say the same; `assay diagnose MODEL --endpoint URL` tells whether it is right"
    )


def _nearer(far: Sequence[float]) -> str:
    good = [f <= _SERVERS_ALIKE for f in far]
    told = f"largest distance of a log-probability from the definition's: A {far[0]:.3g}, B {far[1]:.3g}"
    if good[0] != good[1]:
        return f"{'AB'[good.index(True)]} is right, {'AB'[good.index(False)]} is wrong by the definition ({told})"
    return f"{'both are right' if good[0] else 'both are wrong'} by the definition ({told})"
