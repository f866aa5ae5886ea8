"""Two files of one model against each other: weights, activations of a prompt, logits over a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import engines
from assay.engines.base import PAGE
from assay.runtime.opening import Opened
from assay.verify.conformance import two_files as pairs
from assay.verify.conformance.sample import PROMPT, TEXT

Stage = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


@dataclass(frozen=True, repr=False)
class TwoFiles:
    """How far two files are apart. There is no verdict, so it is always true."""

    found: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.found

    def __repr__(self) -> str:
        return self.words(False)

    def words(self, everything: bool) -> str:
        """The summary, and the tensors and nodes that differ most; or all of them."""
        obj = self.found
        kl, weights, nodes = obj["logits"], obj["weights"], obj["nodes"]
        best = (", ".join(f"{t['text']!r} {t['logit']:.2f}" for t in side[:3]) for side in obj["best"])
        lines = [
            f"{Path(obj['a']).name} against {Path(obj['b']).name}, {kl['n_tokens']} tokens of text:",
            f"  KL divergence  mean {kl['kl_mean']:.5f}, 99 % below {kl['kl_99']:.5f}, largest {kl['kl_top']:.5f}",
            f"  same best token at {100 * kl['same_best']:.1f} % of positions; "
            f"perplexity {kl['perplexity'][0]:.3f} and {kl['perplexity'][1]:.3f}",
            f"  after the prompt of {len(obj['prompt'])} tokens: " + " | ".join(best),
        ]
        ranked = sorted(weights, key=lambda t: -float(t["nmse"]))
        lines.append(f"\n{'tensor':<32}{'types':<20}{'nmse':>10}{'cosine':>12}")
        for t in weights if everything else ranked[:8]:
            lines.append(f"{t['name']:<32}{' / '.join(t['types']):<20}{t['nmse']:>10.2e}{t['cosine']:>12.8f}")
        lines.append(f"\n{'node':<32}{'nmse':>30}{'cosine':>12}")
        shown = nodes if everything else [n for n in nodes if n["name"].startswith(("l_out", "embd", "result"))]
        lines += [f"{n['name']:<32}{n['nmse']:>30.2e}{n['cosine']:>12.8f}" for n in shown]
        return "\n".join(lines)


@contextmanager
def _quiet(what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


def two_files(
    a: Opened,
    b: Opened,
    *,
    tokens: Sequence[int] = (),
    prompt: str | None = None,
    text: str | None = None,
    window: int = 128,
    stage: Stage = _quiet,
) -> TwoFiles:
    """Compare; `stage` is asked for a progress at each of its parts."""
    pairs.check_pair(a.model, b.model)
    tokenizer = a.tokenizer
    ids = list(tokens) or tokenizer.encode(PROMPT if prompt is None else prompt)
    with stage("weights") as progress:
        tensors = pairs.weights(a.model, b.model, progress)
    with stage("activations") as progress:
        nodes, best = pairs.activations(a.model, b.model, ids, progress)
    name = engines.default_name()
    sample = tokenizer.encode(TEXT if text is None else text)
    both = [engines.create(name, m, n_pages=-(-window // PAGE)) for m in (a.model, b.model)]
    try:
        with stage(f"logits of {len(sample)} tokens on {name}"):
            found = pairs.logits(both[0], both[1], sample, window)
    finally:
        for engine in both:
            engine.close()
    tops = [
        [{"id": int(i), "text": tokenizer.decode([int(i)]), "logit": float(x[i])} for i in x.argsort()[::-1][:5]]
        for x in best
    ]
    return TwoFiles(
        {
            "a": str(a.file.path),
            "b": str(b.file.path),
            "weights": [vars(t) for t in tensors],
            "nodes": [vars(n) for n in nodes],
            "logits": vars(found),
            "prompt": ids,
            "best": tops,
        }
    )
