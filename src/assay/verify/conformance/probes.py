"""Probes: the runs of a conformance kit (`vectors.py`). Each is short and shows a mistake that no cheaper run shows.

A probe is a sequence of token ids, run once or twice. It is cut into steps: a prefill, then perhaps single tokens
through the cache. Its positions may differ from the natural ones. The ids are drawn from the model's own vocabulary
with a fixed seed, so a kit for one file is always the same. `assay check` does not use probes; its runs are in
`engine_check.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.graph import Graph, Node, Trait
from assay.models import Model
from assay.text import Tokenizer


@dataclass(frozen=True)
class ProbeSequence:
    """One run. `steps` sum to the number of tokens; `every_node` asks for all values, else layer outputs only."""

    id: str
    why: str
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    positions: tuple[int, ...]
    runs: int = 1
    every_node: bool = False


CROSSED = (32, 64, 256, 2048)  # lengths where tiles, pages, chunks and caches end


def _counts_positions(node: Node) -> bool:
    """Does the result depend on the position itself, not only on differences of positions?"""
    attrs = node.all_attrs()
    return bool(attrs.get("chunk")) or (node.has(Trait.POSITIONAL) and "unit" in attrs)


def _absolute(graph: Graph) -> bool:
    """Do absolute positions count: learned ones, in a scale, or by the chunk of a position?"""
    return graph.max_positions is not None or any(_counts_positions(n) for n in graph)


def make_probes(model: Model, tokenizer: Tokenizer) -> list[ProbeSequence]:
    """The probes of a model; those longer than its context are left out."""
    graph, n_ctx = model.graph, min(model.hparams.n_ctx_train, model.graph.max_positions or model.hparams.n_ctx_train)
    causal = graph.causal
    absolute = " (here they do: positions count by themselves)" if _absolute(graph) else ""
    rng = np.random.default_rng(20)
    plain = np.setdiff1d(np.arange(model.hparams.n_vocab), [*tokenizer.eog, tokenizer.bos or 0])
    ids = tuple(int(i) for i in rng.choice(plain, max(CROSSED) + 1))
    first = tokenizer.bos if tokenizer.bos is not None and tokenizer.add_bos else ids[0]
    prompt = (first, *ids[1:6])
    other_end = (*prompt[:-1], ids[6])

    def probe(
        id: str, why: str, tokens: tuple[int, ...], steps: tuple[int, ...] = (), shift: int = 0, **kw: int | bool
    ) -> ProbeSequence:
        positions = tuple(range(shift, shift + len(tokens)))
        return ProbeSequence(id, why, tokens, steps or (len(tokens),), positions, **kw)  # type: ignore[arg-type]

    both = [  # an encoder is run whole, and each of its tokens sees every other
        probe("one-token", "embedding, norms, projections and head with no attention", (first,), every_node=True),
        probe("two-tokens", "the first run in which rope, scale and mask matter", prompt[:2], every_node=True),
        probe("prompt", "the base that the next probes vary", prompt),
        probe(
            "last-changed",
            "only the last token differs: earlier rows must not; a leaking mask shows"
            if causal
            else "only the last token differs: every row must; a causal mask shows",
            other_end,
        ),
        probe("twice", "the same request again: stale cache, races and uninitialised memory show", prompt, runs=2),
        *(probe(f"length-{n + 1}", f"crosses {n} positions", ids[: n + 1]) for n in CROSSED),
    ]
    stepped = [
        probe("equal-tokens", f"every position must give the same logits: attention rows sum to 1{absolute}",
              (ids[1],) * 8),
        probe("shifted", f"all positions + 11: they count from each other, logits must not change{absolute}", prompt,
              shift=11),
        probe("swapped", "the first two swapped: changes the last row only if rope is applied",
              (prompt[1], prompt[0], *prompt[2:])),
        probe("decode", "the prompt's last tokens one by one through the cache; must equal the prompt run",
              prompt, (len(prompt) - 3, 1, 1, 1), every_node=True),
    ]  # fmt: skip
    return [p for p in (both if graph.whole else [*both, *stepped]) if max(p.positions) < n_ctx]
