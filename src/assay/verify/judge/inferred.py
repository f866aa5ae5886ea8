"""Which arithmetic an engine computes in.

It is inferred once for the whole dump, so that one careless node does not get a lenient judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Trait
from assay.models import Model
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic, quantise_for, reads_halves
from assay.verify.judge.evidence import Evidence
from assay.verify.thresholds import DISTURBS, FEW_DISTURBED, RUN, TOO_GOOD

Array = NDArray[Any]

# The results of these tell little about the type that an engine stores results in. Products, attention and the cache
# also round their operands; the others give exact numbers in every arithmetic.
_SAY_NOTHING_OF_STORAGE = Trait.PRODUCT | Trait.ATTENDS | Trait.CACHES | Trait.EXACT


def infer(model: Model, evidence: list[Evidence]) -> SimulatedArithmetic:
    """The strictest arithmetic that explains what the nodes have in common.

    With whole tensors, storage, quantised operands, cache and GELU are inferred separately, each by the majority of the
    nodes that it concerns, judged on their own inputs. With partial evidence, the arithmetic is chosen that explains
    the longest run of observations from the first on. An arithmetic is ruled out if it is far too coarse for the first
    observation, or if it would have changed nodes that match exactly.
    """
    whole = [e for e in evidence if e.whole and len(e.segment) <= 3]
    if len(whole) >= 8:
        return _by_majority(model, whole, [e for e in evidence if e.whole and len(e.segment) > 3])
    early = [e for e in evidence if e.name != "embd"]
    rows = next((e.local for e in evidence if e.name == "embd"), np.zeros(len(ARITHMETICS)))
    best = ARITHMETICS[0]
    longest = 0
    if not early:
        return best
    for i, arithmetic in enumerate(ARITHMETICS):
        if rows[i] > 1 >= rows.min():  # an engine that rounds its results has another embedding
            continue
        explained = next((k for k, e in enumerate(early) if e.local[i] > 1), len(early))
        # A node that this arithmetic computes as float32 does says nothing of it. A product says nothing of a cache in
        # eight bits, because engines combine that with finer operands than the arithmetics have.
        first = next((e for e in early if _disturbs(e, i) or (arithmetic.q8_cache and e.local[0] > 0)), None)
        fine = i > 0 and (
            (first is not None and RUN * first.local[i] <= TOO_GOOD)
            or _too_fine([e.local for e in early], i)
            or _too_fine([one for e in early for one in e.each], i)  # a mistake may be in some rows of every node
        )
        if explained > longest and not fine:
            best, longest = arithmetic, explained
    return best if longest else ARITHMETICS[0]


def _disturbs(e: Evidence, i: int) -> bool:
    rms = e.noise_local.rms
    return bool(rms[i].max() > 2 * rms[0].max())


def _too_fine(local: Sequence[Array], i: int) -> bool:
    """Do most of the nodes or observations that this arithmetic would change match to float32's noise?"""
    disturbed = [one for one in local if one[0] > DISTURBS * one[i]]
    return len(disturbed) > FEW_DISTURBED and 2 * sum(one[0] <= 1 for one in disturbed) > len(disturbed)


def _by_majority(model: Model, whole: list[Evidence], longer: list[Evidence]) -> SimulatedArithmetic:
    def share(nodes: list[Evidence], candidate: SimulatedArithmetic) -> int:
        return sum(e.local[ARITHMETICS.index(candidate)] <= 1 for e in nodes)

    def most(nodes: list[Evidence], candidate: SimulatedArithmetic) -> bool:
        return 2 * share(nodes, candidate) >= len(nodes)

    def explained(nodes: list[Evidence], candidates: list[SimulatedArithmetic]) -> SimulatedArithmetic:
        first = next((c for c in candidates if most(nodes, c)), None)
        return first or candidates[int(np.argmax([share(nodes, c) for c in candidates]))]

    def of(traits: Trait) -> list[Evidence]:
        return [e for e in whole if model.graph[e.name].has(traits)]

    plain, table, kv, half, half_kv, q8, both, coarse, f16, brain, bf16 = ARITHMETICS
    results = [e for e in whole if not model.graph[e.name].has(_SAY_NOTHING_OF_STORAGE)]
    storage = explained(results, [table, f16, bf16])
    # Halved weights of a norm look like a halved result. They are told apart by nodes without weights.
    free = [e for e in results if not any(model.graph[part].weights for part in e.segment)]
    narrow_weights = most(results, half) or most(results, brain)
    if storage is not table and not (narrow_weights and 4 * share(free, table) >= 3 * len(free)):
        return storage
    # Files mix types. Only products with matrices for which operands are rounded say whether they are.
    rounded = [e for e in of(Trait.PRODUCT) if quantise_for(model.file, model.graph[e.name].weights[0]) is not None]
    if rounded:
        operands = explained(rounded, [table, half, q8, brain])
    else:
        operands = explained(of(Trait.PRODUCT), [table, half, brain])
    # Embeddings are rows of the weights themselves, so they tell the two narrow types apart.
    rows = [e for e in whole if model.graph[e.name].op == "embed"]
    if operands is half and rows and not share(rows, half) and share(rows, brain):
        operands = brain
    scores = of(Trait.ATTENDS) or [  # flash attention shows neither scores nor probabilities
        e for e in longer if any(model.graph[part].has(Trait.ATTENDS) for part in e.segment)
    ]
    if scores and not most(scores, kv) and most(scores, coarse):  # also with finer operands than the arithmetics have
        return coarse
    cached = kv in (explained(scores, [table, kv]), explained(of(Trait.CACHES), [table, kv]))
    gelu = explained([e for e in whole if any(reads_halves(model.graph[part]) for part in e.segment)], [plain, table])
    return {table: (gelu, kv), half: (half, half_kv), q8: (q8, both), brain: (brain, brain)}[operands][cached]
