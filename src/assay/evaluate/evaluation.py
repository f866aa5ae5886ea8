"""Score all windows of a text, and summarise: means with standard errors, and the worst tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from assay.evaluate.pieces import Scores, TextWindow, joined
from assay.evaluate.predictors import LogitsSource
from assay.evaluate.score import score
from assay.system.stages import each
from assay.text import Tokenizer

WORST = 10
BEFORE = 24  # tokens of context shown before a worst token
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
NORMAL = 1.96  # standard errors of a 95 % confidence interval


@dataclass(frozen=True)
class Mean:
    """A mean over tokens and its standard error."""

    value: float
    error: float

    @staticmethod
    def of(values: NDArray[np.float64]) -> Mean:
        error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return Mean(float(values.mean()), error)

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - NORMAL * self.error, self.value + NORMAL * self.error

    def exp(self) -> Mean:
        return Mean(math.exp(self.value), math.exp(self.value) * self.error)

    def root(self) -> Mean:
        value = math.sqrt(self.value)
        return Mean(value, 0.5 / value * self.error if value else 0.0)

    def __str__(self) -> str:
        """The mean to the precision of the error, and the error with two digits."""
        digits = 4 if not self.error else min(9, max(2, 1 - math.floor(math.log10(self.error))))
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


@dataclass(frozen=True)
class Worst:
    """A token with a large divergence (without a base: with a large loss)."""

    at: int  # index in the tokens of the text
    before: str
    token: str
    kl: float | None
    nll: float
    base_nll: float | None
    best: str
    p_best: float
    base_best: str | None
    base_p_best: float | None


class Evaluation:
    """All scores of a text, and their means."""

    def __init__(self, parts: Iterable[Scores], *, name: str, base: str | None, seconds: float = 0.0) -> None:
        self.parts = joined(parts)
        self.name, self.base, self.seconds = name, base, seconds

    def _all(self, field: str) -> NDArray[np.float64]:
        values: NDArray[np.float64] = np.concatenate([getattr(s, field) for s in self.parts])
        return values

    @property
    def n_tokens(self) -> int:
        return sum(len(s.nll) for s in self.parts)

    @cached_property
    def nll(self) -> Mean:
        return Mean.of(self._all("nll"))

    @property
    def perplexity(self) -> Mean:
        return self.nll.exp()

    @cached_property
    def base_perplexity(self) -> Mean | None:
        return Mean.of(self._all("base_nll")).exp() if self.base else None

    @cached_property
    def log_ratio(self) -> Mean | None:
        """ln(perplexity / perplexity of the base), as a mean over tokens, so that common difficulty cancels."""
        return Mean.of(self._all("nll") - self._all("base_nll")) if self.base else None

    @cached_property
    def kl(self) -> Mean | None:
        return Mean.of(self._all("kl")) if self.base else None

    @cached_property
    def kl_quantiles(self) -> dict[str, float]:
        values = self._all("kl")
        return {f"{q:.1%}": float(np.quantile(values, q)) for q in QUANTILES} if self.base else {}

    @cached_property
    def same_best(self) -> Mean | None:
        """The share of tokens at which both have the same best token."""
        return Mean.of((self._all("best") == self._all("base_best")).astype(np.float64)) if self.base else None

    @cached_property
    def delta_p(self) -> Mean | None:
        """Root mean square of the change in the probability of the right token."""
        if not self.base:
            return None
        change = np.exp(-self._all("nll")) - np.exp(-self._all("base_nll"))
        return Mean.of(change**2).root()

    def worst(self, pieces: Sequence[TextWindow], tokenizer: Tokenizer, n: int = WORST) -> list[Worst]:
        """The tokens with the largest divergence (without a base: the largest loss), in context."""
        values = self._all("kl" if self.base else "nll")
        ends = np.cumsum([len(s.nll) for s in self.parts])
        found = []
        for i in np.argsort(-values, kind="stable")[:n].tolist():
            number = int(np.searchsorted(ends, i, side="right"))
            part, piece = self.parts[number], pieces[number]
            j = i - (int(ends[number - 1]) if number else 0)
            k = part.first + 1 + j  # index in the window
            based = self.base is not None
            found.append(
                Worst(
                    at=part.start + k,
                    before=tokenizer.decode(piece.tokens[max(0, k - BEFORE) : k].tolist()),
                    token=tokenizer.decode([int(piece.tokens[k])]),
                    kl=float(part.kl[j]) if based else None,
                    nll=float(part.nll[j]),
                    base_nll=float(part.base_nll[j]) if based else None,
                    best=tokenizer.decode([int(part.best[j])]),
                    p_best=float(part.p_best[j]),
                    base_best=tokenizer.decode([int(part.base_best[j])]) if based else None,
                    base_p_best=float(part.base_p_best[j]) if based else None,
                )
            )
        return found

    def to_dict(self) -> dict[str, object]:
        means = {
            "nll": self.nll,
            "perplexity": self.perplexity,
            "base_perplexity": self.base_perplexity,
            "ln_perplexity_ratio": self.log_ratio,
            "kl": self.kl,
            "same_best": self.same_best,
            "delta_p_rms": self.delta_p,
        }
        return {
            "model": self.name,
            "base": self.base,
            "tokens": self.n_tokens,
            "windows": len(self.parts),
            "seconds": self.seconds,
            **{key: asdict(mean) | {"interval": mean.interval} for key, mean in means.items() if mean is not None},
            **({"kl_quantiles": self.kl_quantiles} if self.base else {}),
        }

    def lines(self) -> list[str]:
        """The result as lines of text."""
        out = [f"perplexity      {self.perplexity}   {self.name}"]
        if self.base_perplexity is not None:
            out += [
                f"base            {self.base_perplexity}   {self.base}",
                f"ln ratio        {self.log_ratio}",
                f"KL divergence   {self.kl}",
                "  quantiles     " + "  ".join(f"{q} {v:.5f}" for q, v in self.kl_quantiles.items()),
                f"same best token {self.same_best}",
                f"Δp RMS          {self.delta_p}",
            ]
        scored = f"{self.n_tokens} tokens scored in {len(self.parts)} windows"
        return [*out, f"{scored}, {self.seconds:.1f} s; ± is one standard error"]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def evaluate(
    pieces: Sequence[TextWindow],
    source: LogitsSource,
    base: LogitsSource | None = None,
) -> Evaluation:
    """Score every window in this process, one after another."""
    started, found = time.perf_counter(), []
    for piece in each(pieces, "scoring the text", "windows"):
        found.append(score(piece, source, base))
    name = base.name if base is not None else None
    return Evaluation(found, name=source.name, base=name, seconds=time.perf_counter() - started)
