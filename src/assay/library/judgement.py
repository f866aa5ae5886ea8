"""The result of `LanguageModel.evaluate`: a model scored on a text, alone or against another model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.evaluate.evaluation import Evaluation, Worst, evaluate
from assay.evaluate.page import page
from assay.evaluate.pieces import WINDOW, cut
from assay.evaluate.predictors import EngineSource
from assay.library.notebook import inline
from assay.runtime.generate import Generator
from assay.runtime.opening import Opened
from assay.system.files import write


@dataclass(frozen=True, repr=False)
class Judgement:
    """Perplexity and, against a base, KL divergence; the worst tokens in context. Printing it shows the figures."""

    evaluation: Evaluation
    worst: tuple[Worst, ...]

    @property
    def perplexity(self) -> float:
        return self.evaluation.perplexity.value

    @property
    def kl(self) -> float | None:
        """The mean KL divergence in nats per token; None without a base."""
        return None if self.evaluation.kl is None else self.evaluation.kl.value

    def __repr__(self) -> str:
        return repr(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """The data of `assay eval --json`."""
        return {**self.evaluation.to_dict(), "worst": [asdict(w) for w in self.worst]}

    def page(self) -> str:
        """A self-contained page."""
        return page(self.evaluation, self.worst)

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        write(path, self.page())

    def _repr_html_(self) -> str:
        return inline(self.page())


@dataclass(frozen=True)
class JudgedModel:
    """A model that reads a text: the opened file, and the generator whose engine computes its logits."""

    opened: Opened
    generator: Generator

    @property
    def name(self) -> str:
        return self.opened.file.path.name


def judge(
    model: JudgedModel, text: str, against: JudgedModel | None, window: int | None, chunks: int | None, worst: int
) -> Judgement:
    """Score a text. Both models read the same tokens, which are those of the first model's tokenizer."""
    tokenizer = model.opened.tokenizer
    if against is not None and against.opened.model.hparams.n_vocab != model.opened.model.hparams.n_vocab:
        raise AssayError(
            f"{against.name}: its vocabulary differs from that of {model.name}; give two models with one vocabulary"
        )
    if window is None:
        window = min(WINDOW, model.opened.n_ctx, against.opened.n_ctx if against is not None else WINDOW)
    ids = tokenizer.encode(text, parse_special=False)
    pieces = cut(ids, window, tokenizer.bos if tokenizer.add_bos else None, chunks)
    with model.generator.exclusive() as engine:
        if against is None or against.generator is model.generator:
            found = evaluate(pieces, EngineSource(engine), EngineSource(engine) if against else None)
        else:
            with against.generator.exclusive() as other:
                found = evaluate(pieces, EngineSource(engine), EngineSource(other))
    return Judgement(found, tuple(found.worst(pieces, tokenizer, worst)))
