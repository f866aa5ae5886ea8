"""RoPE scaled otherwise than the file says: by YaRN, or not at all.

YaRN has two numbers, its factor and the context that it extends. It turns the slow pairs of a head by less, and makes
queries and keys longer, which multiplies the scores of attention. In a short text the slow pairs hardly turn, so there
it shows little more than larger scores. These are an alternative of their own, tried beside the YaRN that fits best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from assay.graph import Node
from assay.models import Model
from assay.models.hparams import yarn_magnitude
from assay.verify.endpoint.alternatives import Alternative
from assay.verify.endpoint.claimed_model import Setting, rewritten

FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
RATIOS = (1.0, 1 / 8)  # of the file's own context
LOW_FACTOR, HIGH_FACTOR = 1.05, 128.0
LOW_CONTEXT, HIGH_CONTEXT = 32.0, 2.0**22
WORTH = 0.8  # share of the claim's loss: if no usual factor is below, it is not YaRN
FIRST_STEP, LAST_STEP = 1.6, 1.02  # ratios by which the factor moves in the search
CONTEXT_STEP = 2.0  # the exponent of the step for the context, on which less depends
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))
FAULT = "rope-yarn-factor"
Loss = Callable[[Alternative], float]


def _ropes(model: Model) -> list[Node]:
    return [node for node in model.graph if node.op == "rope"]


def own_yarn(model: Model) -> tuple[float, int] | None:
    """The factor and the original context of the file's YaRN; None without YaRN."""
    found = next((node for node in _ropes(model) if node.attr("ext_factor")), None)
    return None if found is None else (1 / found.attr("freq_scale"), int(found.attr("n_ctx_orig")))


def yarn(model: Model, factor: float, context: int, about: str = "") -> Alternative | None:
    """YaRN with these numbers, as llama.cpp and transformers compute it; None if that is the claim.

    `about` stands before numbers that were searched.
    """
    own = own_yarn(model)
    if not _ropes(model) or factor <= 1 or (own is not None and (round(own[0], 3), own[1]) == (factor, context)):
        return None
    says = "no YaRN" if own is None else f"a factor of {own[0]:g} and a context of {own[1]}"
    words = f"RoPE with YaRN, a factor of {about}{factor:g} for a context of {about}{context} (the file says {says})"
    graph = rewritten(model, partial(_with_yarn, factor, context))
    return Alternative(f"yarn {factor:g} {context}", words, "rope", Setting(graph=graph), fault=FAULT)


def _with_yarn(factor: float, context: int, node: Node) -> Node | None:
    if node.op != "rope":
        return None
    return node.with_attrs(
        freq_scale=1 / factor, ext_factor=1.0, n_ctx_orig=context, beta_fast=32.0, beta_slow=1.0, attn_factor=1.0
    )


def larger_scores(model: Model, factor: float) -> Alternative:
    """Queries and keys as long as YaRN with this factor makes them, and no other angles."""
    times = yarn_magnitude(factor)
    graph = rewritten(model, partial(_longer, times))
    words = f"scores of attention multiplied by about {times * times:.3g}"
    return Alternative(f"scores {times:g}", words, "rope", Setting(graph=graph), fault=FAULT)


def _longer(times: float, node: Node) -> Node | None:
    return node.with_attrs(attn_factor=node.attr("attn_factor") * times) if node.op == "rope" else None


def unscaled(model: Model) -> Iterator[Alternative]:
    """RoPE without the scaling that the file asks for, where it asks for one."""
    ropes = _ropes(model)
    if any(node.attr("freq_scale") != 1 or node.attr("ext_factor") for node in ropes):
        graph = rewritten(model, _plain)
        words = f"RoPE without the {'YaRN' if own_yarn(model) else 'linear scaling'} of the file"
        fault = FAULT if own_yarn(model) else "rope-linear"
        yield Alternative("rope unscaled", words, "rope", Setting(graph=graph), fault=fault)
    if any(node.weights for node in ropes):
        graph = rewritten(model, _without_factors)
        words = "RoPE without the factors of the file (rope_freqs)"
        yield Alternative("rope factors", words, "rope", Setting(graph=graph), fault="rope-freq-factors")


def _plain(node: Node) -> Node | None:
    return node.with_attrs(freq_scale=1.0, ext_factor=0.0, attn_factor=1.0) if node.op == "rope" else None


def _without_factors(node: Node) -> Node | None:
    return replace(node, weights=()) if node.op == "rope" and node.weights else None


def fitted_yarn(model: Model, claim_loss: float, loss: Loss) -> list[Alternative]:
    """The YaRN that fits best, and larger scores alone; nothing if YaRN is no better than the claim.

    Usual numbers are tried first. From the best of them a compass search goes on, on logarithmic scales. A smaller
    factor with a smaller context predicts nearly the same, so it also moves along both.
    """
    own = own_yarn(model)
    files = float(own[1] if own else model.hparams.n_ctx_train)
    tried = dict[tuple[float, int], float]()

    def loss_of(factor: float, context: float) -> float:
        at = float(f"{factor:.3g}"), round(float(f"{context:.3g}")) if context != files else round(files)
        if at not in tried:
            inside = LOW_FACTOR <= factor <= HIGH_FACTOR and LOW_CONTEXT <= context <= HIGH_CONTEXT
            made = yarn(model, *at) if inside else None
            tried[at] = claim_loss if made is None else loss(made)
        return tried[at]

    if not _ropes(model):
        return []
    starts = [(factor, files * ratio) for factor in FACTORS for ratio in RATIOS]
    here = min(starts, key=lambda at: loss_of(*at))
    if loss_of(*here) > WORTH * claim_loss:
        return []
    step = FIRST_STEP
    while step >= LAST_STEP:
        moves = [(here[0] * step**a, here[1] * step ** (CONTEXT_STEP * b)) for a, b in MOVES]
        best = min(moves, key=lambda at: loss_of(*at))
        if loss_of(*best) < loss_of(*here):
            here = best
        else:
            step = step**0.5
    found = min(tried, key=tried.__getitem__)
    made = yarn(model, *found, "" if found[0] in FACTORS and found[1] == files else "about ")
    return [made, larger_scores(model, found[0])] if made is not None else []
