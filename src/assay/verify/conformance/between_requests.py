"""Faults that only show between requests: one prompt alone, after another one, and beside a longer one.

A run on a fresh engine cannot show them: a state that is not cleared when a sequence begins, two sequences that share a
state or a page, rows of padding that enter a state. So one engine gets the same short prompt three times. The prompt is
short because a state forgets: after many tokens, a wrong beginning no longer shows. The other prompt is longer, so that
an engine which pads has to pad.

`engine_check.py` calls this for every engine. `endpoint/other_requests.py` asks servers in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from assay.engines.contract import PAGE, Array, Chunk, Engine, PagedEngine, pages_for
from assay.graph import Graph, Trait, split
from assay.models import Model

SHORT = 5  # tokens of the prompt
LONG = PAGE + 5  # tokens of the other one: more than a page
STEPS = 2  # tokens decoded after the prompt: what padding leaves in a state shows only there
PAGES = pages_for(SHORT + STEPS) + 2 * pages_for(LONG + STEPS)  # of an engine that is asked
CLOSE = 1e-3  # NMSE that a neighbour may cause in an engine whose bits depend on the batch


@dataclass(frozen=True)
class Company:
    """The result of one situation."""

    name: str
    passed: bool
    detail: str


Values = list[dict[str, Array]]  # kept nodes of the prompt and of each decoded token
Request = tuple[Sequence[int], int, int]  # token ids with those to decode, the first page, the state slot


def in_company(engine: Engine, model: Model, tokens: Sequence[int]) -> Iterator[Company]:
    """The prompt after another one and, on an engine with pages, beside another one; each against the prompt alone.

    The engine must be new and have `PAGES` pages. Models with a shorter context get shorter prompts.
    """
    room = model.hparams.n_ctx_train - STEPS
    if room < SHORT + 1:
        return
    short = _text(tokens, SHORT + STEPS, 0, model)
    longer, other = (_text(tokens, min(LONG, room) + STEPS, shift, model) for shift in (1, 2))
    names = _watched(engine, model.graph)
    alone = _run(engine, [(short, 0, 0)], names)[0]
    _run(engine, [(longer, 0, 0)], names)
    after = _run(engine, [(short, 0, 0)], names)[0]
    yield _verdict(
        f"{SHORT} tokens, after another request",
        _difference(alone, after),
        exact=True,
        why="the request before it is still in a state or a cache; clear them when a sequence begins (st-leak, "
        "kv-stale-request)",
    )
    if PagedEngine not in type(engine).__mro__ or (engine.graph.state.per_sequence and engine.state_slots < 4):
        return  # it computes one sequence at a time
    first = pages_for(SHORT + STEPS)
    second = first + pages_for(LONG + STEPS)

    def beside(neighbour: Sequence[int]) -> Values:
        return _run(engine, [(neighbour, second, 2), (short, first, 3)], names)[1]

    found = beside(longer)
    gap = _difference(alone, found)
    yield _verdict(
        f"{SHORT} tokens, beside a request of {len(longer) - STEPS}", gap, exact=engine.arithmetic.steady,
        why=_beside(gap is not None and _difference(found, beside(other)) is None),
    )  # fmt: skip


def _beside(padded: bool) -> str:
    if padded:
        return (
            "another neighbour of the same length gives the same, so rows of padding enter (st-pad-enters, "
            "st-pad-decays, pos-padding); cut them off before a state or a position counts them"
        )
    return "it depends on the neighbour's tokens: sequences share a state, a page or a row (st-leak, batch-row)"


def _text(tokens: Sequence[int], n: int, shift: int, model: Model) -> list[int]:
    """n ids; another shift gives another text."""
    return [(tokens[i % len(tokens)] + shift * (1 + i % 7)) % model.hparams.n_vocab for i in range(n)]


def _watched(engine: Engine, graph: Graph) -> list[str]:
    """The nodes that are compared: states, outputs of layers and logits, where the engine can show them."""
    wanted = [n.name for n in graph if n.has(Trait.SHOWS_STATE) or split(n.name)[0] in ("l_out", "kqv_out")]
    names = dict.fromkeys([*wanted, graph.output])
    return [name for name in names if split(name)[0] not in engine.cannot_keep]


def _run(engine: Engine, requests: Sequence[Request], names: Sequence[str]) -> list[Values]:
    """Prompts in one step, then `STEPS` tokens of each, all in one batch; an encoder has no such tokens."""
    found: list[Values] = [[] for _ in requests]
    steps = [(0, -STEPS)] + [(-STEPS + i, -STEPS + i + 1) for i in range(0 if engine.graph.whole else STEPS)]
    for begin, end in steps:
        chunks = []
        for ids, page, slot in requests:
            start, stop = begin % len(ids) if begin else 0, len(ids) + end
            table = np.arange(page, page + pages_for(len(ids)), dtype=np.int32)
            chunks.append(Chunk(np.array(ids[start:stop], np.int32), start, table, "all", state_slot=slot))
        for values, chunk, output in zip(found, chunks, engine.forward(chunks, names), strict=True):
            values.append({**output.nodes, engine.graph.output: output.logits})
            assert len(output.logits) in (chunk.n_tokens, 1)
    return found


@dataclass(frozen=True)
class _Gap:
    """The first node that differs: in which step, by which NMSE, and the largest NMSE of the logits."""

    node: str
    step: int
    nmse: float
    logits: float


def _difference(a: Values, b: Values) -> _Gap | None:
    found: _Gap | None = None
    for step, (mine, yours) in enumerate(zip(a, b, strict=True)):
        for name, value in mine.items():
            if found is None and not np.array_equal(value, yours[name]):
                found = _Gap(name, step, _nmse(value, yours[name]), 0.0)
    if found is None:
        return None
    output = list(a[0])[-1]
    worst = max(_nmse(mine[output], yours[output]) for mine, yours in zip(a, b, strict=True))
    return _Gap(found.node, found.step, found.nmse, worst)


def _nmse(a: Array, b: Array) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sum((a - b) ** 2) / max(float(np.sum(a * a)), 1e-30))


def _verdict(name: str, gap: _Gap | None, *, exact: bool, why: str) -> Company:
    if gap is None:
        return Company(name, True, "the same bits")
    where = f"from {gap.node} on, {'in the prompt' if not gap.step else f'at decoded token {gap.step}'}"
    if not exact and gap.logits < CLOSE:
        return Company(name, True, f"logits differ by nmse {gap.logits:.1e}, as batches of other sizes may")
    return Company(name, False, f"differs {where} (logits by nmse {gap.logits:.1e}); {why}")
