"""Probes: short runs, each chosen because some mistake shows there and nowhere cheaper.

A probe is a sequence of token ids, cut into steps (a prefill, then perhaps tokens one by one through the cache),
at positions that may differ from the natural ones, run once or twice. The ids are drawn from the model's own
vocabulary with a fixed seed, so a kit for one file is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.models import Model
from assay.text import Tokenizer


@dataclass(frozen=True)
class Probe:
    """One run. `steps` sum to the number of tokens; `every_node` asks for all values, else layer outputs only."""

    id: str
    why: str
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    positions: tuple[int, ...]
    runs: int = 1
    every_node: bool = False


CROSSED = (32, 64, 256, 2048)  # lengths where tiles, pages, chunks and caches end


def make_probes(model: Model, tokenizer: Tokenizer) -> list[Probe]:
    """The probes of a model; those longer than its context are left out."""
    n_ctx = model.hparams.n_ctx_train
    rng = np.random.default_rng(20)
    plain = np.setdiff1d(np.arange(model.hparams.n_vocab), [*tokenizer.eog, tokenizer.bos or 0])
    ids = tuple(int(i) for i in rng.choice(plain, max(CROSSED) + 1))
    first = tokenizer.bos if tokenizer.bos is not None and tokenizer.add_bos else ids[0]
    prompt = (first, *ids[1:6])
    other_end = (*prompt[:-1], ids[6])

    def probe(
        id: str, why: str, tokens: tuple[int, ...], steps: tuple[int, ...] = (), shift: int = 0, **kw: int | bool
    ) -> Probe:
        positions = tuple(range(shift, shift + len(tokens)))
        return Probe(id, why, tokens, steps or (len(tokens),), positions, **kw)  # type: ignore[arg-type]

    probes = [
        probe("one-token", "embedding, norms, projections and head with no attention", (first,), every_node=True),
        probe("two-tokens", "the first run in which rope, scale and mask matter", prompt[:2], every_node=True),
        probe("equal-tokens", "every position must give the same logits: attention rows sum to 1", (ids[1],) * 8),
        probe("prompt", "the base that the next probes vary", prompt),
        probe("last-changed", "only the last token differs: earlier rows must not; a leaking mask shows", other_end),
        probe("shifted", "all positions + 11: rope is relative, logits must not change", prompt, shift=11),
        probe("swapped", "the first two swapped: changes the last row only if rope is applied",
              (prompt[1], prompt[0], *prompt[2:])),
        probe("decode", "the prompt's last tokens one by one through the cache; must equal the prompt run",
              prompt, (len(prompt) - 3, 1, 1, 1), every_node=True),
        probe("twice", "the same request again: stale cache, races and uninitialised memory show", prompt, runs=2),
        *(probe(f"length-{n + 1}", f"crosses {n} positions", ids[: n + 1]) for n in CROSSED),
    ]  # fmt: skip
    return [p for p in probes if max(p.positions) < n_ctx]
