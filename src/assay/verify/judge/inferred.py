"""Which arithmetic an engine computes in, inferred once for the whole dump from what its nodes have in common."""

from __future__ import annotations

import numpy as np

from assay.models import Model
from assay.verify.judge.arithmetic import ARITHMETICS, MATRIX, Arithmetic, is_gelu
from assay.verify.judge.evidence import Evidence
from assay.verify.thresholds import DISTURBS, FEW_DISTURBED, RUN, TOO_GOOD

# Operations that move values or choose among them: exact in every arithmetic, so they say nothing about it.
EXACT = (
    "slice",
    "concat",
    "merge_heads",
    "split_heads",
    "clamp",
    "clamp_min",
    "gather",
    "group_mask",
    "argsort",
    "topk",
)


def infer(model: Model, evidence: list[Evidence]) -> Arithmetic:
    """The strictest arithmetic that explains what the nodes have in common.

    Whole tensors: storage, quantised operands, cache and GELU are inferred apart, each by the majority of the nodes
    that it concerns, judged on their own inputs. Partial evidence: the one that explains the most observations from
    the first on, but none that is far too coarse for the first one, or for most of those that it would disturb: who
    agrees to six digits there does not compute in bfloat16.
    """
    whole = [e for e in evidence if e.whole and len(e.segment) <= 3]
    if len(whole) >= 8:
        return _by_majority(model, whole)
    early = [e for e in evidence if e.name != "embd"]
    best = ARITHMETICS[0]
    longest = 0
    for i, arithmetic in enumerate(ARITHMETICS):
        explained = next((k for k, e in enumerate(early) if e.local[i] > 1), len(early))
        if explained > longest and RUN * early[0].local[i] > TOO_GOOD and not _too_fine(early, i):
            best, longest = arithmetic, explained
    return best if longest else ARITHMETICS[0]


def _too_fine(evidence: list[Evidence], i: int) -> bool:
    """Are most of the nodes that this arithmetic would disturb at float32's noise?"""
    disturbed = [e for e in evidence if e.local[0] > DISTURBS * e.local[i]]
    return len(disturbed) > FEW_DISTURBED and 2 * sum(e.local[0] <= 1 for e in disturbed) > len(disturbed)


def _by_majority(model: Model, whole: list[Evidence]) -> Arithmetic:
    def explained(nodes: list[Evidence], candidates: list[Arithmetic]) -> Arithmetic:
        share = [sum(e.local[ARITHMETICS.index(c)] <= 1 for e in nodes) for c in candidates]
        for c, n in zip(candidates, share, strict=True):
            if 2 * n >= len(nodes):
                return c
        return candidates[int(np.argmax(share))]

    def of(*ops: str, others: bool = False) -> list[Evidence]:
        return [e for e in whole if (model.graph[e.name].op in ops) != others]

    plain, table, kv, q8, both, coarse, f16, bf16 = ARITHMETICS
    storage = explained(of(*MATRIX, *EXACT, "kq", "kqv", "cache", others=True), [table, f16, bf16])
    if storage is not table:
        return storage
    quantised = explained(of(*MATRIX), [table, q8]) is q8
    caches = explained(of("kq", "kqv"), [table, kv, coarse]), explained(of("cache"), [table, kv, coarse])
    if coarse in caches:  # there is no such cache with finer operands among the arithmetics
        return coarse
    cached = kv in caches
    gelu = explained([e for e in whole if any(is_gelu(model.graph[part]) for part in e.segment)], [plain, table])
    return {(False, False): gelu, (False, True): kv, (True, False): q8, (True, True): both}[quantised, cached]
