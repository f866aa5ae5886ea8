"""An engine against the definition at several lengths, and its decode against its own prefill.

Every length is run twice: all tokens at once, and the last ones one by one through the cache. Both runs are judged node
by node and then compared with each other, because mistakes in positions and caches show only in the second. At the end
one engine gets the same prompt alone, after another one and beside another one (`between_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.engines.contract import Engine
from assay.models import Model
from assay.verify.conformance.between_requests import in_company
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.verdict import judge

LENGTHS = (1, 2, 7, 33)  # one token, the smallest with a past, a few, and one more than a page of 32
DECODE = 4  # tokens fed one by one, at most


def lengths_for(model: Model) -> tuple[int, ...]:
    """The default lengths: LENGTHS, cut to the context of the model."""
    return tuple(dict.fromkeys(min(n, model.hparams.n_ctx_train) for n in LENGTHS))


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    passed: bool
    detail: str
    diff: Diff | None = None
    dump: Dump | None = None  # what was judged, for the report
    answer: str = ""  # a diagnosis in words, where something is wrong

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "passed": self.passed, "detail": self.detail}
        if self.diff is not None and not self.diff:
            found["diff"] = self.diff.to_dict()
        if self.answer:
            found["answer"] = self.answer
        return found


def check_engine(
    make: Callable[[], Engine],
    model: Model,
    tokens: Sequence[int],
    lengths: Sequence[int] = LENGTHS,
) -> Iterator[Check]:
    """The checks, one at a time. Each run gets a fresh engine, so that no state is left of an earlier run."""
    for n in lengths:
        ids = [tokens[i % len(tokens)] for i in range(n)]
        whole = _run(make, ids, 0)
        yield _judged(f"{n} tokens, prefill", judge(model, whole), whole)
        if n < 2 or model.graph.whole:  # an encoder has no decode
            continue
        k = min(DECODE, n - 1)
        stepped = _run(make, ids, k)
        yield _judged(f"{n} tokens, the last {k} through the cache", judge(model, stepped), stepped)
        yield _against_itself(n, whole, stepped)
    yield _twice(make, [tokens[i % len(tokens)] for i in range(lengths[-1])], model.graph.output)
    engine = make()
    try:
        if verdict := getattr(engine, "verdict", None):  # of the wgpu engine: the tier that this adapter got
            yield Check("arithmetic of the adapter", verdict.proven, str(verdict))
        for company in in_company(engine, model, tokens):
            yield Check(company.name, company.passed, company.detail)
    finally:
        engine.close()


def _run(make: Callable[[], Engine], ids: Sequence[int], decode: int) -> Dump:
    engine = make()
    try:
        return take_trace(engine, ids, decode=decode)
    finally:
        engine.close()


def _judged(name: str, diff: Diff, dump: Dump) -> Check:
    return Check(name, bool(diff), diff.summary, diff, dump)


def _against_itself(n: int, whole: Dump, stepped: Dump) -> Check:
    """Prefill against decode: equal bit for bit, or the distance of the logits."""
    name = f"{n} tokens, decode against prefill"
    a, b = (np.asarray(d.values("result_output"), np.float64) for d in (whole, stepped))
    if np.array_equal(a, b):
        return Check(name, True, "the same bits")
    nmse = float(np.sum((a - b) ** 2) / np.sum(a * a))
    best = float((a.argmax(-1) == b.argmax(-1)).mean())
    return Check(name, nmse < 1e-2, f"logits differ by nmse {nmse:.1e}, same best token at {100 * best:.0f} %")


def _twice(make: Callable[[], Engine], ids: Sequence[int], output: str) -> Check:
    """The same request again on the same engine: the first must leave no state."""
    engine = make()
    try:
        first, second = (take_trace(engine, ids, nodes=f"^{output}$").values(output) for _ in range(2))
    finally:
        engine.close()
    same = np.array_equal(np.asarray(first), np.asarray(second))
    return Check(f"{len(ids)} tokens, the same request twice", same, "the same bits" if same else "the results differ")
