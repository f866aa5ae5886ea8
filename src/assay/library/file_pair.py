"""Compare two files of one model: weights, activations on a prompt, logits over a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import engines
from assay.engines.contract import pages_for
from assay.library.notebook import inline
from assay.runtime.opening import Opened
from assay.system.files import write
from assay.verify.conformance import two_files as pairs
from assay.verify.conformance.pair_page import page
from assay.verify.conformance.sample import PROMPT, TEXT


@dataclass(frozen=True, repr=False)
class TwoFiles:
    """The differences of two files. True unless a tensor differs by more than the rounding of its types."""

    found: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.found

    def __bool__(self) -> bool:
        return not any(t["explained"] is False for t in self.found["weights"])

    def __repr__(self) -> str:
        return self.words(False)

    def page(self) -> str:
        """A self-contained page: the answer, every tensor, every node."""
        return page(self.found, self.summary())

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        write(path, self.page())

    def _repr_html_(self) -> str:
        return inline(self.page())

    def answer(self) -> str:
        """Whether the types of the two files explain their differences, as a sentence."""
        known = [t for t in self.found["weights"] if t["explained"] is not None]
        odd = sorted((t for t in known if not t["explained"]), key=lambda t: -_times(t))
        if odd:
            worst = odd[0]
            return (
                f"no, their types do not explain the difference: {len(odd)} of {len(known)} tensors differ more than "
                f"{pairs.MAY:g} times the rounding of their types, {worst['name']} the most ({_times(worst):.3g} times "
                f"for {' and '.join(worst['types'])}); other weights, or a damaged file"
            )
        if not known:
            return "cannot tell whether their types explain the difference: there is no encoder for these types"
        most = max(known, key=_times)
        rest = len(self.found["weights"]) - len(known)
        return (
            "yes, their types explain the difference: every tensor differs by about the rounding of its types "
            f"({most['name']} the most, {_times(most):.2g} times that for {' and '.join(most['types'])})"
            + (f"; {rest} tensors of types without an encoder here were not judged" if rest else "")
        )

    def summary(self) -> list[str]:
        """The answer as text, and the differences of the predictions."""
        obj = self.found
        kl = obj["logits"]
        best = (", ".join(f"{t['text']!r} {t['logit']:.2f}" for t in side[:3]) for side in obj["best"])
        return [
            self.answer(),
            f"{Path(obj['a']).name} against {Path(obj['b']).name}, {kl['n_tokens']} tokens of text:",
            f"  KL divergence  mean {kl['kl_mean']:.5f}, 99 % below {kl['kl_99']:.5f}, largest {kl['kl_top']:.5f}",
            f"  same best token at {100 * kl['same_best']:.1f} % of positions; "
            f"perplexity {kl['perplexity'][0]:.3f} and {kl['perplexity'][1]:.3f}",
            f"  after the prompt of {len(obj['prompt'])} tokens: " + " | ".join(best),
        ]

    def words(self, everything: bool) -> str:
        """The summary, and the tensors and nodes that differ most, or all of them."""
        weights, nodes, lines = self.found["weights"], self.found["nodes"], self.summary()
        ranked = sorted(weights, key=lambda t: -float(t["nmse"]))
        lines.append(f"\n{'tensor':<32}{'types':<20}{'nmse':>10}{'cosine':>12}")
        for t in weights if everything else ranked[:8]:
            lines.append(f"{t['name']:<32}{' / '.join(t['types']):<20}{t['nmse']:>10.2e}{t['cosine']:>12.8f}")
        lines.append(f"\n{'node':<32}{'nmse':>30}{'cosine':>12}")
        shown = nodes if everything else [n for n in nodes if n["name"].startswith(("l_out", "embd", "result"))]
        lines += [f"{n['name']:<32}{n['nmse']:>30.2e}{n['cosine']:>12.8f}" for n in shown]
        return "\n".join(lines)


def _times(tensor: Mapping[str, Any]) -> float:
    """The distance of a tensor in units of the rounding of its types."""
    return float(tensor["nmse"]) / max(float(tensor["rounding"] or 0.0), 1e-30) if tensor["nmse"] > 1e-12 else 0.0


def two_files(
    a: Opened,
    b: Opened,
    *,
    tokens: Sequence[int] = (),
    prompt: str | None = None,
    text: str | None = None,
    window: int = 128,
) -> TwoFiles:
    """Compare two files: their weights, the activations on a prompt and the logits on a text."""
    pairs.check_pair(a.model, b.model)
    tokenizer = a.tokenizer
    ids = list(tokens) or tokenizer.encode(PROMPT if prompt is None else prompt)
    tensors = pairs.weights(a.model, b.model)
    nodes, best = pairs.activations(a.model, b.model, ids)
    name = engines.default_name()
    sample = tokenizer.encode(TEXT if text is None else text)
    both = [engines.create(name, m, n_pages=pages_for(window)) for m in (a.model, b.model)]
    try:
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
            "weights": [{**vars(t), "explained": t.explained} for t in tensors],
            "nodes": [vars(n) for n in nodes],
            "logits": vars(found),
            "prompt": ids,
            "best": tops,
        }
    )
